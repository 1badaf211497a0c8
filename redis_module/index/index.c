/* index.c - the in-memory indexes of all databases: made from keys, name by name or by a scan, and kept. */
#include "index/internal.h"

#include <string.h>
#include <sys/random.h>

#include "topic/session_key.h"
#include "topic/topic.h"
#include "index/channels.h"
#include "server/command_slot.h"
#include "history/live.h"
#include "session/owner.h"
#include "queue/usage.h"
#include "routing/retained_cursors.h"
#include "index/retained_topics.h"
#include "index/session_hash.h"
#include "session/identity.h"
#include "routing/share_replay.h"
#include "index/subscription.h"
#include "server/slots.h"
#include "server/session_keys.h"
#include "routing/share_replay_keys.h"

static index_t **indexes; /* by database number */
static int index_count_;
static bool scan_new;      /* the module was loaded into a server with keys: a new index begins with a scan */

/* ---- making and freeing ------------------------------------------------------------------------------------ */

/* So that clients cannot choose levels that collide. */
static void seed(hmq_trie *trie) {
    uint64_t random[2] = {(uint64_t)sv.Milliseconds(), (uint64_t)(uintptr_t)trie};
    if (getrandom(random, sizeof random, 0) == (ssize_t)sizeof random) hmq_trie_seed(trie, random[0], random[1]);
}

index_t *index_new(void) {
    index_t *index = sv.Calloc(1, sizeof *index);
    index->filters = hmq_trie_new(&server_allocator);
    index->retained = sv.CreateDict(NULL);
    seed(index->filters);
    index->sessions = sv.CreateDict(NULL);
    index->retained_keys = sv.CreateDict(NULL);
    index->cursors = sv.CreateDict(NULL);
    index->held = sv.CreateDict(NULL);
    index->claimed = sv.CreateDict(NULL);
    index->shares = sv.CreateDict(NULL);
    index->waiting = sv.CreateDict(NULL);
    index->group_replays = sv.CreateDict(NULL);
    index->usage = usage_new();
    index->opened = session_index_new(index);
    index->histories = history_stores_new();
    index->stale = sv.CreateDict(NULL);
    index->scan_needed = scan_new;
    return index;
}

static void session_free(indexed_session *session) {
    sv.FreeString(NULL, session->key);
    sv.FreeString(NULL, session->inbox);
    sv.FreeString(NULL, session->hash);
    sv.FreeDict(NULL, session->filters);
    sv.Free(session);
}

static void free_retained(retained_entry *entry) {
    sv.FreeString(NULL, entry->key);
    sv.Free(entry);
}

void index_free(index_t *index) {
    server_dict_iter *iter = sv.DictIteratorStartC(index->sessions, "^", NULL, 0);
    void *session;
    while (sv.DictNextC(iter, NULL, &session)) session_free(session);
    sv.DictIteratorStop(iter);
    iter = sv.DictIteratorStartC(index->retained_keys, "^", NULL, 0);
    void *retained;
    while (sv.DictNextC(iter, NULL, &retained)) free_retained(retained);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, index->sessions);
    sv.FreeDict(NULL, index->retained_keys);
    sv.FreeDict(NULL, index->held);
    sv.FreeDict(NULL, index->claimed);
    sv.FreeDict(NULL, index->stale);
    share_free_all(index->shares);
    sv.FreeDict(NULL, index->waiting);
    sv.FreeDict(NULL, index->group_replays);
    session_index_free(index->opened);
    usage_free(index->usage);
    history_stores_free(index->histories);
    hmq_trie_free(index->filters);
    sv.FreeDict(NULL, index->retained);
    retained_cursors_free_all(index->cursors);
    sv.Free(index);
}

index_t *index_at(int db) {
    if (db >= index_count_) {
        indexes = sv.Realloc(indexes, (size_t)(db + 1) * sizeof *indexes);
        while (index_count_ <= db) indexes[index_count_++] = NULL;
    }
    if (indexes[db] == NULL) indexes[db] = index_new();
    return indexes[db];
}

