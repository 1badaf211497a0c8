/* memory.h - scratch memory, on the stack if it is small, and arrays that grow. */
#ifndef HMQ_MEMORY_H
#define HMQ_MEMORY_H

#include "server/state.h"

/* `bytes` of scratch memory: the caller's `small` if they fit into it, else allocated. */
static inline void *scratch_alloc(void *small, size_t small_bytes, size_t bytes) {
    return bytes <= small_bytes ? small : sv.Alloc(bytes);
}

static inline void scratch_free(void *memory, const void *small) {
    if (memory != small) sv.Free(memory);
}

/* The slow half of array_reserve(). */
void *array_grow(void *array, size_t *room, size_t needed, size_t first, size_t size);

/* Makes room in `array` (NULL: none yet) for `more` elements of `size` bytes after the `used` ones.  `*room` counts the
 * elements that fit; it begins with `first`, and at least doubles.  Returns the array, which may have moved. */
static inline void *array_reserve(void *array, size_t *room, size_t used, size_t more, size_t first, size_t size) {
    return *room - used >= more ? array : array_grow(array, room, used + more, first, size);
}

#endif
