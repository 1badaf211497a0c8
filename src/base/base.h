/* base.h - what every file of the core shares: slices, the injected allocator, hidden visibility.
 *
 * The core is C without Redis, without sockets, without a clock and without randomness: whatever it needs of
 * those comes in as an argument.  It sits below everything: the module links it, Python reaches it through cffi.
 *
 * Between the marks "cffi-begin" and "cffi-end" stand the declarations that core_build.py hands to cffi, so
 * that C and Python read the very same text.  There: no macros but plain integer #defines, no #include. */
#ifndef HMQ_BASE_H
#define HMQ_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cffi-begin */
/* A run of bytes that belongs to somebody else: the input of a decoder, the argument of a command. */
typedef struct hmq_slice {
    const uint8_t *data;
    size_t len;
} hmq_slice;

/* Where a structure takes its memory from.  Each may fail (NULL); the structure is then unchanged and says so.
 * The module passes the server's allocator, so that used_memory and maxmemory stay true. */
typedef struct hmq_allocator {
    void *(*alloc)(size_t size);
    void *(*resize)(void *old, size_t size);
    void (*release)(void *memory);
} hmq_allocator;

/* malloc, realloc, free of libc: for tests and for Python. */
extern const hmq_allocator hmq_libc_allocator;
/* cffi-end */

#endif
