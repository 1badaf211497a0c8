/* history_append.h - a message into the history of its topic: log, posting lists, marks, state, in one step.
 *
 * All that can go wrong is looked at before the first write, so a message is kept whole or not at all.  Replicas and the
 * append-only file get XADD with the id written out, APPEND and HSET: nothing is learned or stamped anew there.
 *
 * Cost: for each varying level that the topic has one posting list (its last 256 bytes are read); O(log n) to the log. */
#ifndef HMQ_HISTORY_APPEND_H
#define HMQ_HISTORY_APPEND_H

#include "../src/record.h"
#include "history_store.h"
#include "index.h"

typedef struct history_place {
    unsigned shard;
    uint64_t sequence;
    uint64_t time_us;
} history_place;

/* Keeps the message.  False after replying (if `reply`) why not; nothing has been changed then. */
bool history_append(server_ctx *ctx, const history_store *store, const hmq_record *record, history_place *place,
                    bool reply);

/* Keeps what is published, if a store selects its topic.  False if it had to be kept and could not be. */
bool history_keep(server_ctx *ctx, index_t *index, const hmq_record *record, bool reply);

int history_append_command(server_ctx *ctx, server_string **argv, int argc);

#endif
