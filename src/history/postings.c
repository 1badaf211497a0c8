/* postings.c - writes and reads the posting lists that history/postings.h describes.
 *
 * run_block reads all entries, and never beyond the end of its block: it is the one loop that must be fast.
 * Invariant of a reader: `at` is the beginning of the entry after the current one, or of the zeros before the next block;
 * `number` only increases. */
#include "history/postings.h"

#include <string.h>

#include "base/little_endian.h"

#define BLOCK ((size_t)HMQ_POSTINGS_BLOCK_BYTES)
#define MAX_ENTRY_BYTES 10
#define MAX_NUMBER ((uint64_t)HMQ_POSTINGS_MAX_NUMBER)

enum { READING, AT_END, BROKEN };

static bool bits_fit(unsigned fragment_bits, uint32_t fragment) {
    return fragment_bits <= HMQ_POSTINGS_MAX_FRAGMENT_BITS && (uint64_t)fragment >> fragment_bits == 0;
}

/* ---- writing ---- */

static size_t put_entry(uint64_t value, uint8_t *out) {
    size_t size = 0;
    for (; value >= 0x80; value >>= 7) out[size++] = (uint8_t)(value | 0x80);
    out[size++] = (uint8_t)value;
    return size;
}

size_t hmq_postings_append(size_t len, uint64_t last, unsigned fragment_bits, uint64_t number, uint32_t fragment,
                           uint8_t *out) {
    if (!bits_fit(fragment_bits, fragment) || number <= last || number > MAX_NUMBER) return 0;
    uint8_t entry[MAX_ENTRY_BYTES];
    size_t used = len % BLOCK, zeros = 0;
    uint64_t from = used ? last : 0;
    size_t size = put_entry((number - from) << fragment_bits | fragment, entry);
    if (used + size > BLOCK) {
        zeros = BLOCK - used;
        size = put_entry(number << fragment_bits | fragment, entry);
    }
    memset(out, 0, zeros);
    memcpy(out + zeros, entry, size);
    return zeros + size;
}

/* ---- reading ---- */

/* The end of the block that contains an offset. */
static size_t block_end(const hmq_postings *p, size_t at) {
    size_t end = at - at % BLOCK + BLOCK;
    return end < p->len ? end : p->len;
}

static hmq_postings_result broken(hmq_postings *p) {
    p->state = BROKEN;
    return HMQ_POSTINGS_CORRUPT;
}

/* Skips the zeros at the end of a block.  A writer leaves fewer zeros than an entry can have bytes, and none at the end of
 * the list. */
static bool skip_zeros(hmq_postings *p) {
    size_t end = block_end(p, p->at);
    if (p->at % BLOCK == 0 || end - p->at >= MAX_ENTRY_BYTES || end == p->len) return false;
    for (; p->at < end; p->at++)
        if (p->list[p->at] != 0) return false;
    return true;
}

/* Reads the integer at *at, in its shortest form, before `end`; 0 if there is none. */
static uint64_t take_integer(const uint8_t **at, const uint8_t *end) {
    const uint8_t *from = *at;
    uint64_t value = 0;
    for (unsigned shift = 0; *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return byte || *at == from + 1 ? value : 0;
        if (shift == 56) { /* only the lowest bit is left for the tenth byte */
            if (*at == end || **at != 1) return 0;
            ++*at;
            return value | UINT64_C(1) << 63;
        }
    }
    return 0;
}

/* The same if eight bytes can be read and the integer has no more: without a branch on its length, which the processor
 * cannot predict.  The groups of seven bits move together in three steps. */
static inline uint64_t take_short_integer(const uint8_t **at, uint64_t word) {
    uint64_t ends = ~word & UINT64_C(0x8080808080808080), first_end = ends & (~ends + 1);
    unsigned size = ((unsigned)__builtin_ctzll(first_end) >> 3) + 1;
    uint64_t groups = word & (first_end - 1) & UINT64_C(0x7F7F7F7F7F7F7F7F);
    groups = (groups & UINT64_C(0x007F007F007F007F)) | (groups & UINT64_C(0x7F007F007F007F00)) >> 1;
    groups = (groups & UINT64_C(0x00003FFF00003FFF)) | (groups & UINT64_C(0x3FFF00003FFF0000)) >> 2;
    groups = (groups & UINT64_C(0x000000000FFFFFFF)) | (groups & UINT64_C(0x0FFFFFFF00000000)) >> 4;
    *at += size;
    return (*at)[-1] || size == 1 ? groups : 0;
}

static inline uint64_t take_entry(const uint8_t **at, const uint8_t *end) {
    uint64_t word = end - *at >= 8 ? hmq_load64(*at) : UINT64_MAX;
    return ~word & UINT64_C(0x8080808080808080) ? take_short_integer(at, word) : take_integer(at, end);
}

/* The goal of run_block: the first entry from at_least on, with a certain fragment or any. */
typedef struct goal {
    uint64_t at_least;
    bool any;
} goal;

