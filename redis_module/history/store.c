/* store.c - reads the policies of history, and finds the one for a topic. */
#include "history/store.h"

#include <string.h>

#include "base/hex.h"
#include "topic/topic.h"
#include "server/numbers.h"
#include "server/slots.h"
#include "index/filters.h"
#include "history/patterns.h"

#define KEY_SUFFIX "}_history_store"
#define FILTER_FIELD "filter "
#define KEY_BYTES (HISTORY_NAME_MAX + 32)
#define DEFAULT_HOLD (1LL << 30) /* if there is no limit of bytes */

struct history_stores {
    index_t *index;       /* that it is a part of */
    server_dict *by_key;  /* -> history_store */
    server_dict *removed; /* the same */
    server_dict *copies;  /* in a cluster: key of a copy -> history_store, without remembered state */
    hmq_trie *filters;    /* subscriber: history_store * */
};

static void (*free_live)(struct history_live *live);

history_stores *history_stores_new(index_t *index, void (*live_free)(struct history_live *live)) {
    free_live = live_free;
    history_stores *stores = sv.Alloc(sizeof *stores);
    *stores = (history_stores){index, sv.CreateDict(NULL), sv.CreateDict(NULL), sv.CreateDict(NULL),
                               hmq_trie_new(&server_allocator)};
    return stores;
}

static void store_free(history_store *store) {
    sv.FreeString(NULL, store->key);
    sv.FreeDict(NULL, store->filters);
    for (unsigned shard = 0; store->live != NULL && shard < store->shards; shard++) free_live(store->live[shard]);
    sv.Free(store->live);
    sv.Free(store->checked_turns);
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
    free_all(stores->copies);
    hmq_trie_free(stores->filters);
    sv.Free(stores);
}

/* ---- names ------------------------------------------------------------------------------------------------- */

/* The tag of a policy's key; empty if the name is not that of a policy. */
static hmq_slice tag_of(hmq_slice key) {
    const size_t n = sizeof KEY_SUFFIX - 1;
    hmq_slice tag = {key.data + 1, key.len - n - 1};
    if (key.len <= n + 1 || key.data[0] != '{' || memcmp(key.data + key.len - n, KEY_SUFFIX, n) != 0) tag.len = 0;
    for (size_t i = 0; i < tag.len; i++) {
        if (tag.data[i] == '{' || tag.data[i] == '}') tag.len = 0;
    }
    return tag;
}

/* Reads "<store>/<shard>", with the number in its written form; false for any other tag. */
static bool take_copy(hmq_slice tag, hmq_slice *name, unsigned *shard) {
    const uint8_t *slash = tag.len == 0 ? NULL : memchr(tag.data, '/', tag.len);
    if (slash == NULL) return false;
    *name = (hmq_slice){tag.data, (size_t)(slash - tag.data)};
    hmq_slice number = {slash + 1, tag.len - name->len - 1};
    if (number.len < 1 || number.len > 2 || (number.len == 2 && number.data[0] == '0')) return false;
    *shard = 0;
    for (size_t i = 0; i < number.len; i++) {
        if (number.data[i] < '0' || number.data[i] > '9') return false;
        *shard = *shard * 10 + (unsigned)(number.data[i] - '0');
    }
    return *shard < HISTORY_SHARDS_MAX && name->len > 0 && name->len <= HISTORY_NAME_MAX;
}

bool history_store_is_key(hmq_slice name) {
    hmq_slice tag = tag_of(name), store;
    unsigned shard;
    if (can.cluster) return take_copy(tag, &store, &shard);
    return tag.len > 0 && tag.len <= HISTORY_NAME_MAX && memchr(tag.data, '/', tag.len) == NULL;
}

/* Writes "{<store>}_history_store", or the same with "/<shard>" after the store's name; returns its length.  Every
 * HISTORY.APPEND calls it, so it avoids printf. */
static size_t put_key(char key[KEY_BYTES], hmq_slice name, int shard) {
    size_t len = 0;
    key[len++] = '{';
    memcpy(key + len, name.data, name.len);
    len += name.len;
    if (shard >= 0) key[len++] = '/';
    if (shard >= 10) key[len++] = (char)('0' + shard / 10);
    if (shard >= 0) key[len++] = (char)('0' + shard % 10);
    memcpy(key + len, KEY_SUFFIX, sizeof KEY_SUFFIX - 1);
    return len + sizeof KEY_SUFFIX - 1;
}

