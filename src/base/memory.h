/* memory.h - an allocator that counts its memory in use: private to the core's containers.
 *
 * An allocator is not told sizes when memory is freed, so the owner of a block must know its size.  Invariant: `bytes` is the
 * sum of the sizes of all blocks in use. */
#ifndef HMQ_MEMORY_H
#define HMQ_MEMORY_H

#include "base/assert.h"
#include "base/base.h"

typedef struct hmq_memory {
    const hmq_allocator *allocator;
    size_t bytes;
} hmq_memory;

static inline void *hmq_memory_take(hmq_memory *memory, size_t size) {
    void *block = memory->allocator->alloc(size);
    if (block) memory->bytes += size;
    return block;
}

/* NULL: nothing has changed, the old block is still valid. */
static inline void *hmq_memory_resize(hmq_memory *memory, void *old, size_t old_size, size_t size) {
    void *block = memory->allocator->resize(old, size);
    if (block) memory->bytes = memory->bytes - old_size + size;
    return block;
}

static inline void hmq_memory_give(hmq_memory *memory, void *block, size_t size) {
    hmq_assert(size <= memory->bytes);
    memory->allocator->release(block);
    memory->bytes -= size;
}

#endif
