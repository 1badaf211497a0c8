/* routes.c - where publishes go in a cluster: which link has a slot, and the answers of nodes about topics.
 *
 *      link 0   node a, generation 7      plant/1 ──► answer: version 3, slots 5 812 4000        a cache for each link
 *      slots    5: link 0   812: link 2   4000: link 2
 *      plan     of an answer: the end of the command for each link, SLOTS ... HOME a 7            made when first used
 *
 * An answer is shared by the cache and by all publishes that were sent by it; the last user frees it.  Its serial is larger
 * than those of all answers before it.  Answers leave the cache in the order of their arrival, unless they were used since
 * they were last looked at, and all at once when the node has another generation.
 *
 * Memory: max_answer_bytes for each link; the table of slots has 64 KiB. */
#include "engine/internal.h"

#define FIRST_BUCKETS 64U
#define PLAN_MOST_SLOTS 1024U /* of one command */

/* ---- slots ---- */

static bool make_table(hmq_engine *e) {
    if (e->slot_links != NULL) return true;
    e->slot_links = e->allocator.alloc(HMQ_SLOTS * sizeof *e->slot_links);
    for (size_t i = 0; e->slot_links != NULL && i < HMQ_SLOTS; i++) e->slot_links[i] = HMQ_NO_LINK;
    return e->slot_links != NULL;
}

/* Slots leave a link: nothing is sent to another one before all visits on it were answered. */
static bool leave(hmq_engine *e, uint32_t first, uint32_t last, uint32_t from) {
    const engine_link *l = hmq_engine_link(e, from);
    if (l == NULL || l->visits_put == l->visits_answered) return true;
    const leaving_slots leaving = {first, last, from, l->visits_put};
    return hmq_bytes_append(&e->allocator, &e->leaving, &leaving, sizeof leaving);
}

bool hmq_engine_slots(hmq_engine *e, uint32_t first, uint32_t last, uint32_t link) {
    if (first > last || last >= HMQ_SLOTS || (link != HMQ_NO_LINK && link >= e->link_count) || !make_table(e))
        return false;
    for (uint32_t at = first, end = first; at <= last; at = end) {
        const uint32_t from = e->slot_links[at];
        while (end <= last && e->slot_links[end] == from) end++;
        if (from == link) continue;
        if (!leave(e, at, end - 1, from)) return false;
        for (uint32_t slot = at; slot < end; slot++) e->slot_links[slot] = link;
        e->slots_version++;
    }
    e->routes_due = true;
    return true;
}

/* Forgets the moves whose former links have answered everything. */
static void forget_left(hmq_engine *e) {
    hmq_bytes *all = &e->leaving;
    size_t kept = 0;
    for (size_t at = 0; at < all->len; at += sizeof(leaving_slots)) {
        leaving_slots one;
        memcpy(&one, hmq_bytes_at(all) + at, sizeof one);
        if (e->links[one.link].visits_answered >= one.until) continue;
        memcpy(hmq_bytes_at(all) + kept, &one, sizeof one);
        kept += sizeof one;
    }
    all->len = kept;
    if (kept == 0) hmq_bytes_clear(all);
}

bool hmq_route_is_leaving(hmq_engine *e, uint32_t slot) {
    if (e->leaving.len == 0) return false;
    forget_left(e);
    for (size_t at = 0; at < e->leaving.len; at += sizeof(leaving_slots)) {
        leaving_slots one;
        memcpy(&one, hmq_bytes_at(&e->leaving) + at, sizeof one);
        if (slot >= one.first && slot <= one.last) return true;
    }
    return false;
}

/* ---- answers ---- */

static size_t bytes_of(const route_answer *a) {
    return sizeof *a + a->range_count * sizeof(slot_range) + a->topic_len + a->plan.capacity;
}

void hmq_answer_release(hmq_engine *e, route_answer *a) {
    if (a == NULL || --a->uses > 0) return;
    hmq_bytes_free(&e->allocator, &a->plan);
    e->allocator.release(a);
}

static route_answer **place_of(const route_cache *cache, uint64_t hash, hmq_slice topic) {
    route_answer **at = &cache->buckets[hash & (cache->room - 1)];
    while (*at != NULL && ((*at)->hash != hash || (*at)->topic_len != topic.len ||
                           memcmp(hmq_answer_topic(*at), topic.data, topic.len) != 0))
        at = &(*at)->next;
    return at;
}

static uint64_t hash_of(const hmq_engine *e, hmq_slice topic) {
    const hmq_hash_seed seed = {e->settings.inbox_seed[0], e->settings.inbox_seed[1]};
    return hmq_hash_text(&seed, (const char *)topic.data, topic.len);
}

route_answer *hmq_route_find(hmq_engine *e, engine_link *l, hmq_slice topic) {
    if (l->cache.room == 0) return NULL;
    route_answer *found = *place_of(&l->cache, hash_of(e, topic), topic);
    if (found != NULL) found->was_used = true;
    return found;
}

