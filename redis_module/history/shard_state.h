/* shard_state.h - the state of a shard, read from its hash (history/shard.h). */
#ifndef HMQ_HISTORY_SHARD_STATE_H
#define HMQ_HISTORY_SHARD_STATE_H

#include "history/ids.h"
#include "history/store.h"

#define HISTORY_RUNS_MAX 16

/* The numbers of one writer, up to the next one's first number. */
typedef struct history_run {
    uint32_t writer; /* of history_writer(), shortened; never 0 */
    uint64_t first;
} history_run;

typedef struct history_shard {
    const history_store *store;
    unsigned shard;
    bool exists;          /* a message was written */
    hmq_message_id last;    /* the last message */
    hmq_message_id indexed; /* the last in lists and marks: the tail begins after it */
    uint32_t generation;
    uint32_t epoch, oldest;
    uint32_t dropping;      /* <= oldest */
    uint64_t first;       /* first sequence number of the current epoch */
    uint64_t begun_us;
    uint64_t bytes;         /* written in the current epoch */
    uint64_t indexed_bytes; /* ... up to `indexed` */
    uint64_t before;        /* of all epochs before it */
    uint64_t trimmed;       /* 0: nothing */
    uint64_t writer;        /* history_writer() of who began the current epoch; 0: not known */
    history_run runs[HISTORY_RUNS_MAX]; /* the last ones, in their order */
    unsigned run_count;
} history_shard;

#endif