/* Continues in the current block.  END: this block has no more entries; the next one may. */
static hmq_postings_result run_block(hmq_postings *p, goal g, uint64_t *budget) {
    const uint8_t *at = p->list + p->at, *end = p->list + block_end(p, p->at);
    const uint64_t mask = (UINT64_C(1) << p->fragment_bits) - 1;
    uint64_t number = p->number, from = p->at % BLOCK ? number : 0;
    hmq_postings_result result = HMQ_POSTINGS_END;
    while (result == HMQ_POSTINGS_END && at < end && *at != 0) {
        uint64_t value = take_entry(&at, end), delta = value >> p->fragment_bits;
        if (delta == 0 || delta > MAX_NUMBER - from || from + delta <= number) return broken(p);
        from = number = from + delta;
        if (number < g.at_least) continue;
        p->fragment = (uint32_t)(value & mask);
        *budget -= *budget > 0;
        if (g.any || p->fragment == p->wanted)
            result = HMQ_POSTINGS_FOUND;
        else if (*budget == 0)
            result = HMQ_POSTINGS_LIMIT;
    }
    p->at = (size_t)(at - p->list);
    p->number = number;
    return result;
}

static hmq_postings_result run(hmq_postings *p, goal g, uint64_t *budget) {
    while (p->state == READING) {
        if (p->at == p->len) {
            p->state = AT_END;
            break;
        }
        if (p->list[p->at] == 0 && !skip_zeros(p)) return broken(p);
        hmq_postings_result result = run_block(p, g, budget);
        if (result != HMQ_POSTINGS_END) return result;
    }
    return p->state == AT_END ? HMQ_POSTINGS_END : HMQ_POSTINGS_CORRUPT;
}

bool hmq_postings_open(hmq_postings *postings, const uint8_t *list, size_t len, unsigned fragment_bits,
                       uint32_t wanted) {
    if (!bits_fit(fragment_bits, wanted)) return false;
    *postings = (hmq_postings){.list = list, .len = len, .wanted = wanted, .fragment_bits = (uint8_t)fragment_bits};
    return true;
}

/* The number of the first entry of a block that begins before the end of the list; 0 if it is invalid. */
static uint64_t first_of_block(const hmq_postings *p, size_t block) {
    const uint8_t *at = p->list + block * BLOCK;
    return take_entry(&at, p->list + block_end(p, block * BLOCK)) >> p->fragment_bits;
}

/* Moves forward to the last block whose first number is <= at_least: first in doubling steps, because the next number is
 * usually near, then by bisection. */
static void skip_blocks(hmq_postings *p, uint64_t at_least) {
    size_t low = p->at ? (p->at - 1) / BLOCK : 0, blocks = (p->len + BLOCK - 1) / BLOCK, step = 1, present = low;
    while (low + step < blocks && first_of_block(p, low + step) <= at_least) {
        low += step;
        step *= 2;
    }
    size_t high = low + step < blocks ? low + step : blocks; /* beyond at_least, or beyond the list */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(first_of_block(p, middle) > at_least ? &high : &low) = middle;
    }
    if (low > present) p->at = low * BLOCK;
}

hmq_postings_result hmq_postings_seek(hmq_postings *postings, uint64_t at_least, uint64_t *number, uint64_t *budget) {
    hmq_postings_result result = HMQ_POSTINGS_END;
    if (postings->number >= at_least && postings->number && postings->fragment == postings->wanted) {
        *budget -= *budget > 0;
        result = HMQ_POSTINGS_FOUND;
    } else {
        if (postings->state == READING) skip_blocks(postings, at_least);
        result = run(postings, (goal){.at_least = at_least}, budget);
    }
    *number = postings->number + (result == HMQ_POSTINGS_LIMIT);
    return result;
}

hmq_postings_result hmq_postings_step(hmq_postings *postings, uint64_t at_least) {
    uint64_t budget = 0;
    if (postings->state == READING) skip_blocks(postings, at_least);
    return run(postings, (goal){.at_least = at_least, .any = true}, &budget);
}

hmq_postings_result hmq_postings_place(const uint8_t *list, size_t len, unsigned fragment_bits, uint64_t at_least,
                                       size_t *offset, uint64_t *last) {
    hmq_postings p;
    hmq_postings_result result;
    uint64_t budget = 0;
    if (!hmq_postings_open(&p, list, len, fragment_bits, 0)) return HMQ_POSTINGS_CORRUPT;
    if (at_least > 0) skip_blocks(&p, at_least - 1); /* the block of the entry before it */
    do {
        *offset = p.at;
        *last = p.number;
        result = run(&p, (goal){.any = true}, &budget);
    } while (result == HMQ_POSTINGS_FOUND && p.number < at_least);
    return result;
}

/* ---- whole lists ---- */

hmq_postings_result hmq_postings_last(const uint8_t *list, size_t len, unsigned fragment_bits, uint64_t *last) {
    hmq_postings p;
    uint64_t budget = 0;
    if (!hmq_postings_open(&p, list, len, fragment_bits, 0)) return HMQ_POSTINGS_CORRUPT;
    if (len == 0) return HMQ_POSTINGS_END;
    p.at = (len - 1) / BLOCK * BLOCK;
    hmq_postings_result result = run(&p, (goal){.at_least = UINT64_MAX}, &budget);
    *last = p.number;
    return result == HMQ_POSTINGS_END ? HMQ_POSTINGS_FOUND : result;
}

hmq_postings_result hmq_postings_check(const uint8_t *list, size_t len, unsigned fragment_bits, uint64_t *entries) {
    hmq_postings p;
    *entries = 0;
    if (!hmq_postings_open(&p, list, len, fragment_bits, 0)) return HMQ_POSTINGS_CORRUPT;
    uint64_t budget = UINT64_MAX, before = budget;
    hmq_postings_result result;
    while ((result = run(&p, (goal){.any = true}, &budget)) == HMQ_POSTINGS_FOUND) {}
    *entries = before - budget;
    return result == HMQ_POSTINGS_END && *entries ? HMQ_POSTINGS_FOUND : result;
}
