/* numbers.h - numbers in the texts of keys, and clocks in microseconds. */
#ifndef HMQ_NUMBERS_H
#define HMQ_NUMBERS_H

#include "server/state.h"

/* Reads a whole number from `min` to `max`; false if the text is missing (NULL) or anything else. */
bool number_of(const server_string *text, long long min, long long max, long long *number);

/* A whole number from 0 to `max`; `otherwise` if the text is missing (NULL) or anything else: other programs may write
 * anything to a key. */
long long number_or_default(const server_string *text, long long max, long long otherwise);

/* The same for a field of a hash. */
long long number_in_field(server_key *hash, const char *field, long long max, long long otherwise);

/* Reads exactly `count` decimal numbers (at most HMQ_ID_MAX), separated by one space.  False if the text is anything
 * else. */
bool numbers_read(hmq_slice text, uint64_t *numbers, size_t count);

/* The wall clock, in microseconds since 1970. */
uint64_t clock_us(void);

/* A clock that is never set, in microseconds. */
uint64_t monotonic_us(void);

#endif
