/* buckets.c - the directory of buckets that base/buckets.h draws.  Every function is O(1) but new and free (segments). */
#include "base/buckets.h"

#define COUNT_MAX (UINT32_C(1) << 30)

/* Position of the highest set bit; value is not 0. */
static uint32_t log2_floor(uint32_t value) {
    return 31U - (uint32_t)__builtin_clz(value);
}

/* Segment 0 has the first 8 buckets, segment k the buckets 2^(k+2) .. 2^(k+3)-1. */
static uint32_t segment_of(uint32_t index) {
    return index < HMQ_BUCKETS_MIN ? 0 : log2_floor(index) - 2;
}

static uint32_t segment_start(uint32_t segment) {
    return segment == 0 ? 0 : UINT32_C(4) << segment;
}

static size_t segment_bytes(uint32_t segment) {
    return (segment == 0 ? HMQ_BUCKETS_MIN : (size_t)4 << segment) * sizeof(void *);
}

static size_t directory_bytes(uint32_t segments) {
    return sizeof(hmq_buckets) + segments * sizeof(void **);
}

hmq_buckets *hmq_buckets_new(hmq_memory *memory) {
    hmq_buckets *buckets = hmq_memory_take(memory, directory_bytes(1));
    if (!buckets) return NULL;
    void **segment = hmq_memory_take(memory, segment_bytes(0));
    if (!segment) {
        hmq_memory_give(memory, buckets, directory_bytes(1));
        return NULL;
    }
    for (uint32_t i = 0; i < HMQ_BUCKETS_MIN; i++) segment[i] = NULL;
    buckets->count = HMQ_BUCKETS_MIN;
    buckets->segment_count = 1;
    buckets->segments[0] = segment;
    return buckets;
}

void hmq_buckets_free(hmq_memory *memory, hmq_buckets *buckets) {
    for (uint32_t i = 0; i < buckets->segment_count; i++)
        hmq_memory_give(memory, buckets->segments[i], segment_bytes(i));
    hmq_memory_give(memory, buckets, directory_bytes(buckets->segment_count));
}

void **hmq_buckets_at(const hmq_buckets *buckets, uint32_t index) {
    uint32_t segment = segment_of(index);
    return &buckets->segments[segment][index - segment_start(segment)];
}

uint32_t hmq_buckets_index(const hmq_buckets *buckets, uint32_t hash) {
    uint32_t half = UINT32_C(1) << log2_floor(buckets->count - 1); /* buckets below it existed before */
    uint32_t index = hash & (2 * half - 1);
    return index < buckets->count ? index : index - half;
}

uint32_t hmq_buckets_buddy(uint32_t index) {
    return index - (UINT32_C(1) << log2_floor(index));
}

uint32_t hmq_buckets_reversed(uint32_t bits) {
    bits = (bits & 0x55555555) << 1 | (bits >> 1 & 0x55555555);
    bits = (bits & 0x33333333) << 2 | (bits >> 2 & 0x33333333);
    bits = (bits & 0x0F0F0F0F) << 4 | (bits >> 4 & 0x0F0F0F0F);
    return bits << 24 | (bits & 0xFF00) << 8 | (bits >> 8 & 0xFF00) | bits >> 24;
}

uint64_t hmq_buckets_place_after(const hmq_buckets *buckets, uint32_t index) {
    uint32_t bits = log2_floor(buckets->count - 1), half = UINT32_C(1) << bits;
    bool is_split = index >= half || index + half < buckets->count;
    return hmq_buckets_reversed(index) + (HMQ_BUCKETS_END >> (bits + is_split));
}

static bool add_segment(hmq_memory *memory, hmq_buckets **buckets) {
    uint32_t have = (*buckets)->segment_count;
    void **segment = hmq_memory_take(memory, segment_bytes(have));
    if (!segment) return false;
    hmq_buckets *larger = hmq_memory_resize(memory, *buckets, directory_bytes(have), directory_bytes(have + 1));
    if (!larger) {
        hmq_memory_give(memory, segment, segment_bytes(have));
        return false;
    }
    larger->segments[have] = segment;
    larger->segment_count = have + 1;
    *buckets = larger;
    return true;
}

bool hmq_buckets_grow(hmq_memory *memory, hmq_buckets **buckets) {
    uint32_t index = (*buckets)->count;
    if (index == COUNT_MAX) return false;
    if (segment_of(index) == (*buckets)->segment_count && !add_segment(memory, buckets)) return false;
    (*buckets)->count++;
    *hmq_buckets_at(*buckets, index) = NULL;
    return true;
}

/* Frees a segment only when the one below it is half empty.  Otherwise a table at the border would allocate and free it
 * again and again. */
static void drop_spare_segment(hmq_memory *memory, hmq_buckets **buckets) {
    uint32_t last = (*buckets)->segment_count - 1;
    if (last < 2 || (*buckets)->count > segment_start(last - 1) + segment_start(last - 1) / 2) return;
    void **segment = (*buckets)->segments[last];
    hmq_buckets *smaller = hmq_memory_resize(memory, *buckets, directory_bytes(last + 1), directory_bytes(last));
    if (!smaller) return; /* the segment stays: a spare one is harmless */
    hmq_memory_give(memory, segment, segment_bytes(last));
    smaller->segment_count = last;
    *buckets = smaller;
}

void hmq_buckets_shrink(hmq_memory *memory, hmq_buckets **buckets) {
    (*buckets)->count--;
    drop_spare_segment(memory, buckets);
}
