/* slot.c - the slot of a key, and sets of slots. */
#include "topic/slot.h"

#include <string.h>

#include "base/decimal.h"

/* The effect of each value of four bits on the remainder. */
static const uint16_t remainders[16] = {0x0000, 0x1021, 0x2042, 0x3063, 0x4084, 0x50a5, 0x60c6, 0x70e7,
                                        0x8108, 0x9129, 0xa14a, 0xb16b, 0xc18c, 0xd1ad, 0xe1ce, 0xf1ef};

static uint16_t crc16(const char *bytes, size_t len) {
    uint16_t crc = 0;
    for (size_t i = 0; i < len; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        crc = (uint16_t)(crc << 4) ^ remainders[(crc >> 12) ^ (byte >> 4)];
        crc = (uint16_t)(crc << 4) ^ remainders[(crc >> 12) ^ (byte & 15)];
    }
    return crc;
}

uint16_t hmq_slot_of(const char *key, size_t len) {
    const char *open = len == 0 ? NULL : memchr(key, '{', len);
    size_t rest_len = open == NULL ? 0 : len - (size_t)(open + 1 - key);
    const char *close = rest_len == 0 ? NULL : memchr(open + 1, '}', rest_len);
    if (close != NULL && close > open + 1) return crc16(open + 1, (size_t)(close - open - 1)) % HMQ_SLOTS;
    return crc16(key, len) % HMQ_SLOTS;
}

unsigned hmq_slot_tag(unsigned slot) {
    static unsigned tags[HMQ_SLOTS];
    static bool found[HMQ_SLOTS];
    static unsigned next, left = HMQ_SLOTS;
    for (; left > 0; next++) {
        char digits[HMQ_DECIMAL_MAX];
        unsigned at = hmq_slot_of(digits, hmq_decimal_put(next, digits));
        if (found[at]) continue;
        found[at] = true;
        tags[at] = next;
        left--;
    }
    return tags[slot];
}

void hmq_slot_set_add(hmq_slot_set *set, unsigned first, unsigned last) {
    for (unsigned slot = first; slot <= last;) {
        if (slot % 64 == 0 && slot + 63 <= last) {
            set->words[slot / 64] = UINT64_MAX;
            slot += 64;
        } else {
            set->words[slot / 64] |= 1ULL << (slot % 64);
            slot++;
        }
    }
}

bool hmq_slot_set_has(const hmq_slot_set *set, unsigned slot) {
    return (set->words[slot / 64] >> (slot % 64) & 1) != 0;
}
