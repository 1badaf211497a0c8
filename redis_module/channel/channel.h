/* channel.h - persistent pub/sub: what becomes of a published message, and the commands CHANNEL.PUBLISH, CHANNEL.SPUBLISH.
 *
 * Invariants:
 *  1. A message is held only on a writable primary and for a user who may write a key named like the channel.  No key of
 *     the application is written, and PUBLISH never fails for a key's sake.
 *  2. Without memory for a message that would have to be kept, the publisher gets OOM and nobody the message.
 *  3. A message that is not kept supersedes what is: a new subscriber never gets an older one after it. */
#ifndef HMQ_CHANNEL_H
#define HMQ_CHANNEL_H

#include "server/state.h"

int channel_publish_command(server_ctx *ctx, server_string **argv, int argc);
int channel_spublish_command(server_ctx *ctx, server_string **argv, int argc);

/* What a PUBLISH of a connected client becomes. */
typedef enum channel_route {
    CHANNEL_STOCK, /* the server's own PUBLISH, and nothing else to do; what had to be kept is kept */
    CHANNEL_REWRITTEN /* CHANNEL.PUBLISH: only that knows who hears the message, or it has to refuse it */
} channel_route;

/* The client's PUBLISH is about to run, outside of transactions and scripts, and the server will not refuse it.  Keeps the
 * message first where it can be known that it has to be kept. */
channel_route channel_keep_first(uint64_t client, int db, server_string *channel, server_string *message, bool sharded);

/* The same for the dry run that is active: counts the message if it is certain that nobody hears it. */
bool channel_dry_run_first(uint64_t client, int db, server_string *channel, server_string *message, bool sharded);

/* Is the channel's slot on its way to another node?  The server publishes there as ever, which CHANNEL.SPUBLISH may not. */
bool channel_slot_moves(server_string *channel);

/* The message will be published, but may not be kept. */
void channel_not_kept(server_string *channel);

#endif
