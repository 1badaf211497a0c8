/* pairs.c - the three forms that topic/pairs.h draws, and the conversions between them. */
#include "topic/pairs.h"

#include <string.h>

#include "base/hash.h"

#define BLOCK_MAX 16U         /* pairs in a lone block; above, buckets */
#define PAIRS_PER_BUCKET 8U   /* on average, before a bucket is added */
#define BACK_TO_BLOCK                                                                                                  \
    8U      /* at which buckets become a block again; well below BLOCK_MAX, so that a set does not alternate */
#define PAIRS_MAX ((UINT32_C(1) << 30) - 1)

/* ---- a block ---- */

typedef struct block {
    uint32_t count;
    uint32_t capacity;
    uint64_t subscribers[]; /* then the options */
} block;

static uint32_t *options_of(block *b) {
    return (uint32_t *)(b->subscribers + b->capacity);
}

static size_t block_bytes(uint32_t capacity) {
    return sizeof(block) + capacity * (sizeof(uint64_t) + sizeof(uint32_t));
}

/* Two, then multiples of four. */
static uint32_t capacity_for(uint32_t count) {
    return count <= 2 ? 2 : (count + 3) / 4 * 4;
}

static block *block_new(hmq_memory *memory, uint32_t for_count) {
    uint32_t capacity = capacity_for(for_count);
    block *b = hmq_memory_take(memory, block_bytes(capacity));
    if (b) *b = (block){.count = 0, .capacity = capacity};
    return b;
}

static void block_free(hmq_memory *memory, block *b) {
    if (b) hmq_memory_give(memory, b, block_bytes(b->capacity));
}

static void block_append(block *b, uint64_t subscriber, uint32_t options) {
    b->subscribers[b->count] = subscriber;
    options_of(b)[b->count] = options;
    b->count++;
}

static void block_append_all(block *b, block *from) {
    for (uint32_t i = 0; i < from->count; i++) block_append(b, from->subscribers[i], options_of(from)[i]);
}

/* Index of the subscriber; count if it is absent. */
static uint32_t block_find(const block *b, uint64_t subscriber) {
    uint32_t i = 0;
    while (i < b->count && b->subscribers[i] != subscriber) i++;
    return i;
}

static void block_remove_at(block *b, uint32_t index) {
    b->count--;
    b->subscribers[index] = b->subscribers[b->count];
    options_of(b)[index] = options_of(b)[b->count];
}

/* Makes room for `count` pairs in the block *slot (NULL: creates it). */
static bool block_reserve(hmq_memory *memory, void **slot, uint32_t count) {
    block *old = *slot;
    if (old && old->capacity >= count) return true;
    block *larger = block_new(memory, count);
    if (!larger) return false;
    if (old) block_append_all(larger, old);
    block_free(memory, old);
    *slot = larger;
    return true;
}

/* Frees room once two steps of capacity are empty.  Optional: without memory for the copy the block stays. */
static void block_trim(hmq_memory *memory, void **slot) {
    block *old = *slot;
    if (old->count + 8 > old->capacity) return;
    block *smaller = block_new(memory, old->count);
    if (!smaller) return;
    block_append_all(smaller, old);
    block_free(memory, old);
    *slot = smaller;
}

static bool block_visit_after(block *b, size_t skip, hmq_trie_visit visit, void *context) {
    for (size_t i = skip; b && i < b->count; i++)
        if (!visit(context, b->subscribers[i], options_of(b)[i])) return false;
    return true;
}

static bool block_visit(block *b, hmq_trie_visit visit, void *context) {
    return block_visit_after(b, 0, visit, context);
}

/* ---- buckets of blocks ---- */

static void **bucket_of(const hmq_buckets *buckets, uint64_t subscriber) {
    return hmq_buckets_at(buckets, hmq_buckets_index(buckets, hmq_hash_number(subscriber)));
}

/* The number of pairs in the block that belong to the bucket `index` now. */
static uint32_t count_movers(const hmq_buckets *buckets, const block *b, uint32_t index) {
    uint32_t movers = 0;
    for (uint32_t i = 0; b && i < b->count; i++)
        movers += hmq_buckets_index(buckets, hmq_hash_number(b->subscribers[i])) == index;
    return movers;
}

