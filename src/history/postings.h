/* postings.h - posting lists: the messages of an epoch whose level has a certain hash, as growing strings.
 *
 * A posting is (number, fragment): the number of a message in its epoch (1, 2, 3 ...), and the bits of its hash that did
 * not choose the list (history/index.h).  Numbers of a list increase strictly; entries are only appended.
 *
 * LIST: blocks of HMQ_POSTINGS_BLOCK_BYTES; the last one may be shorter
 *
 *      | entry entry entry ... 0 0 | entry entry ... 0 | entry entry
 *
 * ENTRY: one integer, delta << fragment_bits | fragment, in groups of seven bits, lowest first, the top bit of a byte
 * set if more follow (LEB128).  delta is the distance to the previous number in the same block; the first entry of a
 * block counts from 0.  So each block can be read by itself, and a reader finds its block by binary search over the first
 * entries.  Only the end of the string is ever written.
 *
 * An entry that would cross the end of its block is written at the start of the next one, after zeros (no entry begins
 * with a zero byte: its delta is at least 1, and only the shortest form is valid).
 *
 * A reader trusts nothing: any byte string is safe, and bytes that no writer produces end in HMQ_POSTINGS_CORRUPT when the
 * reader reaches them.  (It skips blocks by their first entries; only hmq_postings_check verifies that these increase.)
 *
 * Cost: append O(block), because it needs the last number; seek O(log blocks + block). */
#ifndef HMQ_HISTORY_POSTINGS_H
#define HMQ_HISTORY_POSTINGS_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_POSTINGS_BLOCK_BYTES 256
#define HMQ_POSTINGS_MAX_NUMBER 1099511627775 /* 2^40 - 1 */
#define HMQ_POSTINGS_MAX_FRAGMENT_BITS 24
/* Maximum bytes of an append: an entry after zeros. */
#define HMQ_POSTINGS_APPEND_BYTES 20

typedef enum hmq_postings_result {
    HMQ_POSTINGS_FOUND = 0,
    HMQ_POSTINGS_END = 1,     /* no (more) entries in this list */
    HMQ_POSTINGS_LIMIT = 2,   /* the budget is used up; continue from the returned number */
    HMQ_POSTINGS_CORRUPT = 3  /* not a valid list with these fragment bits */
} hmq_postings_result;

/* The last number of a list: FOUND, END if it is empty, or CORRUPT. */
hmq_postings_result hmq_postings_last(const uint8_t *list, size_t len, unsigned fragment_bits, uint64_t *last);

/* Writes the bytes to append to a list of `len` bytes whose last number is `last` (0: it is empty): at most
 * HMQ_POSTINGS_APPEND_BYTES.  Returns their number; 0 if an argument is out of range or number <= last. */
size_t hmq_postings_append(size_t len, uint64_t last, unsigned fragment_bits, uint64_t number, uint32_t fragment,
                           uint8_t *out);

/* The position of a reader in a list; points into it.  Made by hmq_postings_open; opaque otherwise. */
typedef struct hmq_postings {
    const uint8_t *list;
    size_t len;
    size_t at;          /* of the entry after the current one */
    uint64_t number;    /* of the current entry; 0: none was read yet */
    uint32_t fragment;  /* of the current entry */
    uint32_t wanted;
    uint8_t fragment_bits;
    uint8_t state;
} hmq_postings;

/* Opens a list to read the entries with the fragment `wanted`.  False if an argument is out of range. */
bool hmq_postings_open(hmq_postings *postings, const uint8_t *list, size_t len, unsigned fragment_bits,
                       uint32_t wanted);

/* The first entry with a number >= at_least (which must not decrease from call to call) and the wanted fragment.  FOUND:
 * *number is its number.  LIMIT: *budget entries were read, and none below *number (> at_least) matches; continue from
 * there.  *budget decreases by the entries read from at_least on; each call reads at least one. */
hmq_postings_result hmq_postings_seek(hmq_postings *postings, uint64_t at_least, uint64_t *number, uint64_t *budget);

/* The next entry with a number >= at_least and any fragment: FOUND (postings->number, ->fragment), END or CORRUPT. */
hmq_postings_result hmq_postings_step(hmq_postings *postings, uint64_t at_least);

/* Finds the beginning of the entries with numbers >= at_least.  *offset bytes are before them, without the zeros between
 * blocks; *last is the number before them (0: none), as hmq_postings_append needs it.  FOUND; END if there are none (they
 * would begin there); or CORRUPT.  O(log blocks + block). */
hmq_postings_result hmq_postings_place(const uint8_t *list, size_t len, unsigned fragment_bits, uint64_t at_least,
                                       size_t *offset, uint64_t *last);

/* Checks the whole list: FOUND if it is valid (*entries: their number), END if it is empty, or CORRUPT. */
hmq_postings_result hmq_postings_check(const uint8_t *list, size_t len, unsigned fragment_bits, uint64_t *entries);
/* cffi-end */

#endif
