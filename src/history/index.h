/* index.h - finds the posting list for a level of a topic.
 *
 * A varying level of a pattern (history/patterns.h calls it a slot) is hashed with the store's seed; the first `bits`
 * bits of the 64 are its hash.  `bits` depends on the slot's number of different values.  One list per hash would mean one
 * key per device; a single list would have to be read completely.  So the lists of a slot come in pages:
 *
 *      page      0          1              2               3         ...
 *      messages  512        512*3          512*12          512*48         of this pattern in this epoch, in their order
 *      lists     1          4              16              64             the first 2*page bits of the hash: the group
 *
 * A list has about 384 entries, however many messages there are.  The key of a list (90 bytes in the server) costs a
 * quarter of a byte per entry.  One value among a million messages is found by reading 2,500 entries of 5 lists, about
 * 8 KiB.  The other bits of the hash are written into the entry (the fragment, history/postings.h): with 100,000 values in
 * 20 bits a reader visits 1.1 messages per message that it returns.
 *
 * Invariants:
 *  1. The hash is the group's bits followed by the fragment's bits: no page loses any of them.
 *  2. The writer chooses the page by the number of messages of the pattern in this epoch (the length of its log).  A reader
 *     reads every page that may exist, in any order.  If entries are deleted from a log by hand, the writer returns to a
 *     lower page, and still nothing is lost.
 *
 * Pure functions; the hash is SipHash-1-3 (base/hash.h), the same on every machine. */
#ifndef HMQ_HISTORY_INDEX_H
#define HMQ_HISTORY_INDEX_H

#include "base/base.h"
#include "base/hash.h"

/* cffi-begin */
#define HMQ_INDEX_MAX_BITS 24
#define HMQ_INDEX_FIRST_PAGE_ENTRIES 512
/* Maximum number of pages: the last one takes all further messages. */
#define HMQ_INDEX_MAX_PAGES 12

/* The page of the next message of a pattern that has `messages` in this epoch. */
unsigned hmq_index_page(uint64_t messages);

/* The first `bits` (1..24) bits of a level's hash. */
uint32_t hmq_index_hash(const hmq_hash_seed *seed, hmq_slice level, unsigned bits);

/* The place of a hash in a page. */
typedef struct hmq_index_place {
    uint32_t group;          /* the list of the page: 0 .. 2^group_bits - 1 */
    uint32_t fragment;       /* for hmq_postings_append and _open, with fragment_bits */
    uint8_t group_bits;
    uint8_t fragment_bits;
} hmq_index_place;

hmq_index_place hmq_index_place_of(uint32_t hash, unsigned bits, unsigned page);

/* The shard of a topic, 0 .. shards-1.  It depends on the whole name, so that one shard keeps the order of a topic. */
uint32_t hmq_index_shard(const hmq_hash_seed *seed, const char *topic, size_t len, uint32_t shards);
/* cffi-end */

#endif
