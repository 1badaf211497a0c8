/* alloc.c - libc's memory as an hmq_allocator, for tests and for Python.
 *
 * The only file of the core that may name malloc, realloc or free: everything else takes memory from the injected
 * allocator, so that the server's used_memory and maxmemory stay correct. */
#include <stdlib.h>

#include "base/base.h"

const hmq_allocator hmq_libc_allocator = {.alloc = malloc, .resize = realloc, .release = free};