static void move_pairs(const hmq_buckets *buckets, block *from, block *to, uint32_t index) {
    for (uint32_t i = 0; i < from->count;) {
        if (hmq_buckets_index(buckets, hmq_hash_number(from->subscribers[i])) != index) {
            i++;
            continue;
        }
        block_append(to, from->subscribers[i], options_of(from)[i]);
        block_remove_at(from, i);
    }
}

/* Adds a bucket and splits its buddy.  Optional: without memory the buckets are fuller. */
static void split_one(hmq_memory *memory, hmq_pairs *pairs) {
    uint32_t index = pairs->at.buckets->count;
    if (!hmq_buckets_grow(memory, &pairs->at.buckets)) return;
    const hmq_buckets *buckets = pairs->at.buckets;
    void **buddy = hmq_buckets_at(buckets, hmq_buckets_buddy(index));
    uint32_t movers = count_movers(buckets, *buddy, index);
    if (movers == 0) return;
    block *moved = block_new(memory, movers);
    if (!moved) {
        hmq_buckets_shrink(memory, &pairs->at.buckets);
        return;
    }
    move_pairs(buckets, *buddy, moved, index);
    *hmq_buckets_at(buckets, index) = moved;
    block_trim(memory, buddy);
}

/* Merges the last bucket into its buddy.  Optional, too. */
static void merge_one(hmq_memory *memory, hmq_pairs *pairs) {
    uint32_t last = pairs->at.buckets->count - 1;
    block *leaving = *hmq_buckets_at(pairs->at.buckets, last);
    void **buddy = hmq_buckets_at(pairs->at.buckets, hmq_buckets_buddy(last));
    if (leaving) {
        uint32_t there = *buddy ? ((block *)*buddy)->count : 0;
        if (!block_reserve(memory, buddy, there + leaving->count)) return;
        block_append_all(*buddy, leaving);
        block_free(memory, leaving);
    }
    hmq_buckets_shrink(memory, &pairs->at.buckets);
}

/* ---- from one form to the next ---- */

static bool one_to_block(hmq_memory *memory, hmq_pairs *pairs) {
    block *b = block_new(memory, pairs->count + 1);
    if (!b) return false;
    block_append(b, pairs->at.subscriber, pairs->options);
    pairs->at.block = b;
    pairs->form = HMQ_PAIRS_BLOCK;
    return true;
}

static void block_to_one(hmq_memory *memory, hmq_pairs *pairs) {
    block *b = pairs->at.block;
    pairs->options = options_of(b)[0];
    pairs->at.subscriber = b->subscribers[0];
    pairs->form = HMQ_PAIRS_ONE;
    block_free(memory, b);
}

static void free_buckets(hmq_memory *memory, hmq_buckets *buckets) {
    for (uint32_t i = 0; i < buckets->count; i++) block_free(memory, *hmq_buckets_at(buckets, i));
    hmq_buckets_free(memory, buckets);
}

/* Optional: without memory a single block exceeds BLOCK_MAX. */
static void block_to_buckets(hmq_memory *memory, hmq_pairs *pairs) {
    hmq_buckets *buckets = hmq_buckets_new(memory);
    if (!buckets) return;
    block *b = pairs->at.block;
    for (uint32_t i = 0; i < b->count; i++) {
        void **slot = bucket_of(buckets, b->subscribers[i]);
        if (!block_reserve(memory, slot, *slot ? ((block *)*slot)->count + 1 : 1)) {
            free_buckets(memory, buckets);
            return;
        }
        block_append(*slot, b->subscribers[i], options_of(b)[i]);
    }
    block_free(memory, b);
    pairs->at.buckets = buckets;
    pairs->form = HMQ_PAIRS_BUCKETS;
}

static void buckets_to_block(hmq_memory *memory, hmq_pairs *pairs) {
    block *b = block_new(memory, pairs->count);
    if (!b) return;
    hmq_buckets *buckets = pairs->at.buckets;
    for (uint32_t i = 0; i < buckets->count; i++) {
        block *part = *hmq_buckets_at(buckets, i);
        if (part) block_append_all(b, part);
    }
    free_buckets(memory, buckets);
    pairs->at.block = b;
    pairs->form = HMQ_PAIRS_BLOCK;
}

/* After an insertion: at most one step. */
static void grow(hmq_memory *memory, hmq_pairs *pairs) {
    if (pairs->form == HMQ_PAIRS_BLOCK && pairs->count > BLOCK_MAX)
        block_to_buckets(memory, pairs);
    else if (pairs->form == HMQ_PAIRS_BUCKETS && pairs->count / PAIRS_PER_BUCKET > pairs->at.buckets->count)
        split_one(memory, pairs);
}

