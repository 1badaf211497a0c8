/* clock_shift.c - lets a test step the clock of a server's module.
 *
 * Preloaded, this clock_gettime adds to the real time what a file holds: eight bytes, microseconds, little endian, mapped
 * once.  Other clocks are left alone.  Its dlopen takes RTLD_DEEPBIND away, or the module would find the system's own
 * clock first (no_deepbind.c does the same for the sanitizers). */
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

typedef void *(*open_function)(const char *file, int mode);

void *dlopen(const char *file, int mode);

void *dlopen(const char *file, int mode) {
    open_function next = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "dlopen");
    return next ? next(file, mode & ~RTLD_DEEPBIND) : NULL;
}

static const volatile int64_t *shift(void) {
    static const volatile int64_t *mapped;
    const char *path = getenv("HOLDMQ_TEST_CLOCK");
    if (mapped != NULL || path == NULL) return mapped;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return NULL;
    void *memory = mmap(NULL, sizeof *mapped, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory != MAP_FAILED) mapped = memory;
    return mapped;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long result = syscall(SYS_clock_gettime, clock, now);
    const volatile int64_t *by_us = clock == CLOCK_REALTIME && result == 0 ? shift() : NULL;
    if (by_us == NULL) return (int)result;
    int64_t us = (int64_t)now->tv_sec * 1000000 + now->tv_nsec / 1000 + *by_us;
    now->tv_sec = us / 1000000;
    now->tv_nsec = us % 1000000 * 1000;
    return 0;
}
