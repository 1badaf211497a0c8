/* buckets.h - the buckets of a hash table that grows and shrinks one bucket at a time: private to the core.
 *
 * Linear hashing (Litwin, 1980).  A table that doubles at once stops the server while a million entries move.  Here an
 * insertion adds at most one bucket and moves the entries of one other.
 *
 *      count = 11, two rounds:  hash & 7 gives 0..7; the buckets 0..2 have been split: their entries use
 *      hash & 15 and may be in 8..10.
 *
 *      +---+---+---+-----------+---+---+---+
 *      | 0 | 1 | 2 | 3 ...   7 | 8 | 9 |10 |        bucket 3 is the next to split (into 3 and 11)
 *      +---+---+---+-----------+---+---+---+
 *        segment 0 (8 buckets)   segment 1 (8), segment 2 (16), segment 3 (32) ...
 *
 * Segments never move, and a bucket is set to NULL only when it is first used, so allocating a large segment costs
 * nothing.  The owner decides what a bucket points to, and when to grow. */
#ifndef HMQ_BUCKETS_H
#define HMQ_BUCKETS_H

#include "base/memory.h"

#define HMQ_BUCKETS_MIN 8U

typedef struct hmq_buckets {
    uint32_t count;
    uint32_t segment_count;
    void **segments[];
} hmq_buckets;

/* HMQ_BUCKETS_MIN empty buckets; NULL when out of memory. */
hmq_buckets *hmq_buckets_new(hmq_memory *memory);
void hmq_buckets_free(hmq_memory *memory, hmq_buckets *buckets);

/* The bucket with this index, 0 .. count-1. */
void **hmq_buckets_at(const hmq_buckets *buckets, uint32_t index);
/* The index of the bucket for this hash. */
uint32_t hmq_buckets_index(const hmq_buckets *buckets, uint32_t hash);

/* Adds one empty bucket; the owner then moves the entries that belong there from its buddy.  May move *buckets.  False
 * when out of memory: nothing has changed. */
bool hmq_buckets_grow(hmq_memory *memory, hmq_buckets **buckets);
/* Removes the last bucket, whose entries the owner has moved to its buddy.  Not below HMQ_BUCKETS_MIN. */
void hmq_buckets_shrink(hmq_memory *memory, hmq_buckets **buckets);
/* The bucket that was split into itself and the bucket with this index (the last one). */
uint32_t hmq_buckets_buddy(uint32_t index);

/* The order for a walk that is interrupted while buckets come and go: by the reversed bits of the hashes.  In this order, the
 * hashes of one bucket are neighbours, however many buckets there are.  Places are 0 to HMQ_BUCKETS_END. */
#define HMQ_BUCKETS_END (UINT64_C(1) << 32)
/* The place of a hash, and the hash at a place. */
uint32_t hmq_buckets_reversed(uint32_t bits);
/* The place after all hashes of the bucket. */
uint64_t hmq_buckets_place_after(const hmq_buckets *buckets, uint32_t index);

#endif
