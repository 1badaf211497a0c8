/* base.h - the basis of every file of the core: slices, the injected allocator, hidden visibility.
 *
 * The core is C without Redis, sockets, clocks and randomness; it receives times and random numbers as arguments.
 * Everything else is built on it: the module links it, and Python calls it through cffi.
 *
 * The declarations between the marks "cffi-begin" and "cffi-end" are those that core_build.py passes to cffi, so that
 * C and Python read the same text.  There are no macros there except plain integer #defines, and no #include. */
#ifndef HMQ_BASE_H
#define HMQ_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* cffi-begin */
/* A run of bytes that the slice does not own: the input of a decoder, the argument of a command. */
typedef struct hmq_slice {
    const uint8_t *data;
    size_t len;
} hmq_slice;

/* The allocator of a structure.  Each call may fail (NULL); the structure is then unchanged and reports it.  The
 * module passes the server's allocator, so that used_memory and maxmemory stay correct. */
typedef struct hmq_allocator {
    void *(*alloc)(size_t size);
    void *(*resize)(void *old, size_t size);
    void (*release)(void *memory);
} hmq_allocator;

/* malloc, realloc, free of libc: for tests and for Python. */
extern const hmq_allocator hmq_libc_allocator;
/* cffi-end */

static inline bool hmq_slice_equal(hmq_slice a, hmq_slice b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* Which comes first, byte by byte, and a beginning before what continues it: < 0 a, 0 both are equal, > 0 b. */
static inline int hmq_slice_order(hmq_slice a, hmq_slice b) {
    size_t len = a.len < b.len ? a.len : b.len;
    int order = len > 0 ? memcmp(a.data, b.data, len) : 0;
    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

#endif