static void unlist(route_cache *cache, route_answer *a) {
    if (!a->is_listed) return;
    route_answer **at = &cache->buckets[a->hash & (cache->room - 1)];
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    a->is_listed = false;
    cache->count--;
}

/* Takes the oldest one out of the cache, or gives it another turn. */
static void drop_oldest(hmq_engine *e, route_cache *cache, bool may_stay) {
    route_answer *a;
    memcpy(&a, hmq_bytes_at(&cache->order), sizeof(route_answer *));
    hmq_bytes_drop(&cache->order, sizeof(route_answer *));
    const bool stays = may_stay && a->is_listed && a->was_used;
    a->was_used = false;
    if (stays && hmq_bytes_append(&e->allocator, &cache->order, &a, sizeof(route_answer *))) return;
    unlist(cache, a);
    a->cache = NULL;
    cache->bytes -= a->counted;
    hmq_answer_release(e, a);
}

void hmq_route_forget(hmq_engine *e, engine_link *l) {
    while (l->cache.order.len > 0) drop_oldest(e, &l->cache, false);
    l->cache.n = 0;
}

void hmq_route_free(hmq_engine *e, engine_link *l) {
    hmq_route_forget(e, l);
    hmq_bytes_free(&e->allocator, &l->cache.order);
    if (l->cache.buckets != NULL) e->allocator.release(l->cache.buckets);
}

/* False: no memory. */
static bool more_buckets(hmq_engine *e, route_cache *cache) {
    const uint32_t room = cache->room == 0 ? FIRST_BUCKETS : cache->room * 2;
    route_answer **buckets = e->allocator.alloc(room * sizeof *buckets);
    if (buckets == NULL) return cache->room > 0;
    memset(buckets, 0, room * sizeof *buckets);
    for (uint32_t i = 0; i < cache->room; i++) {
        for (route_answer *a = cache->buckets[i], *next; a != NULL; a = next) {
            next = a->next;
            a->next = buckets[a->hash & (room - 1)];
            buckets[a->hash & (room - 1)] = a;
        }
    }
    if (cache->buckets != NULL) e->allocator.release(cache->buckets);
    cache->buckets = buckets;
    cache->room = room;
    return true;
}

/* Without memory, or above the bound, it is not kept: its publish still uses it. */
static void keep(hmq_engine *e, engine_link *l, route_answer *a) {
    route_cache *cache = &l->cache;
    a->counted = bytes_of(a);
    if (a->counted > e->settings.max_answer_bytes) return;
    if (cache->count >= cache->room && !more_buckets(e, cache)) return;
    if (hmq_bytes_room(&e->allocator, &cache->order, sizeof(route_answer *)) == NULL) return;
    route_answer **at = place_of(cache, a->hash, (hmq_slice){hmq_answer_topic(a), a->topic_len});
    if (*at != NULL) unlist(cache, *at);
    a->next = cache->buckets[a->hash & (cache->room - 1)];
    cache->buckets[a->hash & (cache->room - 1)] = a;
    a->is_listed = true;
    a->cache = cache;
    a->uses++;
    cache->count++;
    cache->bytes += a->counted;
    hmq_bytes_append(&e->allocator, &cache->order, &a, sizeof(route_answer *));
    while (cache->bytes > e->settings.max_answer_bytes) drop_oldest(e, cache, true);
}

/* ---- stores of history ---- */

static uint32_t shard_of(const kept_store *s, hmq_slice topic) {
    const hmq_hash_seed seed = {s->seed[0], s->seed[1]};
    const uint64_t hash = s->spread == 1 ? 0 : hmq_hash_text(&seed, (const char *)topic.data, topic.len);
    return (uint32_t)((hash >> 32) * s->spread >> 32); /* as history/index.h spreads topics */
}

/* The slot of the topic's shard; -1: no store has it. */
static int32_t history_slot(const hmq_engine *e, hmq_slice topic) {
    for (size_t at = 0; at < e->stores.len;) {
        kept_store s;
        memcpy(&s, hmq_bytes_at(&e->stores) + at, sizeof s);
        at += sizeof s;
        for (size_t end = at + s.bytes; at < end;) {
            uint32_t len;
            memcpy(&len, hmq_bytes_at(&e->stores) + at, sizeof len);
            at += sizeof len;
            if (hmq_topic_matches((const char *)hmq_bytes_at(&e->stores) + at, len, (const char *)topic.data,
                                  topic.len))
                return s.slots[shard_of(&s, topic)];
            at += len;
        }
    }
    return -1;
}