static bool is_pinned(const index_t *index) {
    size_t pins = 0;
    for (size_t part = 0; part < sizeof index->pins / sizeof index->pins[0]; part++) pins += index->pins[part];
    return pins > 0;
}

void index_pin(index_t *index, index_part part) {
    index->pins[part]++;
}

void index_unpin(index_t *index, index_part part) {
    index->pins[part]--;
    if (index->abandoned && !is_pinned(index)) index_free(index);
}

void index_reset(int db) {
    if (db >= index_count_) return;
    index_t *index = indexes[db];
    if (index != NULL && is_pinned(index))
        index->abandoned = true;
    else if (index != NULL)
        index_free(index);
    indexes[db] = NULL;
    if (scan_new) index_at(db)->scan_needed = false;
}

void index_swap(int a, int b) {
    index_at(a), index_at(b);
    index_t *first = indexes[a];
    indexes[a] = indexes[b];
    indexes[b] = first;
}

void index_scan_new(bool scans) {
    scan_new = scans;
}

void index_doubt_all(void) {
    scan_new = true;
    for (int db = 0; db < index_count_; db++) {
        if (indexes[db] != NULL) indexes[db]->scan_needed = true;
    }
}

void index_forget_all(void) {
    scan_new = false;
    for (int db = 0; db < index_count_; db++) index_reset(db);
    scan_new = true;
}

/* ---- sessions ---------------------------------------------------------------------------------------------- */

static indexed_session *session_find(const index_t *index, hmq_slice key) {
    return sv.DictGetC(index->sessions, key.data, key.len, NULL);
}

static indexed_session *session_get(index_t *index, hmq_slice key) {
    indexed_session *session = session_find(index, key);
    if (session != NULL) return session;
    session = sv.Calloc(1, sizeof *session);
    session->key = sv.CreateString(NULL, (const char *)key.data, key.len);
    session->inbox = session_key_name(key, HMQ_SUFFIX_INBOX);
    session->hash = session_key_name(key, HMQ_SUFFIX_SUBSCRIPTIONS);
    session->slot = slots_of_key(key);
    session->filters = sv.CreateDict(NULL);
    sv.DictSetC(index->sessions, key.data, key.len, session);
    return session;
}

static void session_drop(index_t *index, indexed_session *session) {
    hmq_slice key = slice_of(session->key);
    sv.DictDelC(index->sessions, key.data, key.len, NULL);
    session_free(session);
}

/* True if sessions are pinned: the session's filters are read again later. */
static bool defers_session(index_t *index, hmq_slice session_key) {
    if (index->pins[INDEX_SESSIONS] == 0) return false;
    server_string *name = session_key_name(session_key, HMQ_SUFFIX_SUBSCRIPTIONS);
    index_doubt(index, slice_of(name));
    sv.FreeString(NULL, name);
    return true;
}

void index_set_filter(index_t *index, hmq_slice session_key, hmq_slice filter, uint32_t options) {
    if (defers_session(index, session_key)) return;
    indexed_session *session = session_get(index, session_key);
    hmq_slice inner;
    if (share_is(filter, &inner)) {
        if (share_find(index->shares, filter) == NULL)
            sv.DictSetC(index->waiting, filter.data, filter.len, index); /* it may have a queue from before */
        share_join(index->shares, index->filters, filter, session_key, session);
    } else {
        hmq_trie_set(index->filters, (const char *)filter.data, filter.len, (uint64_t)(uintptr_t)session, options);
    }
    sv.DictReplaceC(session->filters, filter.data, filter.len, (void *)((uintptr_t)options + 1));
}

static void take_out(index_t *index, indexed_session *session, hmq_slice filter) {
    hmq_slice inner;
    bool is_shared = share_is(filter, &inner);
    share *s = is_shared ? share_find(index->shares, filter) : NULL;
    if (s != NULL && sv.DictSize(s->members) <= 1) queue_usage_forget(index, s); /* it may end with this member */
    if (is_shared)
        share_leave(index->shares, index->filters, filter, slice_of(session->key));
    else
        hmq_trie_remove(index->filters, (const char *)filter.data, filter.len, (uint64_t)(uintptr_t)session);
}

