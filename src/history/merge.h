/* merge.h - which of many sources has the smallest next number: a binary heap, for readers that put the logs of
 * many patterns together (redis_module/history/read.h).
 *
 *            3                    heap[0] is the smallest; heap[i] is not larger than heap[2i + 1] and heap[2i + 2]
 *         5     4
 *        9 5   8
 *
 * Only the first one's number ever changes, and it only grows: it is taken, then settled.  Of equal numbers the source
 * with the lower place comes first, so that the order depends on nothing else.
 *
 * Memory: the array is the caller's.  Cost: begin O(sources), settle O(log sources), nothing for one. */
#ifndef HMQ_HISTORY_MERGE_H
#define HMQ_HISTORY_MERGE_H

#include "base/base.h"

/* cffi-begin */
typedef struct hmq_merge {
    uint64_t next; /* its next number; UINT64_MAX: it has no more */
    uint32_t source; /* the caller's */
} hmq_merge;

/* Puts sources that stand anyhow in order. */
void hmq_merge_begin(hmq_merge *heap, size_t count);

/* heap[0].next has grown, or not changed: puts it where it belongs. */
void hmq_merge_settle(hmq_merge *heap, size_t count);
/* cffi-end */

#endif
