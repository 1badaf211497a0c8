/* postings.h - posting lists: which messages of an epoch have a level that hashes so, as growing strings.
 *
 * A posting is (number, fragment): the number of a message in its epoch (1, 2, 3 ...), and what its hashed level has
 * beyond the bits that chose the list (history/index.h).  Numbers of a list grow strictly; it is only appended to.
 *
 * LIST: blocks of HMQ_POSTINGS_BLOCK_BYTES, the last one as long as it is
 *
 *      | entry entry entry ... 0 0 | entry entry ... 0 | entry entry
 *
 * ENTRY: one integer, delta << fragment_bits | fragment, in groups of seven bits, lowest first, the top bit of a byte
 * set if more follow (LEB128).  delta is the distance to the number before it in the same block; the first entry of a
 * block counts from 0.  So each block can be read alone, and a reader finds its block by binary search over the first
 * entries: the blocks are their own skip list, and nothing but the end of the string is ever written.
 *
 * An entry that would cross the end of its block is written at the start of the next one, behind zeros (no entry begins
 * with a zero byte: its delta is at least 1, and the shortest form is the only one).
 *
 * A reader believes nothing: any byte string is safe, and what no writer can have made ends in HMQ_POSTINGS_CORRUPT when
 * the reader comes to it.  (It skips blocks by their first entries: that those do not grow, only hmq_postings_check sees
 * for certain.)
 *
 * Cost: append O(block): it has to know the last number; seek O(log blocks + block). */
#ifndef HMQ_HISTORY_POSTINGS_H
#define HMQ_HISTORY_POSTINGS_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_POSTINGS_BLOCK_BYTES 256
#define HMQ_POSTINGS_MAX_NUMBER 1099511627775 /* 2^40 - 1 */
#define HMQ_POSTINGS_MAX_FRAGMENT_BITS 24
/* Longest that an append can be: an entry behind zeros. */
#define HMQ_POSTINGS_APPEND_BYTES 20

typedef enum hmq_postings_result {
    HMQ_POSTINGS_FOUND = 0,
    HMQ_POSTINGS_END = 1,     /* nothing (more) in this list */
    HMQ_POSTINGS_LIMIT = 2,   /* so many entries were looked at; go on from where it says */
    HMQ_POSTINGS_CORRUPT = 3  /* no list of these fragment bits */
} hmq_postings_result;

/* The last number of a list: FOUND, END if it is empty, or CORRUPT. */
hmq_postings_result hmq_postings_last(const uint8_t *list, size_t len, unsigned fragment_bits, uint64_t *last);

/* What is to be appended to a list of `len` bytes whose last number is `last` (0 if it is empty): writes at most
 * HMQ_POSTINGS_APPEND_BYTES, returns how many.  0 if an argument is out of range or number <= last. */
size_t hmq_postings_append(size_t len, uint64_t last, unsigned fragment_bits, uint64_t number, uint32_t fragment,
                           uint8_t *out);

/* Where somebody reads in a list; points into it.  Made by hmq_postings_open, else opaque. */
typedef struct hmq_postings {
    const uint8_t *list;
    size_t len;
    size_t at;          /* of the entry behind the present one */
    uint64_t number;    /* of the present entry; 0: none was read yet */
    uint32_t fragment;  /* of the present entry */
    uint32_t wanted;
    uint8_t fragment_bits;
    uint8_t state;
} hmq_postings;

/* To read the entries whose fragment is `wanted`.  False if an argument is out of range. */
bool hmq_postings_open(hmq_postings *postings, const uint8_t *list, size_t len, unsigned fragment_bits,
                       uint32_t wanted);

/* The first entry with a number >= at_least (which must not go down from call to call) and the fragment wanted.
 * FOUND: *number is its number.  LIMIT: *budget entries were looked at, none below *number (> at_least) is one; ask
 * again from there.  *budget goes down by the entries looked at beyond at_least, each call looks at one at least. */
hmq_postings_result hmq_postings_seek(hmq_postings *postings, uint64_t at_least, uint64_t *number, uint64_t *budget);

/* The next entry with a number >= at_least, whatever its fragment: FOUND (postings->number, ->fragment), END or CORRUPT. */
hmq_postings_result hmq_postings_step(hmq_postings *postings, uint64_t at_least);

/* Where the entries with numbers >= at_least begin: *offset bytes are before them, the zeros between blocks not included,
 * and *last is the number before (0: none), as hmq_postings_append needs it.  FOUND, END if there is none (they would
 * begin there), or CORRUPT.  O(log blocks + block). */
hmq_postings_result hmq_postings_place(const uint8_t *list, size_t len, unsigned fragment_bits, uint64_t at_least,
                                       size_t *offset, uint64_t *last);

/* Reads the whole list: FOUND if all of it is as a writer makes it (*entries: how many), END if empty, or CORRUPT. */
hmq_postings_result hmq_postings_check(const uint8_t *list, size_t len, unsigned fragment_bits, uint64_t *entries);
/* cffi-end */

#endif