static bool put_store(hmq_engine *e, hmq_bytes *all, const hmq_engine_store *store) {
    kept_store s = {.spread = store->spread, .seed = {store->seed[0], store->seed[1]}};
    if (store->spread < 1 || store->spread > 64) return false;
    memcpy(s.slots, store->slots, sizeof s.slots);
    for (size_t i = 0; i < store->filter_count; i++) s.bytes += sizeof(uint32_t) + store->filters[i].len;
    if (!hmq_bytes_append(&e->allocator, all, &s, sizeof s)) return false;
    for (size_t i = 0; i < store->filter_count; i++) {
        const uint32_t len = (uint32_t)store->filters[i].len;
        if (!hmq_bytes_append(&e->allocator, all, &len, sizeof len) ||
            !hmq_bytes_append(&e->allocator, all, store->filters[i].data, len))
            return false;
    }
    return true;
}

bool hmq_engine_stores(hmq_engine *e, const hmq_engine_store *stores, size_t count) {
    hmq_bytes all = {0};
    for (size_t i = 0; i < count; i++) {
        if (put_store(e, &all, &stores[i])) continue;
        hmq_bytes_free(&e->allocator, &all);
        return false;
    }
    hmq_bytes_free(&e->allocator, &e->stores);
    e->stores = all;
    for (uint32_t i = 0; i < e->link_count; i++) hmq_route_forget(e, &e->links[i]);
    return true;
}

/* ---- what a node replied ---- */

static bool is_of_home(const route_cache *cache, hmq_slice node, int64_t n) {
    return cache->n == n && cache->node_len == node.len && memcmp(cache->node, node.data, node.len) == 0;
}

bool hmq_answer_is_current(const engine_link *l, const route_answer *a) {
    return is_of_home(&l->cache, (hmq_slice){a->node, a->node_len}, a->n);
}

/* A slot among ranges? */
static bool has_slot(const slot_range *ranges, size_t count, uint32_t slot) {
    for (size_t i = 0; i < count; i++)
        if (slot >= ranges[i].first && slot <= ranges[i].last) return true;
    return false;
}

/* Reads `numbers` numbers as ranges, and adds the slot of history.  False: they are not ranges. */
static bool read_ranges(const hmq_engine *e, route_answer *a, hmq_slice reply, size_t *at, int64_t numbers,
                        hmq_slice topic) {
    hmq_resp_item first, last;
    for (int64_t i = 0; i < numbers; i += 2) {
        if (!hmq_resp_next(reply.data, reply.len, at, &first) || !hmq_resp_next(reply.data, reply.len, at, &last) ||
            first.type != ':' || last.type != ':' || first.number < 0 || last.number < first.number ||
            last.number >= HMQ_SLOTS)
            return false;
        a->ranges[a->range_count++] = (slot_range){(uint16_t)first.number, (uint16_t)last.number};
    }
    const int32_t kept = history_slot(e, topic);
    if (kept >= 0 && !has_slot(a->ranges, a->range_count, (uint32_t)kept))
        a->ranges[a->range_count++] = (slot_range){(uint16_t)kept, (uint16_t)kept};
    return true;
}

route_answer *hmq_route_learn(hmq_engine *e, engine_link *l, const route_home *home, hmq_slice topic, hmq_slice reply,
                              size_t *at) {
    hmq_resp_item version, ranges;
    if (!hmq_resp_next(reply.data, reply.len, at, &version) || version.type != ':' ||
        !hmq_resp_next(reply.data, reply.len, at, &ranges) || ranges.type != '*' || ranges.number < 0 ||
        ranges.number > HMQ_SLOTS || ranges.number % 2 != 0)
        return NULL;
    if (!is_of_home(&l->cache, home->node, home->n)) {
        hmq_route_forget(e, l);
        l->cache.node_len = (uint8_t)home->node.len;
        memcpy(l->cache.node, home->node.data, home->node.len);
        l->cache.n = home->n;
    }
    const size_t most = (size_t)ranges.number / 2 + 1;
    route_answer *a = e->allocator.alloc(sizeof *a + most * sizeof(slot_range) + topic.len);
    if (a == NULL) return NULL;
    *a = (route_answer){.uses = 1,
                        .hash = hash_of(e, topic),
                        .n = home->n,
                        .version = version.number,
                        .node_len = (uint8_t)home->node.len,
                        .topic_len = (uint16_t)topic.len};
    memcpy(a->node, home->node.data, home->node.len);
    if (!read_ranges(e, a, reply, at, ranges.number, topic)) {
        e->allocator.release(a);
        return NULL;
    }
    memcpy(hmq_answer_topic(a), topic.data, topic.len);
    route_answer *known = hmq_route_find(e, l, topic);
    if (known != NULL && known->version == a->version) { /* another publish has learnt it in the meantime */
        hmq_answer_release(e, a);
        known->uses++;
        return known;
    }
    a->serial = ++e->answers;
    keep(e, l, a);
    return a;
}

