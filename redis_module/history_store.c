/* history_store.c - reads the policies of history and finds the one of a topic. */
#include "history_store.h"

#include <string.h>

#include "../src/history_patterns.h"
#include "../src/topic.h"
#include "history_live.h"

#define KEY_SUFFIX "}_history_store"
#define FILTER_FIELD "filter "
#define SEED_DIGITS 32
#define DEFAULT_HOLD (1LL << 30) /* without a limit of bytes */

struct history_stores {
    server_dict *by_key; /* -> history_store */
    server_dict *removed; /* the same */
    hmq_trie *filters;   /* subscriber: history_store * */
};

history_stores *history_stores_new(void) {
    history_stores *stores = sv.Alloc(sizeof *stores);
    *stores = (history_stores){sv.CreateDict(NULL), sv.CreateDict(NULL), hmq_trie_new(&server_allocator)};
    return stores;
}

static void store_free(history_store *store) {
    sv.FreeString(NULL, store->key);
    sv.FreeDict(NULL, store->filters);
    for (unsigned shard = 0; shard < store->shards; shard++) history_live_free(store->live[shard]);
    sv.Free(store->live);
    sv.Free(store->looked);
    sv.Free(store);
}

static void free_all(server_dict *by_key) {
    server_dict_iter *iter = sv.DictIteratorStartC(by_key, "^", NULL, 0);
    void *store;
    while (sv.DictNextC(iter, NULL, &store)) store_free(store);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, by_key);
}