/* After a removal: at most one step.  Acts at half the fill of grow(), so that the two do not alternate. */
static void shrink(hmq_memory *memory, hmq_pairs *pairs) {
    if (pairs->form == HMQ_PAIRS_BLOCK) {
        if (pairs->count == 1)
            block_to_one(memory, pairs);
        else
            block_trim(memory, &pairs->at.block);
    } else if (pairs->count <= BACK_TO_BLOCK) {
        buckets_to_block(memory, pairs);
    } else if (pairs->at.buckets->count > HMQ_BUCKETS_MIN &&
               pairs->count / (PAIRS_PER_BUCKET / 2) < pairs->at.buckets->count) {
        merge_one(memory, pairs);
    }
}

/* ---- the interface ---- */

static void **slot_of(hmq_pairs *pairs, uint64_t subscriber) {
    return pairs->form == HMQ_PAIRS_BLOCK ? &pairs->at.block : bucket_of(pairs->at.buckets, subscriber);
}

bool hmq_pairs_get(const hmq_pairs *pairs, uint64_t subscriber, uint32_t *options) {
    if (pairs->count == 0) return false;
    if (pairs->form == HMQ_PAIRS_ONE) {
        if (pairs->at.subscriber != subscriber) return false;
        *options = pairs->options;
        return true;
    }
    block *b = pairs->form == HMQ_PAIRS_BLOCK ? pairs->at.block : *bucket_of(pairs->at.buckets, subscriber);
    uint32_t index = b ? block_find(b, subscriber) : 0;
    if (!b || index == b->count) return false;
    *options = options_of(b)[index];
    return true;
}

static hmq_trie_result replace(uint32_t *there, uint32_t options) {
    if (*there == options) return HMQ_TRIE_UNCHANGED;
    *there = options;
    return HMQ_TRIE_REPLACED;
}

static hmq_trie_result set_in_slot(hmq_memory *memory, void **slot, uint64_t subscriber, uint32_t options) {
    block *b = *slot;
    uint32_t count = b ? b->count : 0;
    uint32_t index = b ? block_find(b, subscriber) : 0;
    if (index < count) return replace(&options_of(b)[index], options);
    if (!block_reserve(memory, slot, count + 1)) return HMQ_TRIE_NO_MEMORY;
    block_append(*slot, subscriber, options);
    return HMQ_TRIE_ADDED;
}

hmq_trie_result hmq_pairs_set(hmq_memory *memory, hmq_pairs *pairs, uint64_t subscriber, uint32_t options) {
    if (pairs->count == 0) {
        *pairs = (hmq_pairs){.at.subscriber = subscriber, .options = options, .count = 1, .form = HMQ_PAIRS_ONE};
        return HMQ_TRIE_ADDED;
    }
    if (pairs->form == HMQ_PAIRS_ONE) {
        if (pairs->at.subscriber == subscriber) return replace(&pairs->options, options);
        if (!one_to_block(memory, pairs)) return HMQ_TRIE_NO_MEMORY;
    }
    if (pairs->count == PAIRS_MAX) return HMQ_TRIE_NO_MEMORY;
    hmq_trie_result result = set_in_slot(memory, slot_of(pairs, subscriber), subscriber, options);
    if (result == HMQ_TRIE_ADDED) {
        pairs->count++;
        grow(memory, pairs);
    }
    return result;
}

static void remove_last(hmq_memory *memory, hmq_pairs *pairs) {
    hmq_pairs_clear(memory, pairs);
    *pairs = (hmq_pairs){.count = 0};
}

hmq_trie_result hmq_pairs_remove(hmq_memory *memory, hmq_pairs *pairs, uint64_t subscriber) {
    if (pairs->count == 0) return HMQ_TRIE_UNCHANGED;
    if (pairs->form == HMQ_PAIRS_ONE) {
        if (pairs->at.subscriber != subscriber) return HMQ_TRIE_UNCHANGED;
        remove_last(memory, pairs);
        return HMQ_TRIE_REMOVED;
    }
    void **slot = slot_of(pairs, subscriber);
    block *b = *slot;
    uint32_t index = b ? block_find(b, subscriber) : 0;
    if (!b || index == b->count) return HMQ_TRIE_UNCHANGED;
    block_remove_at(b, index);
    pairs->count--;
    if (pairs->count == 0) {
        remove_last(memory, pairs);
        return HMQ_TRIE_REMOVED;
    }
    if (pairs->form == HMQ_PAIRS_BUCKETS && b->count == 0) {
        block_free(memory, b);
        *slot = NULL;
    } else if (pairs->form == HMQ_PAIRS_BUCKETS) {
        block_trim(memory, slot);
    }
    shrink(memory, pairs);
    return HMQ_TRIE_REMOVED;
}

