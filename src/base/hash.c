/* hash.c - SipHash-1-3 and a mixer for numbers.  Pure. */
#include "base/hash.h"

#include "base/little_endian.h"

typedef struct sip {
    uint64_t v0, v1, v2, v3;
} sip;

static inline uint64_t rotate(uint64_t x, unsigned bits) {
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(sip *s) {
    s->v0 += s->v1;
    s->v2 += s->v3;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v1;
    s->v0 += s->v3;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 = rotate(s->v2, 32);
}

static inline void sip_word(sip *s, uint64_t word) {
    s->v3 ^= word;
    sip_round(s);
    s->v0 ^= word;
}

uint64_t hmq_hash_text(const hmq_hash_seed *seed, const char *text, size_t len) {
    sip s = {seed->low ^ UINT64_C(0x736f6d6570736575), seed->high ^ UINT64_C(0x646f72616e646f6d),
             seed->low ^ UINT64_C(0x6c7967656e657261), seed->high ^ UINT64_C(0x7465646279746573)};
    uint64_t last = (uint64_t)len << 56;
    for (; len >= 8; text += 8, len -= 8) sip_word(&s, hmq_load64((const uint8_t *)text));
    for (size_t i = 0; i < len; i++) last |= (uint64_t)(uint8_t)text[i] << (8 * i);
    sip_word(&s, last);
    s.v2 ^= 0xFF;
    for (int i = 0; i < 3; i++) sip_round(&s);
    return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}

#define MARK_LANES 4
#define MARK_BYTES ((size_t)8 * MARK_LANES)
#define MARK_FACTOR UINT64_C(0xD1342543DE82EF95)

static inline uint64_t mark_word(uint64_t lane, uint64_t word) {
    lane = (lane ^ word) * MARK_FACTOR;
    return lane ^ lane >> 32;
}

/* Several lanes, since each multiplication waits for the one before it. */
uint64_t hmq_hash_mark(const uint8_t *data, size_t len) {
    uint64_t lanes[MARK_LANES] = {1, 2, 3, 4}, last = (uint64_t)len << 56;
    for (; len >= MARK_BYTES; data += MARK_BYTES, len -= MARK_BYTES)
        for (size_t i = 0; i < MARK_LANES; i++) lanes[i] = mark_word(lanes[i], hmq_load64(data + 8 * i));
    for (; len >= 8; data += 8, len -= 8) lanes[0] = mark_word(lanes[0], hmq_load64(data));
    for (size_t i = 0; i < len; i++) last |= (uint64_t)data[i] << (8 * i);
    uint64_t mark = mark_word(lanes[0], last);
    for (size_t i = 1; i < MARK_LANES; i++) mark = mark_word(mark, lanes[i]);
    return mark;
}

/* Multiply and fold twice: pointers, which differ in a few middle bits, spread over all bits of the result. */
uint32_t hmq_hash_number(uint64_t number) {
    number = (number ^ number >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    number = (number ^ number >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
    return (uint32_t)(number >> 32);
}
