/* append.h - a message into the history of its topic: into the log of its pattern, and from time to time what
 * has come since the last time into posting lists, marks and state (history/tail.h), in one step.
 *
 * All that can go wrong is looked at before the first write, so a message is kept whole or not at all.  Replicas and the
 * append-only file get XADD with the id written out, APPEND and HSET: nothing is learned or stamped anew there.
 *
 * Cost: one entry of a stream; each HISTORY_TAIL_MIN to _MAX messages a flush (history/tail.h). */
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

/* Keeps the message.  False after replying (if `reply`) why not; nothing has been changed then. */
bool history_append(server_ctx *ctx, const history_store *store, const hmq_record *record, history_place *place,
                    bool reply);

/* Keeps messages of one shard, all of them or none, in this order; their topics are of that shard.  False after replying
 * why not.  No epoch ends in between.  O(messages + patterns). */
bool history_append_all(server_ctx *ctx, const history_store *store, unsigned shard, const hmq_record *records,
                        size_t count, history_place *last);

/* Can posting lists get what they lack of the present epoch?  False after replying (if `reply`) what is wrong with one. */
bool history_tail_may_end(server_ctx *ctx, const history_shard *state, bool reply);
/* Gives it to them: to be called before the epoch ends.  The state is changed, and to be written. */
void history_tail_end(server_ctx *ctx, history_shard *state);

/* In a cluster: the slot in which what is published to this topic is kept; false if no store that is known here selects
 * it. */
bool history_topic_slot(server_ctx *ctx, index_t *index, hmq_slice topic, unsigned *slot);

/* Keeps what is published, if a store selects its topic.  In a cluster the slot has to be here.  False if it had to be kept and could not be. */
bool history_keep(server_ctx *ctx, index_t *index, const hmq_record *record, bool reply);

int history_append_command(server_ctx *ctx, server_string **argv, int argc);

#endif
