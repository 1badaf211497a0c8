/* pairs.h - the (subscriber, options) pairs of one topic filter: private to the core.
 *
 * Most filters have one subscriber, a few have a million.  The form depends on the number of pairs:
 *
 *      one       the pair is in the structure itself                         no allocation
 *      block     a small array, searched from end to end                     2 .. 16 pairs
 *      buckets   a hash table of such blocks (base/buckets.h), about 8 pairs each
 *
 *      block:  | count | capacity | subscriber 0 | ... | subscriber c-1 | options 0 | ... | options c-1 |
 *
 * Invariant: a subscriber is in it once.  A larger form than needed is allowed (after removals, or after a failed allocation); a
 * failed allocation never changes a pair.  Set and remove O(1), visit O(pairs). */
#ifndef HMQ_PAIRS_H
#define HMQ_PAIRS_H

#include "base/buckets.h"
#include "topic/trie.h"

typedef enum hmq_pairs_form { HMQ_PAIRS_ONE = 0, HMQ_PAIRS_BLOCK = 1, HMQ_PAIRS_BUCKETS = 2 } hmq_pairs_form;

/* Empty: all zero. */
typedef struct hmq_pairs {
    union {
        uint64_t subscriber;  /* HMQ_PAIRS_ONE, if count is 1 */
        void *block;          /* HMQ_PAIRS_BLOCK */
        hmq_buckets *buckets; /* HMQ_PAIRS_BUCKETS */
    } at;
    uint32_t options; /* HMQ_PAIRS_ONE */
    uint32_t count : 30;
    uint32_t form : 2;
} hmq_pairs;

hmq_trie_result hmq_pairs_set(hmq_memory *memory, hmq_pairs *pairs, uint64_t subscriber, uint32_t options);
/* Never fails: steps that need memory are optional. */
hmq_trie_result hmq_pairs_remove(hmq_memory *memory, hmq_pairs *pairs, uint64_t subscriber);
/* Is the subscriber in it?  Then its options.  O(1). */
bool hmq_pairs_get(const hmq_pairs *pairs, uint64_t subscriber, uint32_t *options);
bool hmq_pairs_visit(const hmq_pairs *pairs, hmq_trie_visit visit, void *context);
/* The same without the first `skip`, fewer than all.  O(skip / pairs of a bucket + visited). */
bool hmq_pairs_visit_after(const hmq_pairs *pairs, size_t skip, hmq_trie_visit visit, void *context);
/* The same for a walk that may be interrupted: visits pairs from *place on (0: all), until more than *left are visited.  False
 * if it was interrupted: *place says where it continues.  Between two calls pairs may come and go.  A pair that stays is
 * visited once. */
bool hmq_pairs_visit_some(const hmq_pairs *pairs, uint64_t *place, size_t *left, hmq_trie_visit visit, void *context);
/* Frees all memory; the caller owns the structure itself. */
void hmq_pairs_clear(hmq_memory *memory, hmq_pairs *pairs);

#endif
