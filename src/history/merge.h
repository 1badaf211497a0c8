/* merge.h - finds the source with the smallest next number: a binary heap, for readers that merge the logs of many
 * patterns (redis_module/history/read.h).
 *
 *            3                    heap[0] is the smallest; heap[i] is not larger than heap[2i + 1] and heap[2i + 2]
 *         5     4
 *        9 5   8
 *
 * Only the number of heap[0] changes, and it only increases: a caller changes it and then restores the order.  Of equal
 * numbers the lower source comes first, so that the order depends on nothing else.
 *
 * Memory: the caller owns the array.  Cost: begin O(sources), restore the order O(log sources). */
#ifndef HMQ_HISTORY_MERGE_H
#define HMQ_HISTORY_MERGE_H

#include "base/base.h"

/* cffi-begin */
typedef struct hmq_merge {
    uint64_t next; /* its next number; UINT64_MAX: none */
    uint32_t source; /* the caller's */
} hmq_merge;

/* Orders sources that are in any order. */
void hmq_merge_begin(hmq_merge *heap, size_t count);

/* Restores the order after heap[0].next has increased (or not changed). */
void hmq_merge_restore_order(hmq_merge *heap, size_t count);
/* cffi-end */

#endif