void index_remove_filter(index_t *index, hmq_slice session_key, hmq_slice filter) {
    indexed_session *session = session_find(index, session_key);
    if (session == NULL || defers_session(index, session_key)) return;
    take_out(index, session, filter);
    sv.DictDelC(session->filters, filter.data, filter.len, NULL);
    if (sv.DictSize(session->filters) == 0) session_drop(index, session);
}

void index_remove_session(index_t *index, hmq_slice session_key) {
    indexed_session *session = session_find(index, session_key);
    if (session == NULL || defers_session(index, session_key)) return;
    server_dict_iter *iter = sv.DictIteratorStartC(session->filters, "^", NULL, 0);
    size_t len;
    const char *filter;
    while ((filter = sv.DictNextC(iter, &len, NULL)) != NULL)
        take_out(index, session, (hmq_slice){(const uint8_t *)filter, len});
    sv.DictIteratorStop(iter);
    session_drop(index, session);
}

/* Is this field of a subscriptions hash one that the index takes?  (Others may write what they like there.) */
static bool subscription_of(hmq_slice filter, const server_string *value, subscription *s) {
    return value != NULL && subscription_read(value, s) &&
           hmq_topic_check_filter((const char *)filter.data, filter.len) == HMQ_TOPIC_OK;
}

typedef struct session_target {
    index_t *index;
    hmq_slice key;
} session_target;

static void take_field(server_key *key, server_string *field, server_string *value, void *data) {
    (void)key;
    session_target *target = data;
    subscription s;
    hmq_slice filter = slice_of(field);
    if (subscription_of(filter, value, &s) && s.kind == SUBSCRIPTION_LIVE) /* else it reads history */
        index_set_filter(target->index, target->key, filter, subscription_pack(s));
}

/* Reads the hash of a session anew. */
static void refresh_session(server_ctx *ctx, index_t *index, const char *name, size_t key_len) {
    session_target target = {index, {(const uint8_t *)name, key_len}};
    index_remove_session(index, target.key);
    server_string *hash_name = session_key_name(target.key, HMQ_SUFFIX_SUBSCRIPTIONS);
    server_key *hash = sv.OpenKey(ctx, hash_name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    if (hash != NULL && sv.KeyType(hash) == SERVER_HASH) {
        server_scan_cursor *cursor = sv.ScanCursorCreate();
        while (sv.ScanKey(hash, cursor, take_field, &target)) {}
        sv.ScanCursorDestroy(cursor);
    }
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, hash_name);
}

/* ---- retained ---------------------------------------------------------------------------------------------- */

static bool retained_topic(hmq_slice key, char topic[HMQ_TOPIC_MAX_BYTES], size_t *len) {
    int64_t n = hmq_retained_topic((const char *)key.data, key.len, topic, HMQ_TOPIC_MAX_BYTES);
    if (n <= 0 || hmq_topic_check_name(topic, (size_t)n) != HMQ_TOPIC_OK) return false;
    *len = (size_t)n;
    return true;
}

/* True if the part is pinned: the key is looked at again later. */
static bool defers_key(index_t *index, index_part part, hmq_slice key) {
    if (index->pins[part] == 0) return false;
    index_doubt(index, key);
    return true;
}

static void set_retained_user(index_t *index, retained_entry *entry, hmq_slice identity) {
    usage_user *before = entry->user, *user = identity.len == 0 ? NULL : usage_make(index->usage, identity);
    if (before == user) return;
    if (user != NULL) user->retained++;
    if (before != NULL) before->retained--;
    entry->user = user;
    usage_settle(index->usage, before);
}

