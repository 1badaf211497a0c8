/* hash.h - hash functions of the core's containers, and of the stored index of history.
 *
 * Texts come from clients, who must not be able to choose many of the same bucket: SipHash (Aumasson and Bernstein,
 * 2012) with one compression and three finalisation rounds, under a 128-bit seed that clients do not know.  Its
 * values are stored, so they are the same on every machine.  Numbers are the module's own: a plain mixer is enough. */
#ifndef HMQ_HASH_H
#define HMQ_HASH_H

#include "base/base.h"

/* cffi-begin */
typedef struct hmq_hash_seed {
    uint64_t low, high;
} hmq_hash_seed;

/* SipHash-1-3 of the bytes; `low` and `high` are the key's halves, read little endian. */
uint64_t hmq_hash_text(const hmq_hash_seed *seed, const char *text, size_t len);

/* A mark of bytes that are compared with one other value, in memory only: several times as fast for long ones, and not for
 * tables, since clients can choose bytes with equal marks. */
uint64_t hmq_hash_mark(const uint8_t *data, size_t len);
/* cffi-end */

uint32_t hmq_hash_number(uint64_t number);

#endif
