/* trie.h - the subscription trie: finds the subscribers whose filters match a topic name, or the names that match a filter.
 *
 *        (root) -- "devices" -- "+" -- "temperature" {7: qos 1}
 *                          \-- "42" -- "#" {9: qos 0}
 *
 * One edge per topic level.  A node holds the (subscriber, options) pairs of the filter that ends there.  Subscribers
 * are plain 64-bit numbers (the module passes pointers), which the trie never follows.
 *
 * Invariants:
 *  1. A node without subscribers and without children does not exist (except the root).
 *  2. A (filter, subscriber) pair exists once.
 *  3. Nothing changes while a match runs: a callback must not call hmq_trie_set or hmq_trie_remove.
 *  4. A failed allocation leaves the trie unchanged.
 *
 * Cost: set and remove O(levels); free O(nodes + pairs), all at once or in steps.  match visits only edges that can match (per
 * level the concrete one, '+' and '#'); match_filter, the other direction, visits what the filter can reach. */
#ifndef HMQ_TRIE_H
#define HMQ_TRIE_H

#include "base/base.h"

/* cffi-begin */
typedef struct hmq_trie hmq_trie;

typedef enum hmq_trie_result {
    HMQ_TRIE_UNCHANGED = 0, /* the pair existed with these options / did not exist */
    HMQ_TRIE_ADDED = 1,
    HMQ_TRIE_REPLACED = 2, /* the pair existed, its options are new */
    HMQ_TRIE_REMOVED = 3,
    HMQ_TRIE_NO_MEMORY = -1,
    HMQ_TRIE_BAD_FILTER = -2 /* not valid by hmq_topic_check_filter, or a $share filter (pass the inner one) */
} hmq_trie_result;

/* Called per match.  Returning false ends the walk. */
typedef bool (*hmq_trie_visit)(void *context, uint64_t subscriber, uint32_t options);

/* NULL when out of memory.  The allocator must outlive the trie. */
hmq_trie *hmq_trie_new(const hmq_allocator *allocator);
void hmq_trie_free(hmq_trie *trie);
/* The same in steps, for a large trie: each frees about `work` nodes, and true means that the trie is gone.  Until then
 * nothing but hmq_trie_free_some, hmq_trie_bytes and hmq_trie_free may be called with it. */
bool hmq_trie_free_some(hmq_trie *trie, size_t work);
/* Seeds the hash of the levels with 128 secret random bits, so that clients cannot choose colliding levels.  False unless
 * the trie is empty.  Without this call the seed is 0. */
bool hmq_trie_seed(hmq_trie *trie, uint64_t low, uint64_t high);

hmq_trie_result hmq_trie_set(hmq_trie *trie, const char *filter, size_t len, uint64_t subscriber, uint32_t options);
hmq_trie_result hmq_trie_remove(hmq_trie *trie, const char *filter, size_t len, uint64_t subscriber);

/* Is there this pair?  Then its options. */
bool hmq_trie_get(const hmq_trie *trie, const char *filter, size_t len, uint64_t subscriber, uint32_t *options);

/* All pairs whose filter matches the valid topic name.  A subscriber with several matching filters is visited
 * once for each.  False if the callback ended it. */
bool hmq_trie_match(const hmq_trie *trie, const char *name, size_t len, hmq_trie_visit visit, void *context);

/* Where an interrupted match continues: the way down to a node, and how far its pairs were visited.  All zero: at the
 * beginning. */
typedef struct hmq_trie_place {
    uint64_t plus[2]; /* one bit for each depth: the way goes through '+', else through the level of the name */
    uint64_t pair; /* topic/pairs.h */
    uint16_t depth;
    bool in_own; /* in the pairs of the node itself, else in those of its '#' */
} hmq_trie_place;

/* The same in steps.  A node costs one of *left, and a pair, too; the callback may take more.  Its result is not used.
 * False if *left was used up: *place says where the next step continues.  Between two steps the trie may change.  A pair
 * that stays is visited once; a pair that is new may be visited. */
bool hmq_trie_match_some(const hmq_trie *trie, const char *name, size_t len, hmq_trie_place *place, size_t *left,
                         hmq_trie_visit visit, void *context);

/* The other direction, for a trie that holds topic names (no wildcards): all pairs whose name matches the valid
 * filter.  Names that begin with '$' are found only by filters whose first level is concrete. */
bool hmq_trie_match_filter(const hmq_trie *trie, const char *filter, size_t len, hmq_trie_visit visit, void *context);

/* The same two functions without a callback: write at most `capacity` matches, and return the number of all. */
typedef struct hmq_trie_entry {
    uint64_t subscriber;
    uint32_t options;
} hmq_trie_entry;
size_t hmq_trie_collect(const hmq_trie *trie, const char *name, size_t len, hmq_trie_entry *entries, size_t capacity);
size_t hmq_trie_collect_filter(const hmq_trie *trie, const char *filter, size_t len, hmq_trie_entry *entries,
                               size_t capacity);

/* Every pair with its filter text (valid during the call only), in no particular order: for comparing. */
typedef bool (*hmq_trie_walk_visit)(void *context, const char *filter, size_t len, uint64_t subscriber,
                                    uint32_t options);
bool hmq_trie_walk(const hmq_trie *trie, hmq_trie_walk_visit visit, void *context);

/* All pairs whose filter matches the valid topic name, each with its filter (valid during the call only); in an order
 * that stays as long as nothing changes.  The first `skip` pairs are not visited, which costs little: O(nodes + skip / 8).
 * A node costs one of *left, more if its level is long.  False if *left was used up, or the callback ended it. */
bool hmq_trie_match_walk(const hmq_trie *trie, const char *name, size_t len, size_t skip, size_t *left,
                         hmq_trie_walk_visit visit, void *context);

size_t hmq_trie_pairs(const hmq_trie *trie);
size_t hmq_trie_nodes(const hmq_trie *trie); /* the root included */
size_t hmq_trie_bytes(const hmq_trie *trie); /* memory taken from the allocator */
/* cffi-end */

#endif
