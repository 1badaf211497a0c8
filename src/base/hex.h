/* hex.h - reads hexadecimal digits. */
#ifndef HMQ_HEX_H
#define HMQ_HEX_H

#include <stdint.h>

/* The value of a digit; -1: it is not one.  Capital letters are not accepted. */
static inline int hmq_hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

#endif
