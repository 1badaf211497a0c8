/* table.c - the routes of the whole cluster. */
#include "cluster/table.h"

#include <string.h>
#include <sys/random.h>

#include "base/hash.h"
#include "topic/trie.h"
#include "server/numbers.h"
#include "server/timers.h"

#define BUCKETS 1024 /* of topics, by their first level */
#define WIDE BUCKETS /* filters whose first level is a wildcard */
#define ENDS 16      /* pages that ended within a slot, of feeds under way at the same time */

static struct {
    long long generation; /* 0: none yet */
    hmq_trie *routes;     /* subscriber: the slot; options: the token; NULL: no route yet */
    uint32_t last_token;
    hmq_slot_set covered;
    unsigned long long versions[BUCKETS + 1];
    server_string *ends[ENDS];
    unsigned next_end;
} table;

/* ---- what was forgotten ------------------------------------------------------------------------------------ */

#define STEP_US 500
#define STEP_NODES 256       /* between two looks at the clock */
#define NODES_WITH_A_ROUTE 8 /* that are freed when a route is added: more than it takes */
#define PERIOD_MS 1

typedef struct forgotten {
    struct forgotten *next;
    hmq_trie *routes;
} forgotten;

static forgotten *forgotten_routes;
static module_timer freeing;

/* Frees about so many nodes; true if nothing is left. */
static bool free_some(size_t nodes) {
    forgotten *first = forgotten_routes;
    if (first != NULL && hmq_trie_free_some(first->routes, nodes)) {
        forgotten_routes = first->next;
        sv.Free(first);
    }
    return forgotten_routes == NULL;
}

static void free_step(server_ctx *ctx, void *data) {
    (void)ctx, (void)data;
    uint64_t until_us = monotonic_us() + STEP_US;
    while (!free_some(STEP_NODES)) {
        if (monotonic_us() < until_us) continue;
        timers_arm(&freeing, PERIOD_MS);
        return;
    }
}

static void forget_routes(hmq_trie *routes) {
    if (routes == NULL || hmq_trie_free_some(routes, STEP_NODES)) return;
    forgotten *f = sv.Alloc(sizeof *f);
    *f = (forgotten){.next = forgotten_routes, .routes = routes};
    forgotten_routes = f;
    freeing.fire = free_step;
    if (!freeing.armed) timers_arm(&freeing, PERIOD_MS);
}

size_t table_forgotten_bytes(void) {
    size_t bytes = 0;
    for (const forgotten *f = forgotten_routes; f != NULL; f = f->next) bytes += hmq_trie_bytes(f->routes);
    return bytes;
}

/* ---- generations ------------------------------------------------------------------------------------------- */

long long table_generation(void) {
    if (table.generation == 0) table_forget(0);
    return table.generation;
}

void table_forget(long long above) {
    long long now_us = (long long)clock_us();
    if (above < table.generation) above = table.generation;
    forget_routes(table.routes);
    for (size_t i = 0; i < ENDS; i++) {
        if (table.ends[i] != NULL) sv.FreeString(NULL, table.ends[i]);
    }
    memset(&table, 0, sizeof table);
    table.generation = now_us > above ? now_us : above + 1;
}

/* ---- routes ------------------------------------------------------------------------------------------------ */

static hmq_trie *routes(void) {
    uint64_t random[2];
    if (table.routes != NULL) return table.routes;
    table.routes = hmq_trie_new(&server_allocator);
    if (getrandom(random, sizeof random, 0) == (ssize_t)sizeof random)
        hmq_trie_seed(table.routes, random[0], random[1]); /* else clients could choose levels that collide */
    return table.routes;
}

static unsigned bucket_of(hmq_slice text) {
    static const hmq_hash_seed seed;
    const uint8_t *end = text.len > 0 ? memchr(text.data, '/', text.len) : NULL;
    size_t len = end == NULL ? text.len : (size_t)(end - text.data);
    return (unsigned)(hmq_hash_text(&seed, (const char *)text.data, len) % BUCKETS);
}

static void changed(hmq_slice filter) {
    bool is_wide = filter.data[0] == '#' || (filter.data[0] == '+' && (filter.len == 1 || filter.data[1] == '/'));
    table.versions[is_wide ? WIDE : bucket_of(filter)]++;
}