bool hmq_pairs_visit(const hmq_pairs *pairs, hmq_trie_visit visit, void *context) {
    if (pairs->count == 0) return true;
    if (pairs->form == HMQ_PAIRS_ONE) return visit(context, pairs->at.subscriber, pairs->options);
    if (pairs->form == HMQ_PAIRS_BLOCK) return block_visit(pairs->at.block, visit, context);
    for (uint32_t i = 0; i < pairs->at.buckets->count; i++)
        if (!block_visit(*hmq_buckets_at(pairs->at.buckets, i), visit, context)) return false;
    return true;
}

static uint32_t place_of(uint64_t subscriber) {
    return hmq_buckets_reversed(hmq_hash_number(subscriber));
}

static void spend(size_t *left, size_t units) {
    *left = *left > units ? *left - units : 0;
}

static void block_visit_from(block *b, uint64_t place, size_t *left, hmq_trie_visit visit, void *context) {
    if (!b) return;
    spend(left, b->count);
    for (uint32_t i = 0; i < b->count; i++)
        if (place_of(b->subscribers[i]) >= place) visit(context, b->subscribers[i], options_of(b)[i]);
}

static void block_visit_all(block *b, size_t *left, hmq_trie_visit visit, void *context) {
    if (!b) return;
    spend(left, b->count);
    (void)block_visit(b, visit, context);
}

static bool buckets_visit_some(const hmq_buckets *buckets, uint64_t *place, size_t *left, hmq_trie_visit visit,
                               void *context) {
    while (*place < HMQ_BUCKETS_END) {
        if (*left == 0) return false;
        spend(left, 1);
        uint32_t index = hmq_buckets_index(buckets, hmq_buckets_reversed((uint32_t)*place));
        block *b = *hmq_buckets_at(buckets, index);
        if (hmq_buckets_reversed(index) == *place) /* all of the bucket */
            block_visit_all(b, left, visit, context);
        else
            block_visit_from(b, *place, left, visit, context);
        *place = hmq_buckets_place_after(buckets, index);
    }
    return true;
}

bool hmq_pairs_visit_after(const hmq_pairs *pairs, size_t skip, hmq_trie_visit visit, void *context) {
    if (skip == 0) return hmq_pairs_visit(pairs, visit, context);
    if (pairs->form == HMQ_PAIRS_BLOCK) return block_visit_after(pairs->at.block, skip, visit, context);
    if (pairs->form != HMQ_PAIRS_BUCKETS) return true;
    for (uint32_t i = 0; i < pairs->at.buckets->count; i++) {
        block *b = *hmq_buckets_at(pairs->at.buckets, i);
        size_t passed = b == NULL ? 0 : b->count < skip ? b->count : skip;
        if (b != NULL && !block_visit_after(b, passed, visit, context)) return false;
        skip -= passed;
    }
    return true;
}

bool hmq_pairs_visit_some(const hmq_pairs *pairs, uint64_t *place, size_t *left, hmq_trie_visit visit, void *context) {
    if (pairs->count == 0) return true;
    if (*left == 0) return false;
    if (pairs->form == HMQ_PAIRS_BUCKETS) return buckets_visit_some(pairs->at.buckets, place, left, visit, context);
    if (pairs->form == HMQ_PAIRS_BLOCK && *place == 0) {
        block_visit_all(pairs->at.block, left, visit, context);
    } else if (pairs->form == HMQ_PAIRS_BLOCK) {
        block_visit_from(pairs->at.block, *place, left, visit, context);
    } else if (*place == 0 || place_of(pairs->at.subscriber) >= *place) {
        --*left;
        (void)visit(context, pairs->at.subscriber, pairs->options);
    }
    return true;
}

void hmq_pairs_clear(hmq_memory *memory, hmq_pairs *pairs) {
    if (pairs->form == HMQ_PAIRS_BLOCK) block_free(memory, pairs->at.block);
    if (pairs->form == HMQ_PAIRS_BUCKETS) free_buckets(memory, pairs->at.buckets);
}