void history_stores_free(history_stores *stores) {
    free_all(stores->by_key);
    free_all(stores->removed);
    hmq_trie_free(stores->filters);
    sv.Free(stores);
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

bool history_store_is_key(hmq_slice name) {
    const size_t n = sizeof KEY_SUFFIX - 1;
    if (name.len <= n + 1 || name.len > n + 1 + HISTORY_NAME_MAX || name.data[0] != '{') return false;
    if (memcmp(name.data + name.len - n, KEY_SUFFIX, n) != 0) return false;
    for (size_t i = 1; i < name.len - n; i++) {
        if (name.data[i] == '{' || name.data[i] == '}' || name.data[i] == '/') return false;
    }
    return true;
}

static int digit_of(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_seed(const server_string *value, hmq_hash_seed *seed) {
    hmq_slice text = slice_of(value);
    uint64_t halves[2] = {0, 0};
    if (text.len != SEED_DIGITS) return false;
    for (size_t i = 0; i < SEED_DIGITS; i++) {
        int digit = digit_of(text.data[i]);
        if (digit < 0) return false;
        halves[i / 16] = halves[i / 16] << 4 | (uint64_t)digit;
    }
    *seed = (hmq_hash_seed){halves[0], halves[1]};
    return true;
}

static bool read_number(const server_string *value, long long min, long long max, long long *number) {
    return value != NULL && sv.StringToLongLong(value, number) == SERVER_OK && *number >= min && *number <= max;
}

static void take_filter(server_key *key, server_string *field, server_string *value, void *data) {
    (void)key, (void)value;
    const size_t n = sizeof FILTER_FIELD - 1;
    history_store *store = data;
    hmq_slice text = slice_of(field), group, inner;
    if (text.len <= n || memcmp(text.data, FILTER_FIELD, n) != 0) return;
    const char *filter = (const char *)text.data + n;
    if (hmq_topic_check_filter(filter, text.len - n) != HMQ_TOPIC_OK) return;
    if (hmq_topic_split_share(filter, text.len - n, &group, &inner)) return;
    if (sv.DictSize(store->filters) < HISTORY_FILTERS_MAX) sv.DictSetC(store->filters, filter, text.len - n, store);
}

static bool take_learn(server_key *hash, history_store *store) {
    server_string *value = NULL;
    sv.HashGet(hash, SERVER_HASH_CFIELDS, "learn", &value, NULL);
    bool right = value == NULL || read_number(value, 0, INT32_MAX, &store->learn_s);
    if (value != NULL) sv.FreeString(NULL, value);
    return right;
}

/* After `shards`. */
static bool take_spread(server_key *hash, history_store *store) {
    server_string *spread = NULL, *had = NULL;
    long long numbers[2] = {store->shards, 0};
    sv.HashGet(hash, SERVER_HASH_CFIELDS, "spread", &spread, "had", &had, NULL);
    bool right = (spread == NULL || read_number(spread, 1, store->shards, &numbers[0])) &&
                 (had == NULL || read_number(had, 0, INT64_MAX, &numbers[1]));
    if (spread != NULL) sv.FreeString(NULL, spread);
    if (had != NULL) sv.FreeString(NULL, had);
    store->spread = (unsigned)numbers[0];
    store->had = (uint64_t)numbers[1];
    return right;
}

static bool take_policy(server_key *hash, history_store *store) {
    server_string *f[8] = {NULL};
    long long shards, levels;
    store->hold = -1;
    sv.HashGet(hash, SERVER_HASH_CFIELDS, "shards", &f[0], "levels", &f[1], "age", &f[2], "epoch", &f[3], "bytes",
               &f[4], "seed", &f[5], "hold", &f[6], "removed", &f[7], NULL);
    bool right = read_number(f[0], 1, HISTORY_SHARDS_MAX, &shards) &&
                 read_number(f[1], 1, HMQ_PATTERNS_MAX_LEVELS, &levels) &&
                 read_number(f[2], 0, INT32_MAX, &store->age_s) && read_number(f[3], 1, INT32_MAX, &store->epoch_s) &&
                 read_number(f[4], 0, INT64_MAX, &store->bytes) && f[5] != NULL && read_seed(f[5], &store->seed) &&
                 (f[6] == NULL || read_number(f[6], 0, INT64_MAX, &store->hold));
    store->removed = f[7] != NULL;
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++) {
        if (f[i] != NULL) sv.FreeString(NULL, f[i]);
    }
    if (!right || !take_learn(hash, store)) return false;
    store->shards = (unsigned)shards;
    if (!take_spread(hash, store)) return false;
    store->levels = (unsigned)levels;
    server_scan_cursor *cursor = sv.ScanCursorCreate();
    while (sv.ScanKey(hash, cursor, take_filter, store)) {}
    sv.ScanCursorDestroy(cursor);
    return sv.DictSize(store->filters) > 0;
}

/* NULL if there is no policy under this name. */
static history_store *read_store(server_ctx *ctx, hmq_slice key) {
    history_store *store = sv.Calloc(1, sizeof *store);
    store->key = sv.CreateString(NULL, (const char *)key.data, key.len);
    store->name = (hmq_slice){slice_of(store->key).data + 1, key.len - sizeof KEY_SUFFIX};
    store->filters = sv.CreateDict(NULL);
    server_key *hash = sv.OpenKey(ctx, store->key, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool right = hash != NULL && sv.KeyType(hash) == SERVER_HASH && take_policy(hash, store);
    if (hash != NULL) sv.CloseKey(hash);
    if (right) {
        store->live = sv.Calloc(store->shards, sizeof(history_live *));
        store->looked = sv.Calloc(1, sizeof *store->looked);
        return store;
    }
    store->shards = 0;
    store_free(store);
    return NULL;
}

static void set_filters(history_stores *stores, history_store *store, bool there) {
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    size_t len;
    const char *filter;
    while ((filter = sv.DictNextC(iter, &len, NULL)) != NULL) {
        if (there)
            hmq_trie_set(stores->filters, filter, len, (uint64_t)(uintptr_t)store, 0);
        else
            hmq_trie_remove(stores->filters, filter, len, (uint64_t)(uintptr_t)store);
    }
    sv.DictIteratorStop(iter);
}

/* Takes the store out of a dictionary; NULL if it has none. */
static history_store *take_out(server_dict *by_key, hmq_slice key) {
    history_store *store = sv.DictGetC(by_key, key.data, key.len, NULL);
    if (store != NULL) sv.DictDelC(by_key, key.data, key.len, NULL);
    return store;
}

void history_stores_refresh(server_ctx *ctx, history_stores *stores, hmq_slice key) {
    history_store *store = read_store(ctx, key);
    history_store *old = take_out(stores->by_key, key), *removed = take_out(stores->removed, key);
    if (old != NULL) set_filters(stores, old, false);
    if (store != NULL) {
        sv.DictSetC(store->removed ? stores->removed : stores->by_key, key.data, key.len, store);
        if (!store->removed) set_filters(stores, store, true);
    }
    if (old != NULL) store_free(old); /* last: `key` may be its */
    if (removed != NULL) store_free(removed);
}

long long history_store_hold(const history_store *store) {
    if (store->hold >= 0) return store->hold;
    return store->bytes > 0 ? store->bytes : DEFAULT_HOLD;
}

/* ---- finding ----------------------------------------------------------------------------------------------- */

static const history_store *after_in(server_dict *by_key, hmq_slice key) {
    server_dict_iter *iter = sv.DictIteratorStartC(by_key, key.len == 0 ? "^" : ">", key.data, key.len);
    void *store = NULL;
    if (!sv.DictNextC(iter, NULL, &store)) store = NULL;
    sv.DictIteratorStop(iter);
    return store;
}

static hmq_slice key_of(const history_store *store) {
    return store == NULL ? (hmq_slice){NULL, 0} : slice_of(store->key);
}

const history_store *history_stores_after(const history_stores *stores, hmq_slice key) {
    return after_in(stores->by_key, key);
}

const history_store *history_stores_next(const history_stores *stores, const history_store *after) {
    return after_in(stores->by_key, key_of(after));
}

const history_store *history_stores_next_removed(const history_stores *stores, const history_store *after) {
    return after_in(stores->removed, key_of(after));
}

/* On the way of each HISTORY.APPEND, hence without printf. */
static const history_store *find_in(server_dict *by_key, hmq_slice name) {
    char key[HISTORY_NAME_MAX + sizeof KEY_SUFFIX + 1];
    if (name.len > HISTORY_NAME_MAX) return NULL;
    key[0] = '{';
    memcpy(key + 1, name.data, name.len);
    memcpy(key + 1 + name.len, KEY_SUFFIX, sizeof KEY_SUFFIX - 1);
    return sv.DictGetC(by_key, key, name.len + sizeof KEY_SUFFIX, NULL);
}

const history_store *history_stores_find(const history_stores *stores, hmq_slice name) {
    return find_in(stores->by_key, name);
}

bool history_stores_is_removed(const history_stores *stores, hmq_slice name) {
    return find_in(stores->removed, name) != NULL;
}

static int compare_names(hmq_slice a, hmq_slice b) {
    int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static bool take_store(void *context, uint64_t subscriber, uint32_t options) {
    (void)options;
    const history_store **found = context, *store = (const history_store *)(uintptr_t)subscriber;
    if (*found == NULL || compare_names(store->name, (*found)->name) < 0) *found = store;
    return true;
}

const history_store *history_stores_of_topic(const history_stores *stores, hmq_slice topic) {
    const history_store *found = NULL;
    if (hmq_trie_pairs(stores->filters) == 0) return NULL;
    hmq_trie_match(stores->filters, (const char *)topic.data, topic.len, take_store, &found);
    return found;
}

/* The level that begins at *at; steps over it and the '/' behind it, to len + 1 behind the last. */
static hmq_slice take_level(hmq_slice filter, size_t *at) {
    hmq_slice level = {filter.data + *at, 0};
    while (*at + level.len < filter.len && level.data[level.len] != '/') level.len++;
    *at += level.len + 1;
    return level;
}

static bool level_is(hmq_slice level, char wildcard) {
    return level.len == 1 && level.data[0] == (uint8_t)wildcard;
}

static bool levels_overlap(hmq_slice a, hmq_slice b, bool first) {
    bool a_wild = level_is(a, '+') || level_is(a, '#'), b_wild = level_is(b, '+') || level_is(b, '#');
    if (a_wild && b_wild) return true;
    hmq_slice concrete = a_wild ? b : a;
    if (a_wild || b_wild) return !(first && concrete.len > 0 && concrete.data[0] == '$');
    return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

bool history_filters_overlap(hmq_slice a, hmq_slice b) {
    size_t at_a = 0, at_b = 0;
    while (at_a <= a.len && at_b <= b.len) {
        bool first = at_a == 0;
        hmq_slice level_a = take_level(a, &at_a), level_b = take_level(b, &at_b);
        if (!levels_overlap(level_a, level_b, first)) return false;
        if (level_is(level_a, '#') || level_is(level_b, '#')) return true;
    }
    if (at_a > a.len && at_b > b.len) return true;
    hmq_slice longer = at_a <= a.len ? a : b; /* "x/#" matches "x", too */
    size_t rest = at_a <= a.len ? at_a : at_b;
    return rest > 1 && longer.len - rest == 1 && longer.data[rest] == '#'; /* of "/#" that would be no topic at all */
}

static bool store_overlaps(const history_store *store, hmq_slice filter) {
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    size_t len;
    const char *own;
    bool overlaps = false;
    while (!overlaps && (own = sv.DictNextC(iter, &len, NULL)) != NULL)
        overlaps = history_filters_overlap((hmq_slice){(const uint8_t *)own, len}, filter);
    sv.DictIteratorStop(iter);
    return overlaps;
}

size_t history_stores_of_filter(const history_stores *stores, hmq_slice filter, const history_store **first) {
    size_t count = 0;
    for (const history_store *s = NULL; (s = history_stores_next(stores, s)) != NULL;) {
        if (store_overlaps(s, filter) && count++ == 0) *first = s;
    }
    return count;
}

bool history_store_covers(const history_store *store, hmq_slice filter) {
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    size_t len;
    const char *own;
    bool covers = false;
    while (!covers && (own = sv.DictNextC(iter, &len, NULL)) != NULL)
        covers = hmq_topic_covers(own, len, (const char *)filter.data, filter.len);
    sv.DictIteratorStop(iter);
    return covers;
}

const history_store *history_stores_covering(const history_stores *stores, hmq_slice filter) {
    const history_store *s = NULL;
    while ((s = history_stores_next(stores, s)) != NULL && !history_store_covers(s, filter)) {}
    return s;
}

/* ---- checking ---------------------------------------------------------------------------------------------- */

static bool same_filters(const history_store *a, const history_store *b) {
    server_dict_iter *iter = sv.DictIteratorStartC(a->filters, "^", NULL, 0);
    size_t len;
    const char *filter;
    int missing = 0;
    while (!missing && (filter = sv.DictNextC(iter, &len, NULL)) != NULL)
        sv.DictGetC(b->filters, filter, len, &missing);
    sv.DictIteratorStop(iter);
    return !missing && sv.DictSize(a->filters) == sv.DictSize(b->filters);
}

static bool same_store(const history_store *a, const history_store *b) {
    return a->shards == b->shards && a->spread == b->spread && a->had == b->had && a->levels == b->levels &&
           a->age_s == b->age_s && a->epoch_s == b->epoch_s && a->bytes == b->bytes && a->hold == b->hold &&
           a->learn_s == b->learn_s && a->seed.low == b->seed.low && a->seed.high == b->seed.high && same_filters(a, b);
}

void history_stores_compare(const history_stores *a, const history_stores *b,
                            void (*tell)(void *context, const char *what, hmq_slice name), void *context) {
    size_t filters = 0;
    for (const history_store *s = NULL; (s = history_stores_next(a, s)) != NULL;) {
        hmq_slice key = slice_of(s->key);
        const history_store *other = sv.DictGetC(b->by_key, key.data, key.len, NULL);
        if (other == NULL || !same_store(s, other)) tell(context, "policy of history differs from its key", key);
        filters += sv.DictSize(s->filters);
    }
    for (const history_store *s = NULL; (s = history_stores_next_removed(a, s)) != NULL;) {
        hmq_slice key = slice_of(s->key);
        const history_store *other = sv.DictGetC(b->removed, key.data, key.len, NULL);
        if (other == NULL || !same_store(s, other))
            tell(context, "removed policy of history differs from its key", key);
    }
    if (hmq_trie_pairs(a->filters) != filters)
        tell(context, "the trie of history has another number of filters than the policies", (hmq_slice){NULL, 0});
}
