/* little_endian.h - eight bytes as a number and back, the same on every machine: private to the core.
 *
 * Compilers make one load or store of each. */
#ifndef HMQ_LITTLE_ENDIAN_H
#define HMQ_LITTLE_ENDIAN_H

#include <stdint.h>

static inline uint64_t hmq_load64(const uint8_t *bytes) {
    return (uint64_t)bytes[0] | (uint64_t)bytes[1] << 8 | (uint64_t)bytes[2] << 16 | (uint64_t)bytes[3] << 24 |
           (uint64_t)bytes[4] << 32 | (uint64_t)bytes[5] << 40 | (uint64_t)bytes[6] << 48 | (uint64_t)bytes[7] << 56;
}

static inline void hmq_store64(uint64_t number, uint8_t *out) {
    for (unsigned i = 0; i < 8; i++) out[i] = (uint8_t)(number >> (8 * i));
}

#endif
