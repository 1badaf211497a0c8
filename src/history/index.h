/* index.h - from a level of a topic to the posting list that its messages stand in.
 *
 * A varying level of a pattern (history/patterns.h calls it a slot) is hashed with the store's seed; the first `bits`
 * bits of the 64 are its hash, `bits` being chosen for the slot's number of different values.  A bucket of its own for
 * each hash would be a key for each device; one list for all would be read whole.  So the lists of a slot come in pages:
 *
 *      page      0          1              2               3         ...
 *      messages  512        512*3          512*12          512*48         of this pattern in this epoch, in their order
 *      lists     1          4              16              64             the first 2*page bits of the hash: the group
 *
 * that is, about 384 entries a list however many messages there are: the key of a list (90 bytes in the server) costs
 * a quarter of a byte an entry, and one value among a million messages is found by reading 2,500 entries, about 8 KiB,
 * of 5 lists.  The other bits of the hash are written into the entry (the fragment, history/postings.h), so that of
 * 100,000 values in 20 bits a reader visits 1.1 messages for each that it returns.
 *
 * Invariants:
 *  1. hash = group's bits, then the fragment's: nothing of it is lost in any page.
 *  2. The writer chooses the page by how many messages the pattern has in this epoch (the length of its log).  A reader
 *     asks every page that may exist, in whatever order they were filled: were entries deleted from a log by hand, the
 *     writer goes back to a lower page, and still nothing is lost.
 *
 * Pure functions; the hash is SipHash-1-3 (base/hash.h), the same on every machine. */
#ifndef HMQ_HISTORY_INDEX_H
#define HMQ_HISTORY_INDEX_H

#include "base/base.h"
#include "base/hash.h"

/* cffi-begin */
#define HMQ_INDEX_MAX_BITS 24
#define HMQ_INDEX_FIRST_PAGE_ENTRIES 512
/* Pages that there can be: the last one takes all that is left. */
#define HMQ_INDEX_MAX_PAGES 12

/* The page of the next message of a pattern that has `messages` in this epoch.  Grows with them. */
unsigned hmq_index_page(uint64_t messages);

/* The first `bits` (1..24) bits of a level's hash. */
uint32_t hmq_index_hash(const hmq_hash_seed *seed, hmq_slice level, unsigned bits);

/* Where a hash of so many bits stands in a page. */
typedef struct hmq_index_place {
    uint32_t group;          /* which list of the page: 0 .. 2^group_bits - 1 */
    uint32_t fragment;       /* for hmq_postings_append and _open, with fragment_bits */
    uint8_t group_bits;
    uint8_t fragment_bits;
} hmq_index_place;

hmq_index_place hmq_index_place_of(uint32_t hash, unsigned bits, unsigned page);

/* The shard of a topic, 0 .. shards-1: of its whole name, so that a topic's order is its shard's order. */
uint32_t hmq_index_shard(const hmq_hash_seed *seed, const char *topic, size_t len, uint32_t shards);
/* cffi-end */

#endif
