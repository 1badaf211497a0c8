/* no_deepbind.c - lets a server open a module that was built with AddressSanitizer.
 *
 * Valkey (from 8.1 on) opens modules with RTLD_DEEPBIND, which the sanitizer's runtime refuses and ends the process.
 * Preloaded before the runtime, this dlopen takes the flag away and calls the next one, which is the runtime's. */
#include <dlfcn.h>
#include <stddef.h>

typedef void *(*open_function)(const char *file, int mode);

void *dlopen(const char *file, int mode);

void *dlopen(const char *file, int mode) {
    open_function next = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    return next ? next(file, mode & ~RTLD_DEEPBIND) : NULL;
}