bool hmq_engine_node(hmq_engine *e, uint32_t link, hmq_slice node_id) {
    engine_link *l = hmq_engine_link(e, link);
    if (l == NULL || node_id.len == 0 || node_id.len > HMQ_NODE_ID_BYTES) return false;
    if (l->id_len == node_id.len && memcmp(l->id, node_id.data, node_id.len) == 0) return true;
    hmq_route_forget(e, l);
    l->id_len = (uint8_t)node_id.len;
    memcpy(l->id, node_id.data, node_id.len);
    return true;
}

size_t hmq_engine_answer_bytes(const hmq_engine *e, uint32_t link) {
    const engine_link *l = hmq_engine_link(e, link);
    return l == NULL ? 0 : l->cache.bytes;
}

/* ---- plans ---- */

#define RANGE_BYTES ((size_t)32)

size_t hmq_route_tail_bytes(size_t ranges) {
    return ranges * RANGE_BYTES + 160;
}

/* SLOTS count first last ... HOME node n; *words: their number. */
uint8_t *hmq_route_put_tail(uint8_t *out, const route_answer *a, const slot_range *ranges, size_t count,
                            uint32_t *words) {
    out = hmq_resp_put_text(out, "SLOTS", 5);
    out = hmq_resp_put_number(out, count);
    for (size_t i = 0; i < count; i++) {
        out = hmq_resp_put_number(out, ranges[i].first);
        out = hmq_resp_put_number(out, ranges[i].last);
    }
    out = hmq_resp_put_text(out, "HOME", 4);
    out = hmq_resp_put_text(out, a->node, a->node_len);
    *words = (uint32_t)(2 + 2 * count + 3);
    return hmq_resp_put_number(out, (uint64_t)a->n);
}

bool hmq_route_each(hmq_engine *e, const slot_range *ranges, size_t count, slot_use *use, void *context) {
    slot_range some[PLAN_MOST_SLOTS];
    hmq_slot_set links = {{0}}; /* of the first HMQ_MOST_LINKS + 1 bits, the links that have any */
    if (!make_table(e)) return false;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t slot = ranges[i].first; slot <= ranges[i].last; slot++) {
            const uint32_t link = e->slot_links[slot] == HMQ_NO_LINK ? HMQ_MOST_LINKS : e->slot_links[slot];
            links.words[link / 64] |= 1ULL << (link % 64);
        }
    }
    for (uint32_t bit = 0; bit <= HMQ_MOST_LINKS; bit++) {
        if ((links.words[bit / 64] >> (bit % 64) & 1) == 0) continue;
        const uint32_t link = bit == HMQ_MOST_LINKS ? HMQ_NO_LINK : bit;
        size_t used = 0, slots = 0;
        for (size_t i = 0; i < count; i++) {
            for (uint32_t slot = ranges[i].first; slot <= ranges[i].last; slot++) {
                if (e->slot_links[slot] != link) continue;
                if (slots == PLAN_MOST_SLOTS) {
                    if (!use(e, context, link, some, used)) return false;
                    used = slots = 0;
                }
                if (used > 0 && some[used - 1].last + 1U == slot)
                    some[used - 1].last++;
                else
                    some[used++] = (slot_range){(uint16_t)slot, (uint16_t)slot};
                slots++;
            }
        }
        if (used > 0 && !use(e, context, link, some, used)) return false;
    }
    return true;
}

/* Adds a part of the plan; false: nobody has these slots, or no memory. */
static bool plan_part_of(hmq_engine *e, void *context, uint32_t link, const slot_range *ranges, size_t count) {
    route_answer *a = context;
    plan_part part = {.link = link};
    const size_t most = sizeof part + hmq_route_tail_bytes(count);
    uint8_t *room = link == HMQ_NO_LINK ? NULL : hmq_bytes_room(&e->allocator, &a->plan, most);
    if (room == NULL) return false;
    const uint8_t *end = hmq_route_put_tail(room + sizeof part, a, ranges, count, &part.words);
    part.len = (uint32_t)(end - room - (ptrdiff_t)sizeof part);
    memcpy(room, &part, sizeof part);
    hmq_bytes_written(&a->plan, (size_t)(end - room));
    return true;
}

const hmq_bytes *hmq_route_plan(hmq_engine *e, route_answer *a) {
    if (a->planned == e->slots_version && a->planned != 0) return &a->plan;
    const size_t before = a->plan.capacity;
    hmq_bytes_clear(&a->plan);
    bool is_whole = e->slots_version != 0 && hmq_route_each(e, a->ranges, a->range_count, plan_part_of, a);
    a->planned = is_whole ? e->slots_version : 0;
    if (a->cache != NULL) {
        a->counted += a->plan.capacity - before;
        a->cache->bytes += a->plan.capacity - before;
    }
    return is_whole ? &a->plan : NULL;
}