void index_set_retained(index_t *index, hmq_slice key, hmq_slice identity) {
    char topic[HMQ_TOPIC_MAX_BYTES];
    size_t len;
    retained_entry *entry = sv.DictGetC(index->retained_keys, key.data, key.len, NULL);
    if (entry == NULL) {
        if (!retained_topic(key, topic, &len) || defers_key(index, INDEX_RETAINED, key)) return;
        entry = sv.Calloc(1, sizeof *entry);
        entry->key = sv.CreateString(NULL, (const char *)key.data, key.len);
        sv.DictSetC(index->retained_keys, key.data, key.len, entry);
        retained_topics_set(index->retained, (hmq_slice){(const uint8_t *)topic, len}, entry->key);
    }
    set_retained_user(index, entry, identity);
}

void index_remove_retained(index_t *index, hmq_slice key) {
    char topic[HMQ_TOPIC_MAX_BYTES];
    size_t len;
    retained_entry *entry = sv.DictGetC(index->retained_keys, key.data, key.len, NULL);
    if (entry == NULL || !retained_topic(key, topic, &len) || defers_key(index, INDEX_RETAINED, key)) return;
    set_retained_user(index, entry, (hmq_slice){0});
    retained_topics_remove(index->retained, (hmq_slice){(const uint8_t *)topic, len});
    sv.DictDelC(index->retained_keys, key.data, key.len, NULL);
    free_retained(entry);
}

