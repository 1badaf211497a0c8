/* sketch.c - HyperLogLog without floating-point functions.  Pure. */
#include "history/sketch.h"

#define REGISTERS HMQ_SKETCH_REGISTERS
#define INDEX_BITS 6

void hmq_sketch_add(hmq_sketch *sketch, uint64_t hash) {
    uint8_t *rank = &sketch->ranks[hash % REGISTERS];
    uint64_t rest = hash >> INDEX_BITS;
    uint8_t zeros = rest ? (uint8_t)__builtin_ctzll(rest) : 64 - INDEX_BITS;
    if (zeros + 1 > *rank) *rank = (uint8_t)(zeros + 1);
}

void hmq_sketch_merge(hmq_sketch *into, const hmq_sketch *from) {
    for (unsigned i = 0; i < REGISTERS; i++)
        if (from->ranks[i] > into->ranks[i]) into->ranks[i] = from->ranks[i];
}

/* The number of values that leave this many registers empty (the coupon collector's problem). */
static double linear_count(unsigned empty) {
    double count = 0;
    for (unsigned left = REGISTERS; left > empty; left--) count += (double)REGISTERS / left;
    return count;
}

uint64_t hmq_sketch_estimate(const hmq_sketch *sketch) {
    double sum = 0;
    unsigned empty = 0;
    for (unsigned i = 0; i < REGISTERS; i++) {
        sum += 1.0 / (double)(UINT64_C(1) << sketch->ranks[i]);
        empty += sketch->ranks[i] == 0;
    }
    double raw = 0.709 * REGISTERS * REGISTERS / sum; /* the constant of the paper for 64 registers */
    return (uint64_t)(raw < 2.5 * REGISTERS && empty ? linear_count(empty) : raw);
}
