/* utf8.c - the UTF-8 check.  Pure, one pass, eight bytes at a time while they are ASCII; reads nothing beyond len. */
#include "base/utf8.h"

#include <string.h>

#define HIGH_BITS UINT64_C(0x8080808080808080)
#define LOW_BITS UINT64_C(0x0101010101010101)

/* Are all bytes 1..0x7F?  A zero byte borrows in the subtraction, which sets its high bit.  A false alarm (a byte with its
 * own high bit, or a borrow from below) only leads to the careful path. */
static bool plain_ascii(uint64_t eight) {
    return ((eight | (eight - LOW_BITS)) & HIGH_BITS) == 0;
}

/* The number of continuation bytes of a lead byte, and the range of the first one (table 3-7; the others are always
 * 80..BF).  0 for a byte that may not lead. */
static size_t continuation(uint8_t lead, uint8_t *low, uint8_t *high) {
    *low = 0x80;
    *high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) return 1;
    if (lead >= 0xE0 && lead <= 0xEF) {
        if (lead == 0xE0) *low = 0xA0;  /* lower ones are overlong */
        if (lead == 0xED) *high = 0x9F; /* higher ones are surrogates */
        return 2;
    }
    if (lead >= 0xF0 && lead <= 0xF4) {
        if (lead == 0xF0) *low = 0x90;  /* overlong */
        if (lead == 0xF4) *high = 0x8F; /* above U+10FFFF */
        return 3;
    }
    return 0;
}

/* Bytes of the multi-byte character at text, 0 if ill-formed. */
static size_t character(const uint8_t *text, size_t len) {
    uint8_t low, high;
    size_t more = continuation(text[0], &low, &high);
    if (more == 0 || more >= len) return 0;
    if (text[1] < low || text[1] > high) return 0;
    for (size_t i = 2; i <= more; i++)
        if ((text[i] & 0xC0) != 0x80) return 0;
    return more + 1;
}

hmq_utf8_error hmq_utf8_check(const uint8_t *text, size_t len) {
    bool nul = false;
    size_t at = 0;
    while (at < len) {
        uint64_t eight;
        if (len - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if (plain_ascii(eight)) {
                at += sizeof eight;
                continue;
            }
        }
        if (text[at] < 0x80) {
            nul = nul || text[at] == 0;
            at++;
            continue;
        }
        size_t size = character(text + at, len - at);
        if (size == 0) return HMQ_UTF8_ILL_FORMED;
        at += size;
    }
    return nul ? HMQ_UTF8_NUL : HMQ_UTF8_OK;
}