/* Whether the key is there, and a hash, says whether it is a retained message; a field of it, whose. */
static void refresh_retained(server_ctx *ctx, index_t *index, hmq_slice name) {
    server_string *key_name = sv.CreateString(NULL, (const char *)name.data, name.len), *identity = NULL;
    server_key *key = sv.OpenKey(ctx, key_name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool is_hash = key != NULL && sv.KeyType(key) == SERVER_HASH;
    if (is_hash) sv.HashGet(key, SERVER_HASH_CFIELDS, RETAINED_IDENTITY, &identity, NULL);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
    hmq_slice who = identity == NULL ? (hmq_slice){0} : slice_of(identity);
    if (is_hash)
        index_set_retained(index, name, who.len <= IDENTITY_MAX_BYTES ? who : (hmq_slice){0});
    else
        index_remove_retained(index, name);
    if (identity != NULL) sv.FreeString(NULL, identity);
}

index_watcher index_watched_by;

/* ---- keeping current --------------------------------------------------------------------------------------- */

static bool is_subscriptions(const char *name, size_t len) {
    return hmq_session_key_of(name, len, HMQ_SUFFIX_SUBSCRIPTIONS) > 0;
}

static bool is_session(const char *name, size_t len) {
    return hmq_session_key_of(name, len, HMQ_SUFFIX_SESSION) > 0;
}

static bool is_cursors(const char *name, size_t len) {
    return hmq_session_key_of(name, len, HMQ_SUFFIX_CURSORS) > 0;
}

static bool is_retained(const char *name, size_t len) {
    static const char suffix[] = "}_retained";
    size_t n = sizeof suffix - 1;
    return len > n && memcmp(name + len - n, suffix, n) == 0;
}

/* Is the name of a kind that only refresh can judge? */
bool index_needs_look(const char *name, size_t len) {
    hmq_slice owner;
    return len > 2 && (is_subscriptions(name, len) || is_cursors(name, len) || is_retained(name, len) ||
                       is_session(name, len) || history_store_is_key((hmq_slice){(const uint8_t *)name, len}) ||
                       share_replay_is_key((hmq_slice){(const uint8_t *)name, len}) ||
                       owner_is_key((hmq_slice){(const uint8_t *)name, len}, &owner));
}

int index_type_of(server_ctx *ctx, const char *name, size_t len) {
    server_string *key_name = sv.CreateString(NULL, name, len);
    server_key *key = sv.OpenKey(ctx, key_name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    int type = key == NULL ? SERVER_EMPTY : sv.KeyType(key);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
    return type;
}

/* Only where clients are served; in a cluster the session may just have moved. */
bool index_tells_of_sessions(server_ctx *ctx) {
    return index_watched_by.session_gone != NULL && !can.cluster && (sv.GetContextFlags(ctx) & SERVER_CTX_MASTER) != 0;
}

static void refresh_opened(server_ctx *ctx, index_t *index, hmq_slice session) {
    const session_entry *entry = session_index_find(index->opened, session);
    long long epoch = entry == NULL || !entry->connected ? 0 : entry->epoch;
    session_index_refresh(ctx, index->opened, session);
    if (epoch > 0 && session_index_find(index->opened, session) == NULL && index_tells_of_sessions(ctx))
        index_watched_by.session_gone(ctx, session, epoch);
}

static void refresh(server_ctx *ctx, index_t *index, const char *name, size_t len) {
    size_t key_len = hmq_session_key_of(name, len, HMQ_SUFFIX_SUBSCRIPTIONS);
    if (key_len > 0) refresh_session(ctx, index, name, key_len);
    key_len = hmq_session_key_of(name, len, HMQ_SUFFIX_SESSION);
    if (key_len > 0) refresh_opened(ctx, index, (hmq_slice){(const uint8_t *)name, key_len});
    key_len = hmq_session_key_of(name, len, HMQ_SUFFIX_CURSORS);
    if (key_len > 0) retained_cursors_refresh(ctx, index, (hmq_slice){(const uint8_t *)name, key_len});
    hmq_slice key = {(const uint8_t *)name, len}, owner;
    if (history_store_is_key(key)) history_stores_refresh(ctx, index->histories, key);
    if (share_replay_is_key(key)) share_replay_refresh(ctx, index, key);
    if (owner_is_key(key, &owner)) owner_key_changed(ctx, index->opened, owner);
    if (is_retained(name, len)) refresh_retained(ctx, index, key);
}

void index_mark_stale(index_t *index, const char *name, size_t len) {
    sv.DictSetC(index->stale, name, len, index);
}

void index_doubt(index_t *index, hmq_slice name) {
    index_mark_stale(index, (const char *)name.data, name.len);
}

/* A key of any type may have come to be under this name. */
void index_key_appeared(server_ctx *ctx, index_t *index, const char *name, size_t len) {
    if (index_needs_look(name, len)) index_mark_stale(index, name, len);
    hmq_slice key = {(const uint8_t *)name, len};
    if (channel_index_is_key(key))
        channel_index_key_changed(index, key, index_type_of(ctx, name, len) == SERVER_LIST);
    else
        channel_index_name_used(index, key, false);
}

void index_watch(index_watcher who) {
    index_watched_by = who;
}

bool index_session_lives(server_ctx *ctx, index_t *index, const indexed_session *session) {
    server_key *hash = sv.OpenKey(ctx, session->hash, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool lives = hash != NULL && sv.KeyType(hash) == SERVER_HASH;
    if (hash != NULL) sv.CloseKey(hash);
    if (lives) return true;
    hmq_slice name = slice_of(session->hash);
    index_mark_stale(index, (const char *)name.data, name.len);
    return false;
}

typedef struct scan_target {
    index_t *index;
} scan_target;

static void take_key(server_ctx *ctx, server_string *name, server_key *key, void *data) {
    (void)key;
    scan_target *target = data;
    hmq_slice text = slice_of(name);
    index_key_appeared(ctx, target->index, (const char *)text.data, text.len);
}

static void scan(server_ctx *ctx, index_t *index) {
    long long begun_ms = sv.Milliseconds();
    scan_target target = {index};
    server_scan_cursor *cursor = sv.ScanCursorCreate();
    while (sv.Scan(ctx, cursor, take_key, &target)) {}
    sv.ScanCursorDestroy(cursor);
    index->scan_needed = false;
    counters.index_rebuilds++;
    slow_step("holdmq-index-scan", begun_ms);
}

static void refresh_stale(server_ctx *ctx, index_t *index) {
    server_dict *names = index->stale;
    index->stale = sv.CreateDict(NULL);
    server_dict_iter *iter = sv.DictIteratorStartC(names, "^", NULL, 0);
    size_t len;
    const char *name;
    while ((name = sv.DictNextC(iter, &len, NULL)) != NULL) refresh(ctx, index, name, len);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, names);
}

/* A copy of the first stale name that begins with the prefix and is of its slot, or NULL. */
static server_string *stale_name(const index_t *index, hmq_slice prefix) {
    server_dict_iter *iter = sv.DictIteratorStartC(index->stale, ">=", prefix.data, prefix.len);
    server_string *copy = NULL;
    hmq_slice name;
    while (copy == NULL && (name.data = sv.DictNextC(iter, &name.len, NULL)) != NULL) {
        if (name.len < prefix.len || memcmp(name.data, prefix.data, prefix.len) != 0) break;
        if (command_slot_allows(name)) copy = sv.CreateString(NULL, (const char *)name.data, name.len);
    }
    sv.DictIteratorStop(iter);
    return copy;
}

#define OWN_NAMES 64 /* a session has a dozen keys, and reading an expired one names it once more */

/* Only of the session that the command names: keys of others may not be opened now (server/command_slot.h). */
static void refresh_own(server_ctx *ctx, index_t *index, hmq_slice session) {
    server_string *name;
    for (int rest = OWN_NAMES; rest > 0 && (name = stale_name(index, session)) != NULL; rest--) {
        hmq_slice text = slice_of(name);
        sv.DictDelC(index->stale, text.data, text.len, NULL);
        refresh(ctx, index, (const char *)text.data, text.len);
        sv.FreeString(NULL, name);
    }
}

static void sync_index(server_ctx *ctx, index_t *index) {
    if (command_slot_binds()) {
        if (command_slot_key().len > 0) refresh_own(ctx, index, command_slot_key());
        return;
    }
    if (index->scan_needed) history_live_doubt_all(index->histories);
    if (index->scan_needed) scan(ctx, index);
    /* Reading a key may expire another and so mark a name: once more, but not for ever. */
    for (int round = 0; round < 8 && sv.DictSize(index->stale) > 0; round++) refresh_stale(ctx, index);
}

index_t *index_rebuild(server_ctx *ctx) {
    index_t *index = index_new();
    index->scan_needed = true;
    sync_index(ctx, index);
    return index;
}

int index_databases(void) {
    return index_count_;
}

bool index_exists(int db) {
    return db < index_count_ && indexes[db] != NULL;
}

session_index *index_sessions(int db) {
    return indexes[db]->opened;
}

index_t *index_of(server_ctx *ctx) {
    index_t *index = index_at(sv.GetSelectedDb(ctx));
    bool current = !index->scan_needed && sv.DictSize(index->stale) == 0;
    if (!current && !is_pinned(index)) sync_index(ctx, index);
    return index;
}

/* Commands with a key leave to this what is of other slots. */
void index_before_sleep(void) {
    for (int db = 0; can.cluster && db < index_count_; db++) {
        if (indexes[db] == NULL) continue;
        sv.SelectDb(detached, db);
        index_of(detached);
        sv.SelectDb(detached, 0);
    }
}

const index_t *index_peek(int db) {
    return index_exists(db) ? indexes[db] : NULL;
}

bool index_is_current(server_ctx *ctx) {
    int db = sv.GetSelectedDb(ctx);
    const index_t *index = index_exists(db) ? indexes[db] : NULL;
    return index != NULL && !index->scan_needed && sv.DictSize(index->stale) == 0;
}

session_entry *index_opened(server_ctx *ctx, hmq_slice session) {
    return index_is_current(ctx) ? session_index_find(indexes[sv.GetSelectedDb(ctx)]->opened, session) : NULL;
}

index_totals index_count(void) {
    index_totals totals = {0};
    for (int db = 0; db < index_count_; db++) {
        const index_t *index = indexes[db];
        if (index == NULL) continue;
        totals.sessions += sv.DictSize(index->sessions);
        totals.away += session_index_count(index->opened) - session_index_connected(index->opened);
        totals.filters += hmq_trie_pairs(index->filters);
        totals.trie_nodes += hmq_trie_nodes(index->filters);
        totals.trie_bytes += hmq_trie_bytes(index->filters);
        totals.retained += sv.DictSize(index->retained_keys);
        totals.held += sv.DictSize(index->held);
        totals.stale += sv.DictSize(index->stale);
    }
    return totals;
}
