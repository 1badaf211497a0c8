/* store.h - the lists of channels: every write to them.
 *
 *     held   LIST  the messages held, oldest first; expires ttl after the last one
 *     last   LIST  of one: the most recent message, heard or not (policy last=on)
 *     heard  LIST  of one: a mark that a later message was heard, or not kept here; the next held message removes it
 *     aside  LIST  of one: a mark that the application uses the channel's name; exists at least as long as the held list
 *
 * Their names: src/topic/channel_key.h.  The writes are the steps of the module's own command HOLDMQ.INTERNAL, which
 * neither MONITOR nor SLOWLOG shows, and which the server checks like any write (memory, replicas, disk, slots).
 *
 * Invariants:
 *  1. No key is written except these four, and never one of another type.
 *  2. `held` ends with the most recent message of the channel, or `heard` exists. */
#ifndef HMQ_CHANNEL_STORE_H
#define HMQ_CHANNEL_STORE_H

#include "server/channel_keys.h"

int store_internal_command(server_ctx *ctx, server_string **argv, int argc);

/* The list to which a message is appended. */
typedef struct keeping {
    bool held, last;
    uint64_t maxlen, ttl_s;
} keeping;

/* Returns the error with which the server refused the write, to be passed on.  NULL: it was done (*done), or belongs to a
 * slot of another node. */
server_string *store_message(server_ctx *ctx, server_string *channel, server_string *message, keeping how, bool *done);

/* Would the server refuse to keep a message of the channel now?  Returns its error; NULL if not.  The caller frees
 * it. */
server_string *store_refusal(server_ctx *ctx, server_string *channel);

/* A message of the channel was published, and `kept` in one database (-1: in none).  What else is kept of the channel, in
 * any database, is no longer the most recent.  Writes nothing if nothing else is kept, or the mark exists. */
void store_note_superseded(hmq_slice channel, int kept_db, keeping kept);

/* Takes up to `count` messages from the head, and passes them to `take` after the command that took them: pushes to a
 * client are sent after the reply to its running command, and that of an inner command is never sent. */
typedef void (*store_pop_message)(void *context, server_string *message);
size_t store_pop(server_ctx *ctx, server_string *channel, size_t count, store_pop_message take, void *context);
/* Removes all after the first `count` messages. */
void store_truncate(server_ctx *ctx, server_string *channel, size_t count);

/* Marks channels that are claimed (index/channels.h); once in a turn of the event loop. */
void store_before_sleep(void);
/* Is there a channel whose name the application uses, and which is not marked yet? */
bool store_has_unmarked_claims(void);

/* `watcher` is called when messages are removed from the head of a full list whose backlog may be in a drain
 * (channel/drain.h). */
void store_watch_trims(void (*watcher)(int db, hmq_slice channel, size_t count));

#endif
