/* sort.h - a sort that needs no memory and has no worst case: private to the core.  (libc's qsort takes memory outside the
 * allocator.)  Heap sort: O(n log n), not stable. */
#ifndef HMQ_SORT_H
#define HMQ_SORT_H

#include "base/base.h"

/* `size` is at most HMQ_SORT_MAX_SIZE. */
#define HMQ_SORT_MAX_SIZE 64

typedef int (*hmq_compare)(const void *a, const void *b);

void hmq_sort(void *items, size_t count, size_t size, hmq_compare compare);

#endif
