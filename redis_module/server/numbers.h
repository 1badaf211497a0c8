/* numbers.h - numbers in the texts of keys, and clocks in microseconds. */
#ifndef HMQ_NUMBERS_H
#define HMQ_NUMBERS_H

#include "server/state.h"

/* Reads `count` decimal numbers (at most HMQ_ID_MAX) with a space between each two; false if that is not all there is. */
bool history_numbers(hmq_slice text, uint64_t *numbers, size_t count);

/* The clock, in microseconds since 1970. */
uint64_t history_now_us(void);

/* A clock that no one sets, in microseconds. */
uint64_t history_monotonic_us(void);

#endif
