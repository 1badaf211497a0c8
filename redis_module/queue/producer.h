/* producer.h - a batch that is sent again is not stored again.
 *
 *     {c}_producers   HASH  producer -> "<sequence> <serial> <trimmed> <expired> <packet id>,<packet id>,...," (last batch)
 *
 * A producer numbers its batches 1, 2, 3 ... for each session.  A batch with the last number is answered as it was then;
 * one with an older number is answered without identifiers; neither stores anything.  A producer with several batches in
 * flight names for each batch the one before it: if that one was refused, so are those that follow. */
#ifndef HMQ_PRODUCER_H
#define HMQ_PRODUCER_H

#include "server/state.h"
#include "queue/queue.h"

#define PRODUCERS_MAX 1024      /* in one session */
#define PRODUCER_MAX_BATCH 1000 /* messages in one batch */

typedef enum producer_verdict {
    PRODUCER_NEW,
    PRODUCER_REPEATED,
    PRODUCER_OLD,
    PRODUCER_GAP, /* the batch that it follows is not there: *last is */
    PRODUCER_TOO_MANY,
    PRODUCER_WRONG_TYPE
} producer_verdict;

typedef struct producer_batch {
    server_string *producer; /* NULL: none */
    long long sequence;
    long long after; /* the batch that it follows, 0: not given */
} producer_batch;

/* What is known of this batch.  PRODUCER_REPEATED: items (as many as were stored then, at most `count`) and result are
 * filled in. */
producer_verdict producer_judge(server_ctx *ctx, hmq_slice session, const producer_batch *batch, queue_item *items,
                                size_t count, queue_result *result, long long *last);

/* Remembers the batch; the hash expires no earlier than `expire_ms`. */
void producer_remember(server_ctx *ctx, hmq_slice session, server_string *producer, long long sequence,
                       const queue_item *items, size_t count, const queue_result *result, long long expire_ms);

#endif