server_string *history_policy_key(hmq_slice name, unsigned shard) {
    char key[KEY_BYTES];
    return sv.CreateString(NULL, key, put_key(key, name, can.cluster ? (int)shard : -1));
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

bool history_seed_read(const server_string *value, hmq_hash_seed *seed) {
    hmq_slice text = slice_of(value);
    uint64_t halves[2] = {0, 0};
    if (text.len != HISTORY_SEED_DIGITS) return false;
    for (size_t i = 0; i < HISTORY_SEED_DIGITS; i++) {
        int digit = hmq_hex_digit(text.data[i]);
        if (digit < 0) return false;
        halves[i / 16] = halves[i / 16] << 4 | (uint64_t)digit;
    }
    *seed = (hmq_hash_seed){halves[0], halves[1]};
    return true;
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
    bool right = value == NULL || number_of(value, 0, INT32_MAX, &store->learn_s);
    if (value != NULL) sv.FreeString(NULL, value);
    return right;
}

static bool take_changed(server_key *hash, history_store *store) {
    server_string *value = NULL;
    sv.HashGet(hash, SERVER_HASH_CFIELDS, "changed", &value, NULL);
    bool right = value == NULL || number_of(value, 0, INT64_MAX, &store->changed_ms);
    if (value != NULL) sv.FreeString(NULL, value);
    return right;
}

/* Reads the spread; needs `shards`. */
static bool take_spread(server_key *hash, history_store *store) {
    server_string *spread = NULL, *had = NULL;
    long long numbers[2] = {store->shards, 0};
    sv.HashGet(hash, SERVER_HASH_CFIELDS, "spread", &spread, "had", &had, NULL);
    bool right = (spread == NULL || number_of(spread, 1, store->shards, &numbers[0])) &&
                 (had == NULL || number_of(had, 0, INT64_MAX, &numbers[1]));
    if (spread != NULL) sv.FreeString(NULL, spread);
    if (had != NULL) sv.FreeString(NULL, had);
    store->spread = (unsigned)numbers[0];
    store->former_shards = (uint64_t)numbers[1];
    return right;
}

static bool take_policy(server_key *hash, history_store *store) {
    server_string *f[8] = {NULL};
    long long shards, levels;
    store->hold = -1;
    sv.HashGet(hash, SERVER_HASH_CFIELDS, "shards", &f[0], "levels", &f[1], "age", &f[2], "epoch", &f[3], "bytes",
               &f[4], "seed", &f[5], "hold", &f[6], "removed", &f[7], NULL);
    bool right = number_of(f[0], 1, HISTORY_SHARDS_MAX, &shards) &&
                 number_of(f[1], 1, HMQ_PATTERNS_MAX_LEVELS, &levels) && number_of(f[2], 0, INT32_MAX, &store->age_s) &&
                 number_of(f[3], 1, INT32_MAX, &store->epoch_s) && number_of(f[4], 0, INT64_MAX, &store->bytes) &&
                 f[5] != NULL && history_seed_read(f[5], &store->seed) &&
                 (f[6] == NULL || number_of(f[6], 0, INT64_MAX, &store->hold));
    store->removed = f[7] != NULL;
    for (size_t i = 0; i < sizeof f / sizeof f[0]; i++) {
        if (f[i] != NULL) sv.FreeString(NULL, f[i]);
    }
    if (!right || !take_learn(hash, store) || !take_changed(hash, store)) return false;
    store->shards = (unsigned)shards;
    if (!take_spread(hash, store)) return false;
    store->levels = (unsigned)levels;
    server_scan_cursor *cursor = sv.ScanCursorCreate();
    while (sv.ScanKey(hash, cursor, take_filter, store)) {}
    sv.ScanCursorDestroy(cursor);
    return sv.DictSize(store->filters) > 0;
}

/* Reads the policy in this key, without remembered state; NULL if there is none. */
static history_store *read_store(server_ctx *ctx, hmq_slice key) {
    history_store *store = sv.Calloc(1, sizeof *store);
    store->key = sv.CreateString(NULL, (const char *)key.data, key.len);
    store->name = tag_of(slice_of(store->key));
    store->filters = sv.CreateDict(NULL);
    server_key *hash = sv.OpenKey(ctx, store->key, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool right = sv.KeyType(hash) == SERVER_HASH && take_policy(hash, store);
    if (hash != NULL) sv.CloseKey(hash);
    if (right) return store;
    store_free(store);
    return NULL;
}

static void make_room(history_store *store) {
    store->live = sv.Calloc(store->shards, sizeof *store->live);
    store->checked_turns = sv.Calloc(store->shards, sizeof *store->checked_turns);
}

/* The store that this is a copy of. */
static history_store *store_of_copy(const history_store *copy, hmq_slice name) {
    history_store *store = sv.Alloc(sizeof *store);
    char key[KEY_BYTES];
    *store = *copy;
    store->key = sv.CreateString(NULL, key, put_key(key, name, -1));
    store->name = tag_of(slice_of(store->key));
    store->filters = sv.CreateDict(NULL);
    server_dict_iter *iter = sv.DictIteratorStartC(copy->filters, "^", NULL, 0);
    size_t len;
    const char *filter;
    while ((filter = sv.DictNextC(iter, &len, NULL)) != NULL) sv.DictSetC(store->filters, filter, len, store);
    sv.DictIteratorStop(iter);
    return store;
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

/* Removes and returns the store of a dictionary; NULL if there is none. */
static history_store *take_out(server_dict *by_key, hmq_slice key) {
    history_store *store = sv.DictGetC(by_key, key.data, key.len, NULL);
    if (store != NULL) sv.DictDelC(by_key, key.data, key.len, NULL);
    return store;
}

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

static bool same_policy(const history_store *a, const history_store *b) {
    return a->removed == b->removed && a->shards == b->shards && a->spread == b->spread &&
           a->former_shards == b->former_shards && a->levels == b->levels && a->age_s == b->age_s &&
           a->epoch_s == b->epoch_s && a->bytes == b->bytes && a->hold == b->hold && a->learn_s == b->learn_s &&
           a->seed.low == b->seed.low && a->seed.high == b->seed.high && same_filters(a, b);
}

/* Replaces the store of this key by `store`; NULL: removes it. */
static void replace_store(history_stores *stores, hmq_slice key, history_store *store) {
    history_store *old = take_out(stores->by_key, key), *removed = take_out(stores->removed, key);
    if (old != NULL) set_filters(stores, old, false);
    if (store != NULL) {
        make_room(store);
        sv.DictSetC(store->removed ? stores->removed : stores->by_key, key.data, key.len, store);
        if (!store->removed) set_filters(stores, store, true);
    }
    if (old != NULL) store_free(old); /* last, because it may own `key` */
    if (removed != NULL) store_free(removed);
}

/* The newest copy, and the set of shards that have one. */
static const history_store *newest_copy(const history_stores *stores, hmq_slice name, uint64_t *copies) {
    const history_store *newest = NULL;
    char key[KEY_BYTES];
    *copies = 0;
    for (int shard = 0; shard < HISTORY_SHARDS_MAX; shard++) {
        size_t len = put_key(key, name, shard);
        const history_store *copy = sv.DictGetC(stores->copies, key, len, NULL);
        if (copy == NULL || (unsigned)shard >= copy->shards) continue;
        *copies |= UINT64_C(1) << shard;
        if (newest == NULL || copy->changed_ms > newest->changed_ms) newest = copy;
    }
    return newest;
}

/* Forgets shards that left with their slots. */
static void forget_shards(history_store *store, uint64_t gone) {
    for (; gone != 0; gone &= gone - 1) {
        int shard = __builtin_ctzll(gone);
        free_live(store->live[shard]);
        store->live[shard] = NULL;
    }
}

/* The remembered shards stay if the store stays. */
static void choose_copy(history_stores *stores, hmq_slice name) {
    uint64_t copies;
    char key[KEY_BYTES];
    size_t len = put_key(key, name, -1);
    const history_store *newest = newest_copy(stores, name, &copies);
    history_store *old = sv.DictGetC(stores->by_key, key, len, NULL);
    if (old == NULL) old = sv.DictGetC(stores->removed, key, len, NULL);
    if (old == NULL || newest == NULL || !same_policy(old, newest)) {
        old = newest == NULL ? NULL : store_of_copy(newest, name);
        replace_store(stores, (hmq_slice){(const uint8_t *)key, len}, old);
    }
    if (newest == NULL) return;
    forget_shards(old, old->copies & ~copies);
    old->copies = copies;
    old->changed_ms = newest->changed_ms;
}

/* A shard takes messages in its slot, as a session does: publishers of a cluster must find it. */
static void announce_filters(const history_stores *stores, const history_store *copy, unsigned slot,
                             void (*tell)(index_t *index, hmq_slice filter, unsigned slot)) {
    if (copy == NULL || copy->removed) return;
    server_dict_iter *iter = sv.DictIteratorStartC(copy->filters, "^", NULL, 0);
    hmq_slice filter;
    while ((filter.data = sv.DictNextC(iter, &filter.len, NULL)) != NULL) tell(stores->index, filter, slot);
    sv.DictIteratorStop(iter);
}

static void refresh_copy(server_ctx *ctx, history_stores *stores, hmq_slice key) {
    history_store *copy = read_store(ctx, key), *old = take_out(stores->copies, key);
    unsigned slot = slots_of_key(key);
    if (copy != NULL) sv.DictSetC(stores->copies, key.data, key.len, copy);
    announce_filters(stores, copy, slot, index_filter_came);
    announce_filters(stores, old, slot, index_filter_went);
    if (old != NULL) store_free(old);
}

void history_stores_refresh(server_ctx *ctx, history_stores *stores, hmq_slice key) {
    hmq_slice tag = tag_of(key), name = tag;
    unsigned shard;
    char copy[KEY_BYTES];
    if (!can.cluster) {
        replace_store(stores, key, read_store(ctx, key));
        return;
    }
    if (take_copy(tag, &name, &shard)) {
        refresh_copy(ctx, stores, key);
    } else {
        for (int s = 0; s < HISTORY_SHARDS_MAX; s++)
            refresh_copy(ctx, stores, (hmq_slice){(const uint8_t *)copy, put_key(copy, name, s)});
    }
    choose_copy(stores, name);
}

void history_stores_each_key(const history_stores *stores, void (*visit)(void *context, hmq_slice key), void *context) {
    server_dict *const dicts[] = {can.cluster ? stores->copies : stores->by_key, stores->removed};
    for (size_t i = 0; i < (can.cluster ? 1 : 2); i++) {
        server_dict_iter *iter = sv.DictIteratorStartC(dicts[i], "^", NULL, 0);
        size_t len;
        const char *key;
        while ((key = sv.DictNextC(iter, &len, NULL)) != NULL) visit(context, (hmq_slice){(const uint8_t *)key, len});
        sv.DictIteratorStop(iter);
    }
}

_Static_assert(HISTORY_NAME_MAX <= HMQ_CURSOR_NAME_MAX, "a cursor names its store");

hmq_cursor_store history_store_identity(const history_store *store) {
    hmq_slice name = store->name;
    hmq_cursor_store identity = {.id = (uint32_t)(hmq_hash_text(&store->seed, (const char *)name.data, name.len) >> 32),
                                 .name_len = (uint8_t)name.len};
    memcpy(identity.name, name.data, name.len);
    return identity;
}

bool history_store_is_of(const history_store *store, const hmq_cursor_store *of) {
    hmq_cursor_store own = history_store_identity(store);
    return own.id == of->id && own.name_len == of->name_len && memcmp(own.name, of->name, own.name_len) == 0;
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

const history_store *history_stores_removed_after(const history_stores *stores, hmq_slice key) {
    return after_in(stores->removed, key);
}

static const history_store *find_in(server_dict *by_key, hmq_slice name) {
    char key[KEY_BYTES];
    if (name.len > HISTORY_NAME_MAX) return NULL;
    size_t len = put_key(key, name, -1);
    return sv.DictGetC(by_key, key, len, NULL);
}

const history_store *history_stores_find(const history_stores *stores, hmq_slice name) {
    return find_in(stores->by_key, name);
}

bool history_stores_is_removed(const history_stores *stores, hmq_slice name) {
    return find_in(stores->removed, name) != NULL;
}

static bool take_store(void *context, uint64_t subscriber, uint32_t options) {
    (void)options;
    const history_store **found = context, *store = (const history_store *)(uintptr_t)subscriber;
    if (*found == NULL || hmq_slice_order(store->name, (*found)->name) < 0) *found = store;
    return true;
}

const history_store *history_stores_of_topic(const history_stores *stores, hmq_slice topic) {
    const history_store *found = NULL;
    if (hmq_trie_pairs(stores->filters) == 0) return NULL;
    hmq_trie_match(stores->filters, (const char *)topic.data, topic.len, take_store, &found);
    return found;
}

/* ---- checking ---------------------------------------------------------------------------------------------- */

static bool same_store(const history_store *a, const history_store *b) {
    return same_policy(a, b) && a->copies == b->copies && a->changed_ms == b->changed_ms;
}

typedef struct comparison {
    void (*differ)(void *context, const char *what, hmq_slice name);
    void *context;
} comparison;

/* Compares the stores of `a`; returns the number of their filters. */
static size_t compare_dicts(const comparison *c, server_dict *a, server_dict *b, const char *what) {
    server_dict_iter *iter = sv.DictIteratorStartC(a, "^", NULL, 0);
    size_t len, filters = 0;
    const char *key;
    void *store;
    while ((key = sv.DictNextC(iter, &len, &store)) != NULL) {
        const history_store *other = sv.DictGetC(b, key, len, NULL);
        if (other == NULL || !same_store(store, other))
            c->differ(c->context, what, (hmq_slice){(const uint8_t *)key, len});
        filters += sv.DictSize(((const history_store *)store)->filters);
    }
    sv.DictIteratorStop(iter);
    return filters;
}

void history_stores_compare(const history_stores *a, const history_stores *b,
                            void (*differ)(void *context, const char *what, hmq_slice name), void *context) {
    comparison c = {differ, context};
    compare_dicts(&c, a->removed, b->removed, "removed policy of history differs from its key");
    compare_dicts(&c, a->copies, b->copies, "copy of a policy of history differs from its key");
    if (hmq_trie_pairs(a->filters) != compare_dicts(&c, a->by_key, b->by_key, "policy of history differs from its key"))
        differ(context, "the trie of history has another number of filters than the policies", (hmq_slice){NULL, 0});
}