static bool set(hmq_slice filter, unsigned slot) {
    if (forgotten_routes != NULL) free_some(NODES_WITH_A_ROUTE);
    if (table_bytes() >= (size_t)settings.max_route_bytes) return false;
    if (++table.last_token == 0) table.last_token = 1;
    hmq_trie_set(routes(), (const char *)filter.data, filter.len, slot, table.last_token);
    changed(filter);
    return true;
}

uint32_t table_token(hmq_slice filter, unsigned slot) {
    uint32_t token;
    if (table.routes == NULL) return 0;
    return hmq_trie_get(table.routes, (const char *)filter.data, filter.len, slot, &token) ? token : 0;
}

bool table_add(hmq_slice filter, unsigned slot) {
    return set(filter, slot);
}

bool table_feed(hmq_slice filter, unsigned slot) {
    return table_token(filter, slot) != 0 || set(filter, slot);
}

void table_remove(hmq_slice filter, unsigned slot) {
    if (table_token(filter, slot) == 0) return;
    hmq_trie_remove(table.routes, (const char *)filter.data, filter.len, slot);
    changed(filter);
}

/* ---- feeds ------------------------------------------------------------------------------------------------- */

void table_mark_covered(const hmq_slot_set *slots) {
    for (size_t i = 0; i < HMQ_SLOTS / 64; i++) table.covered.words[i] |= slots->words[i];
}

void table_feed_note_end(hmq_slice cursor) {
    if (table_feed_continues(cursor)) return;
    server_string **end = &table.ends[table.next_end++ % ENDS];
    if (*end != NULL) sv.FreeString(NULL, *end);
    *end = sv.CreateString(NULL, (const char *)cursor.data, cursor.len);
}

bool table_feed_continues(hmq_slice cursor) {
    for (size_t i = 0; i < ENDS; i++) {
        if (table.ends[i] == NULL) continue;
        hmq_slice end = slice_of(table.ends[i]);
        if (hmq_slice_equal(end, cursor)) return true;
    }
    return false;
}

/* ---- answers ----------------------------------------------------------------------------------------------- */

const hmq_slot_set *table_covered_slots(void) {
    return &table.covered;
}

unsigned table_covered_count(void) {
    unsigned count = 0;
    for (size_t i = 0; i < HMQ_SLOTS / 64; i++) count += (unsigned)__builtin_popcountll(table.covered.words[i]);
    return count;
}

unsigned long long table_version(hmq_slice topic) {
    return table.versions[WIDE] + table.versions[bucket_of(topic)];
}

static bool take(void *context, uint64_t slot, uint32_t token) {
    (void)token;
    hmq_slot_set_add(context, (unsigned)slot, (unsigned)slot);
    return true;
}

/* Nodes and routes that are visited for one answer: about 1 ms. */
#define MATCH_UNITS 16384

void table_match(hmq_slice topic, hmq_slot_set *slots) {
    memset(slots, 0, sizeof *slots);
    size_t units = MATCH_UNITS;
    hmq_trie_place place = {.depth = 0};
    const char *name = (const char *)topic.data;
    if (table.routes == NULL || hmq_trie_match_some(table.routes, name, topic.len, &place, &units, take, slots)) return;
    hmq_slot_set_add(slots, 0, HMQ_SLOTS - 1);
}

size_t table_routes(void) {
    return table.routes == NULL ? 0 : hmq_trie_pairs(table.routes);
}

size_t table_bytes(void) {
    return table.routes == NULL ? 0 : hmq_trie_bytes(table.routes);
}

/* The first slot, from this one on, that is in the set (or, with is_in false, is not); HMQ_SLOTS: there is no such slot. */
static unsigned next_slot(const hmq_slot_set *set, unsigned from, bool is_in) {
    for (unsigned word = from / 64; word < HMQ_SLOTS / 64; word++, from = word * 64) {
        uint64_t found = (is_in ? set->words[word] : ~set->words[word]) & (UINT64_MAX << (from % 64));
        if (found != 0) return word * 64 + (unsigned)__builtin_ctzll(found);
    }
    return HMQ_SLOTS;
}

void reply_ranges(server_ctx *ctx, const hmq_slot_set *set, bool are_in) {
    long count = 0;
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    for (unsigned end, first = next_slot(set, 0, are_in); first < HMQ_SLOTS; first = next_slot(set, end, are_in)) {
        end = next_slot(set, first, !are_in);
        sv.ReplyWithLongLong(ctx, first);
        sv.ReplyWithLongLong(ctx, end - 1);
        count += 2;
    }
    sv.ReplySetArrayLength(ctx, count);
}
