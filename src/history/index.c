/* index.c - hashes of levels and their places; history/index.h gives the reasons.  Pure arithmetic. */
#include "history/index.h"

unsigned hmq_index_page(uint64_t messages) {
    unsigned page = 0;
    for (uint64_t end = HMQ_INDEX_FIRST_PAGE_ENTRIES; messages >= end && page + 1 < HMQ_INDEX_MAX_PAGES; end *= 4)
        page++;
    return page;
}

uint32_t hmq_index_hash(const hmq_hash_seed *seed, hmq_slice level, unsigned bits) {
    return (uint32_t)(hmq_hash_text(seed, (const char *)level.data, level.len) >> (64 - bits));
}

hmq_index_place hmq_index_place_of(uint32_t hash, unsigned bits, unsigned page) {
    unsigned group_bits = 2 * page < bits ? 2 * page : bits, rest = bits - group_bits;
    return (hmq_index_place){.group = (uint32_t)((uint64_t)hash >> rest),
                             .fragment = (uint32_t)(hash & ((UINT64_C(1) << rest) - 1)),
                             .group_bits = (uint8_t)group_bits,
                             .fragment_bits = (uint8_t)rest};
}

/* Uses the high half of the hash; a product distributes evenly over any number of shards. */
uint32_t hmq_index_shard(const hmq_hash_seed *seed, const char *topic, size_t len, uint32_t shards) {
    return shards == 1 ? 0 : (uint32_t)((hmq_hash_text(seed, topic, len) >> 32) * shards >> 32);
}
