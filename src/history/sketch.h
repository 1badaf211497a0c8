/* sketch.h - estimates the number of different values: private to the learner.
 *
 * HyperLogLog (Flajolet and others, 2007) with 64 registers: standard error 13 percent, enough to choose a number of
 * bits.  Merging two sketches takes the larger of each two registers. */
#ifndef HMQ_HISTORY_SKETCH_H
#define HMQ_HISTORY_SKETCH_H

#include "base/base.h"

#define HMQ_SKETCH_REGISTERS 64

typedef struct hmq_sketch {
    uint8_t ranks[HMQ_SKETCH_REGISTERS];
} hmq_sketch;

void hmq_sketch_add(hmq_sketch *sketch, uint64_t hash);
void hmq_sketch_merge(hmq_sketch *into, const hmq_sketch *from);
uint64_t hmq_sketch_estimate(const hmq_sketch *sketch);

#endif
