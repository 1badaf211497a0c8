/* decimal.h - writes numbers as decimal digits, for names of keys, commands and lines: printf is too slow there. */
#ifndef HMQ_DECIMAL_H
#define HMQ_DECIMAL_H

#include <stddef.h>
#include <stdint.h>

#define HMQ_DECIMAL_MAX 20 /* digits of the largest number */

/* Writes the digits, highest first, without a NUL; returns their number: up to 5 for 16 bits, HMQ_DECIMAL_MAX for 64.  The
 * caller has made room. */
static inline size_t hmq_decimal_put(uint64_t number, char *out) {
    char reversed[HMQ_DECIMAL_MAX];
    size_t count = 0;
    do reversed[count++] = (char)('0' + number % 10);
    while ((number /= 10) > 0);
    for (size_t i = 0; i < count; i++) out[i] = reversed[count - 1 - i];
    return count;
}

#endif
