/* assert.h - checks the stated invariants of a file, if that is cheap.
 *
 * Off in releases; on with -DHMQ_ASSERT, as in the sanitized build that runs the tests.  A condition must have no side
 * effect, and must not depend on a client, a network or another program: their faults are handled, not asserted. */
#ifndef HMQ_BASE_ASSERT_H
#define HMQ_BASE_ASSERT_H

#ifdef HMQ_ASSERT
#include <stdio.h>
#include <stdlib.h>

_Noreturn static inline void hmq_assert_failed(const char *condition, const char *file, int line) {
    (void)fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    abort();
}

#define hmq_assert(condition) ((condition) ? (void)0 : hmq_assert_failed(#condition, __FILE__, __LINE__))
#else
#define hmq_assert(condition) ((void)(false && (condition))) /* not evaluated, but compiled: its names stay in use */
#endif

#endif
