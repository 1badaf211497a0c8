/* append.h - appends a message to the history of its topic: to the log of its pattern, and from time to time all
 * recent messages to posting lists, marks and state (history/tail.h), in one step.
 *
 * Everything that can fail is checked before the first write, so a message is kept completely or not at all.
 * Replicas and the append-only file get XADD with the id written out, APPEND and HSET: they recompute nothing.
 *
 * Cost: one entry of a stream; every HISTORY_TAIL_MIN to _MAX messages a flush (history/tail.h). */
#ifndef HMQ_HISTORY_APPEND_H
#define HMQ_HISTORY_APPEND_H

#include "topic/record.h"
#include "index/index.h"
#include "history/shard.h"
#include "history/store.h"

typedef struct history_place {
    unsigned shard;
    uint64_t sequence;
    uint64_t time_us;
} history_place;

/* Keeps the message.  False after replying (if `reply`) why not; nothing has changed then. */
bool history_append(server_ctx *ctx, const history_store *store, const hmq_record *record, history_place *place,
                    bool reply);

/* Keeps messages of one shard, all of them or none, in this order; their topics are of that shard.  False after replying
 * why not.  No epoch ends in between.  O(messages + patterns). */
bool history_append_all(server_ctx *ctx, const history_store *store, unsigned shard, const hmq_record *records,
                        size_t count, history_place *last);

/* Can the posting lists of the current epoch be completed?  False after replying (if `reply`) what is wrong with one.
 */
bool history_tail_may_end(server_ctx *ctx, const history_shard *state, bool reply);
/* Completes them: call it before the epoch ends.  Changes the state, which must then be written. */
void history_tail_end(server_ctx *ctx, history_shard *state);

/* In a cluster: the slot in which publishes to this topic are kept.  False if no store known here selects it. */
bool history_topic_slot(server_ctx *ctx, index_t *index, hmq_slice topic, unsigned *slot);

/* Keeps a publish, if a store selects its topic.  In a cluster the slot must be here.  False if it must be kept and
 * could not be. */
bool history_append_publish(server_ctx *ctx, index_t *index, const hmq_record *record, bool reply);

int history_append_command(server_ctx *ctx, server_string **argv, int argc);

#endif
