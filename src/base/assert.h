/* assert.h - invariants that a file states, checked where it is cheap.
 *
 * Off in what is released; on with -DHMQ_ASSERT, as in the sanitized build, with which the tests run.  A condition must have
 * no effect, and must not depend on what a client, a network or another program does: that is handled, not asserted. */
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
