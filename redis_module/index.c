/* index.c - keeps the in-memory indexes equal to the keyspace. */
#include "index.h"

#include <string.h>
#include <sys/random.h>

#include "../src/session_key.h"
#include "../src/topic.h"
#include "history_live.h"
#include "owner.h"
#include "session_hash.h"
#include "share_replay.h"
#include "subscription.h"
#include "slots.h"

static index_t **indexes; /* by database number */
static int index_count_;
static bool scan_new;      /* the module was loaded into a server with keys: a new index begins with a scan */
static bool own_write;     /* a notification that the module itself causes */

static void refresh(server_ctx *ctx, index_t *index, const char *name, size_t len);

/* ---- making and freeing ------------------------------------------------------------------------------------ */

/* So that clients cannot choose levels that collide. */
static void seed(hmq_trie *trie) {
    uint64_t random[2] = {(uint64_t)sv.Milliseconds(), (uint64_t)(uintptr_t)trie};
    if (getrandom(random, sizeof random, 0) == (ssize_t)sizeof random) hmq_trie_seed(trie, random[0], random[1]);
}

static index_t *index_new(void) {
    index_t *index = sv.Calloc(1, sizeof *index);
    index->filters = hmq_trie_new(&server_allocator);
    index->retained = hmq_trie_new(&server_allocator);
    seed(index->filters);
    seed(index->retained);
    index->sessions = sv.CreateDict(NULL);
    index->retained_keys = sv.CreateDict(NULL);
    index->held = sv.CreateDict(NULL);
    index->shares = sv.CreateDict(NULL);
    index->waiting = sv.CreateDict(NULL);
    index->group_replays = sv.CreateDict(NULL);
    index->opened = session_index_new();
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

static void free_strings(server_dict *dict) {
    server_dict_iter *iter = sv.DictIteratorStartC(dict, "^", NULL, 0);
    void *value;
    while (sv.DictNextC(iter, NULL, &value)) sv.FreeString(NULL, value);
    sv.DictIteratorStop(iter);
}

static void index_free(index_t *index) {
    server_dict_iter *iter = sv.DictIteratorStartC(index->sessions, "^", NULL, 0);
    void *session;
    while (sv.DictNextC(iter, NULL, &session)) session_free(session);
    sv.DictIteratorStop(iter);
    free_strings(index->retained_keys);
    sv.FreeDict(NULL, index->sessions);
    sv.FreeDict(NULL, index->retained_keys);
    sv.FreeDict(NULL, index->held);
    sv.FreeDict(NULL, index->stale);
    share_free_all(index->shares);
    sv.FreeDict(NULL, index->waiting);
    sv.FreeDict(NULL, index->group_replays);
    session_index_free(index->opened);
    history_stores_free(index->histories);
    hmq_trie_free(index->filters);
    hmq_trie_free(index->retained);
    sv.Free(index);
}

static index_t *index_at(int db) {
    if (db >= index_count_) {
        indexes = sv.Realloc(indexes, (size_t)(db + 1) * sizeof *indexes);
        while (index_count_ <= db) indexes[index_count_++] = NULL;
    }
    if (indexes[db] == NULL) indexes[db] = index_new();
    return indexes[db];
}

/* The database became empty (scan false) or unknown (scan true). */
static void index_reset(int db, bool scan) {
    if (db < index_count_ && indexes[db] != NULL) {
        index_free(indexes[db]);
        indexes[db] = NULL;
    }
    if (scan)
        index_at(db)->scan_needed = true;
    else if (db < index_count_ && scan_new)
        index_at(db)->scan_needed = false;
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

void index_set_filter(index_t *index, hmq_slice session_key, hmq_slice filter, uint32_t options) {
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
    if (share_is(filter, &inner))
        share_leave(index->shares, index->filters, filter, slice_of(session->key));
    else
        hmq_trie_remove(index->filters, (const char *)filter.data, filter.len, (uint64_t)(uintptr_t)session);
}

void index_remove_filter(index_t *index, hmq_slice session_key, hmq_slice filter) {
    indexed_session *session = session_find(index, session_key);
    if (session == NULL) return;
    take_out(index, session, filter);
    sv.DictDelC(session->filters, filter.data, filter.len, NULL);
    if (sv.DictSize(session->filters) == 0) session_drop(index, session);
}

void index_remove_session(index_t *index, hmq_slice session_key) {
    indexed_session *session = session_find(index, session_key);
    if (session == NULL) return;
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

void index_set_retained(index_t *index, hmq_slice key) {
    char topic[HMQ_TOPIC_MAX_BYTES];
    size_t len;
    if (sv.DictGetC(index->retained_keys, key.data, key.len, NULL) != NULL) return;
    if (!retained_topic(key, topic, &len)) return;
    server_string *name = sv.CreateString(NULL, (const char *)key.data, key.len);
    sv.DictSetC(index->retained_keys, key.data, key.len, name);
    hmq_trie_set(index->retained, topic, len, (uint64_t)(uintptr_t)name, 0);
}

void index_remove_retained(index_t *index, hmq_slice key) {
    char topic[HMQ_TOPIC_MAX_BYTES];
    size_t len;
    server_string *name = sv.DictGetC(index->retained_keys, key.data, key.len, NULL);
    if (name == NULL || !retained_topic(key, topic, &len)) return;
    hmq_trie_remove(index->retained, topic, len, (uint64_t)(uintptr_t)name);
    sv.DictDelC(index->retained_keys, key.data, key.len, NULL);
    sv.FreeString(NULL, name);
}

/* ---- held channels ----------------------------------------------------------------------------------------- */

void index_set_held(index_t *index, hmq_slice name) {
    sv.DictSetC(index->held, name.data, name.len, index);
}

void index_remove_held(index_t *index, hmq_slice name) {
    sv.DictDelC(index->held, name.data, name.len, NULL);
}

static index_watcher watcher;

/* ---- keeping current --------------------------------------------------------------------------------------- */

static bool is_subscriptions(const char *name, size_t len) {
    return hmq_session_key_of(name, len, HMQ_SUFFIX_SUBSCRIPTIONS) > 0;
}

static bool is_session(const char *name, size_t len) {
    return hmq_session_key_of(name, len, HMQ_SUFFIX_SESSION) > 0;
}

static bool is_retained(const char *name, size_t len) {
    static const char suffix[] = "}_retained";
    size_t n = sizeof suffix - 1;
    return len > n && memcmp(name + len - n, suffix, n) == 0;
}

/* Is the name of a kind that only refresh can judge? */
static bool needs_refresh(const char *name, size_t len) {
    hmq_slice owner;
    return len > 2 && (is_subscriptions(name, len) || is_retained(name, len) || is_session(name, len) ||
                       history_store_is_key((hmq_slice){(const uint8_t *)name, len}) ||
                       share_replay_is_key((hmq_slice){(const uint8_t *)name, len}) ||
                       owner_is_key((hmq_slice){(const uint8_t *)name, len}, &owner));
}

static int type_of(server_ctx *ctx, const char *name, size_t len) {
    server_string *key_name = sv.CreateString(NULL, name, len);
    server_key *key = sv.OpenKey(ctx, key_name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    int type = key == NULL ? SERVER_EMPTY : sv.KeyType(key);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
    return type;
}

/* Only where clients are served; in a cluster the session may just have moved. */
static bool tells_of_sessions(server_ctx *ctx) {
    return watcher.session_gone != NULL && !can.cluster && (sv.GetContextFlags(ctx) & SERVER_CTX_MASTER) != 0;
}

static void refresh_opened(server_ctx *ctx, index_t *index, hmq_slice session) {
    const session_entry *entry = session_index_find(index->opened, session);
    long long epoch = entry == NULL || !entry->connected ? 0 : entry->epoch;
    session_index_refresh(ctx, index->opened, session);
    if (epoch > 0 && session_index_find(index->opened, session) == NULL && tells_of_sessions(ctx))
        watcher.session_gone(ctx, session, epoch);
}

static void refresh(server_ctx *ctx, index_t *index, const char *name, size_t len) {
    size_t key_len = hmq_session_key_of(name, len, HMQ_SUFFIX_SUBSCRIPTIONS);
    if (key_len > 0) refresh_session(ctx, index, name, key_len);
    key_len = hmq_session_key_of(name, len, HMQ_SUFFIX_SESSION);
    if (key_len > 0) refresh_opened(ctx, index, (hmq_slice){(const uint8_t *)name, key_len});
    hmq_slice key = {(const uint8_t *)name, len}, owner;
    if (history_store_is_key(key)) history_stores_refresh(ctx, index->histories, key);
    if (share_replay_is_key(key)) share_replay_refresh(ctx, index, key);
    if (owner_is_key(key, &owner)) owner_key_changed(ctx, index->opened, owner);
    if (!is_retained(name, len)) return;
    if (type_of(ctx, name, len) == SERVER_HASH)
        index_set_retained(index, key);
    else
        index_remove_retained(index, key);
}

static void mark_stale(index_t *index, const char *name, size_t len) {
    sv.DictSetC(index->stale, name, len, index);
}

void index_doubt(index_t *index, hmq_slice name) {
    mark_stale(index, (const char *)name.data, name.len);
}

/* A key of any type may have come to be under this name. */
static void key_appeared(server_ctx *ctx, index_t *index, const char *name, size_t len) {
    if (needs_refresh(name, len)) mark_stale(index, name, len);
    hmq_slice key = {(const uint8_t *)name, len};
    if (type_of(ctx, name, len) == SERVER_LIST)
        index_set_held(index, key);
    else
        index_remove_held(index, key);
}

void index_watch(index_watcher who) {
    watcher = who;
}

static void tell_queue_expired(int db, const char *name, size_t len) {
    size_t key_len = hmq_session_key_of(name, len, HMQ_SUFFIX_MESSAGES);
    if (key_len > 0 && watcher.queue_expired != NULL)
        watcher.queue_expired(db, (hmq_slice){(const uint8_t *)name, key_len});
}

/* A key called {c}_messages_<packet id>: tells whoever watches. */
static void tell_message_gone(int db, const char *name, size_t len) {
    static const char middle[] = "}_messages_";
    const size_t n = sizeof middle - 1;
    if (watcher.message_gone == NULL || len <= n + 1 || name[len - 1] < '0' || name[len - 1] > '9') return;
    const char *found = memmem(name, len, middle, n);
    if (found != NULL) watcher.message_gone(db, (hmq_slice){(const uint8_t *)name, (size_t)(found - name) + 1});
}

static void key_gone(int db, index_t *index, const char *name, size_t len, bool expired) {
    hmq_slice owner;
    tell_message_gone(db, name, len);
    /* When an owner's key expires is known, and whether it counts already is the deadline's affair (owner.h). */
    bool has_deadline = expired && owner_is_key((hmq_slice){(const uint8_t *)name, len}, &owner);
    if (needs_refresh(name, len) && !has_deadline) mark_stale(index, name, len);
    index_remove_held(index, (hmq_slice){(const uint8_t *)name, len});
}

static bool one_of(const char *event, const char *const *names) {
    for (; *names != NULL; names++) {
        if (strcmp(event, *names) == 0) return true;
    }
    return false;
}

/* Inside a transaction Valkey 9 names the client's database in events of keys of another one: nothing is known then. */
static bool database_is_uncertain(server_ctx *ctx, int type, const char *event) {
    static const char *const elsewhere[] = {"copy_to", "move_to", NULL};
    if (!can.valkey || (type != SERVER_NOTIFY_LOADED && !one_of(event, elsewhere))) return false;
    return (sv.GetContextFlags(ctx) & SERVER_CTX_MULTI) != 0;
}

static void doubt_all(void) {
    scan_new = true;
    for (int db = 0; db < index_count_; db++) {
        if (indexes[db] != NULL) indexes[db]->scan_needed = true;
    }
}

static int on_key_event(server_ctx *ctx, int type, const char *event, server_string *key) {
    static const char *const gone[] = {"del", "rename_from", "move_from", NULL};
    static const char *const harmless[] = {"expire", "persist", NULL};
    if (own_write) return SERVER_OK;
    size_t len;
    const char *name = sv.StringPtrLen(key, &len);
    if (type == SERVER_NOTIFY_EXPIRED) tell_queue_expired(sv.GetSelectedDb(ctx), name, len);
    index_t *index = index_at(sv.GetSelectedDb(ctx));
    if (type != SERVER_NOTIFY_LIST) history_live_doubt(index->histories, slice_of(key));
    if (type == SERVER_NOTIFY_HASH) {
        if (needs_refresh(name, len)) mark_stale(index, name, len);
    } else if (type == SERVER_NOTIFY_LIST) {
        index_set_held(index, (hmq_slice){(const uint8_t *)name, len});
    } else if (type == SERVER_NOTIFY_EXPIRED || type == SERVER_NOTIFY_EVICTED || one_of(event, gone)) {
        key_gone(sv.GetSelectedDb(ctx), index, name, len, type == SERVER_NOTIFY_EXPIRED);
    } else if (database_is_uncertain(ctx, type, event)) {
        doubt_all();
    } else if (!one_of(event, harmless)) {
        key_appeared(ctx, index, name, len);
    }
    return SERVER_OK;
}

/* May another module listen to keyspace events?  Once there was one, yes. */
static bool others_may_listen;

/* Those that are known not to: this one, and the scripting engine that Valkey brings with it. */
static bool never_listens(hmq_slice module) {
    return slice_is(module, HMQ_MODULE_NAME) || (can.valkey && slice_is(module, "lua"));
}

static void on_module_change(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)sub;
    const server_module_info *info = data;
    if (!never_listens((hmq_slice){(const uint8_t *)info->name, strlen(info->name)})) others_may_listen = true;
}

static void look_for_modules(server_ctx *ctx) {
    server_reply *modules = sv.Call(ctx, "MODULE", "c", "LIST");
    others_may_listen = modules == NULL;
    for (size_t i = 0; modules != NULL && i < sv.CallReplyLength(modules); i++) {
        hmq_slice name = {NULL, 0};
        server_reply *text = sv.CallReplyArrayElement(sv.CallReplyArrayElement(modules, i), 1); /* behind "name" */
        if (text != NULL) name.data = (const uint8_t *)sv.CallReplyStringPtr(text, &name.len);
        if (name.data == NULL || !never_listens(name)) others_may_listen = true;
    }
    if (modules != NULL) sv.FreeCallReply(modules);
}

void index_notify(server_ctx *ctx, int type, const char *event, server_string *key) {
    if (type & (SERVER_NOTIFY_HASH | SERVER_NOTIFY_GENERIC))
        history_live_doubt(index_at(sv.GetSelectedDb(ctx))->histories, slice_of(key));
    index_notify_others(ctx, type, event, key);
}

/* The server makes a context for each listener, this module's own among them: it is asked to only if somebody else may
 * hear. */
void index_notify_others(server_ctx *ctx, int type, const char *event, server_string *key) {
    sv.SignalModifiedKey(ctx, key);
    if (!others_may_listen && !(sv.GetNotifyKeyspaceEvents() & type)) return;
    own_write = true;
    sv.NotifyKeyspaceEvent(ctx, type, event, key);
    own_write = false;
}

bool index_session_lives(server_ctx *ctx, index_t *index, const indexed_session *session) {
    server_key *hash = sv.OpenKey(ctx, session->hash, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool lives = hash != NULL && sv.KeyType(hash) == SERVER_HASH;
    if (hash != NULL) sv.CloseKey(hash);
    if (lives) return true;
    hmq_slice name = slice_of(session->hash);
    mark_stale(index, (const char *)name.data, name.len);
    return false;
}

static void doubt_policy(void *context, hmq_slice key) {
    index_doubt(context, key);
}

/* Looks at the key of every entry, as its next user would. */
static void look_at_all(server_ctx *ctx, index_t *index) {
    server_dict *const dicts[] = {index->held, index->retained_keys};
    for (size_t i = 0; i < sizeof dicts / sizeof dicts[0]; i++) {
        server_dict_iter *iter = sv.DictIteratorStartC(dicts[i], "^", NULL, 0);
        size_t len;
        const char *name;
        server_dict *changed = sv.CreateDict(NULL);
        while ((name = sv.DictNextC(iter, &len, NULL)) != NULL) sv.DictSetC(changed, name, len, index);
        sv.DictIteratorStop(iter);
        iter = sv.DictIteratorStartC(changed, "^", NULL, 0);
        while ((name = sv.DictNextC(iter, &len, NULL)) != NULL) key_appeared(ctx, index, name, len);
        sv.DictIteratorStop(iter);
        sv.FreeDict(NULL, changed);
    }
    server_dict_iter *iter = sv.DictIteratorStartC(index->sessions, "^", NULL, 0);
    void *session;
    while (sv.DictNextC(iter, NULL, &session)) index_session_lives(ctx, index, session);
    sv.DictIteratorStop(iter);
    hmq_slice after = {0};
    history_stores_each_key(index->histories, doubt_policy, index);
    for (session_entry *e; (e = session_index_next(index->opened, after)) != NULL; after = slice_of(e->key)) {
        server_string *name = session_key_name(slice_of(e->key), HMQ_SUFFIX_SESSION);
        hmq_slice text = slice_of(name);
        if (type_of(ctx, (const char *)text.data, text.len) != SERVER_HASH)
            mark_stale(index, (const char *)text.data, text.len);
        sv.FreeString(NULL, name);
    }
}

typedef struct scan_target {
    index_t *index;
} scan_target;

static void take_key(server_ctx *ctx, server_string *name, server_key *key, void *data) {
    (void)key;
    scan_target *target = data;
    hmq_slice text = slice_of(name);
    key_appeared(ctx, target->index, (const char *)text.data, text.len);
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

static void sync_index(server_ctx *ctx, index_t *index) {
    if (index->scan_needed) history_live_doubt_all(index->histories);
    if (index->scan_needed) scan(ctx, index);
    /* Reading a key may expire another and so mark a name: once more, but not for ever. */
    for (int round = 0; round < 8 && sv.DictSize(index->stale) > 0; round++) refresh_stale(ctx, index);
}

int index_databases(void) {
    return index_count_;
}

bool index_exists(int db) {
    return indexes[db] != NULL;
}

index_t *index_of(server_ctx *ctx) {
    index_t *index = index_at(sv.GetSelectedDb(ctx));
    if (index->scan_needed || sv.DictSize(index->stale) > 0) sync_index(ctx, index);
    return index;
}

/* ---- server events ----------------------------------------------------------------------------------------- */

static void flush(server_ctx *ctx, int db) {
    hmq_slice after = {0};
    bool tells = db < index_count_ && indexes[db] != NULL && tells_of_sessions(ctx);
    for (session_entry *e; tells && (e = session_index_next(indexes[db]->opened, after)) != NULL;) {
        after = slice_of(e->key);
        if (e->connected) watcher.session_gone(ctx, after, e->epoch);
    }
    index_reset(db, false);
}

static void on_flush(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)event;
    const server_flush_info *info = data;
    if (sub != SERVER_FLUSHDB_END) return;
    if (info->db >= 0) {
        flush(ctx, info->db);
        return;
    }
    scan_new = false;
    for (int db = 0; db < index_count_; db++) flush(ctx, db);
}

static void on_swapdb(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)sub;
    const server_swapdb_info *info = data;
    index_at(info->first), index_at(info->second);
    index_t *first = indexes[info->first];
    indexes[info->first] = indexes[info->second];
    indexes[info->second] = first;
    if (watcher.swapped != NULL) watcher.swapped();
}

void index_start(server_ctx *ctx, bool populated) {
    scan_new = populated;
    sv.SubscribeToKeyspaceEvents(ctx,
                                 SERVER_NOTIFY_GENERIC | SERVER_NOTIFY_LIST | SERVER_NOTIFY_HASH |
                                     SERVER_NOTIFY_EXPIRED | SERVER_NOTIFY_EVICTED | SERVER_NOTIFY_LOADED,
                                 on_key_event);
    look_for_modules(ctx);
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_MODULE_CHANGE, 1}, on_module_change);
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_FLUSHDB, 1}, on_flush);
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_SWAPDB, 1}, on_swapdb);
}

/* ---- checking ---------------------------------------------------------------------------------------------- */

static long differences;

static void differ(server_ctx *ctx, const char *what, const char *name, size_t len) {
    server_string *text = sv.CreateStringPrintf(NULL, "%s: %.*s", what, (int)len, name);
    sv.ReplyWithString(ctx, text);
    sv.FreeString(NULL, text);
    differences++;
}

static void compare_dicts(server_ctx *ctx, server_dict *a, server_dict *b, bool values, const char *what) {
    server_dict_iter *iter = sv.DictIteratorStartC(a, "^", NULL, 0);
    size_t len;
    const char *name;
    void *value;
    while ((name = sv.DictNextC(iter, &len, &value)) != NULL) {
        int missing = 0;
        void *other = sv.DictGetC(b, name, len, &missing);
        if (missing || (values && other != value)) differ(ctx, what, name, len);
    }
    sv.DictIteratorStop(iter);
}

static void compare_sessions(server_ctx *ctx, const index_t *a, const index_t *b, const char *what) {
    server_dict_iter *iter = sv.DictIteratorStartC(a->sessions, "^", NULL, 0);
    size_t len;
    const char *name;
    void *value;
    while ((name = sv.DictNextC(iter, &len, &value)) != NULL) {
        const indexed_session *session = value;
        const indexed_session *other = sv.DictGetC(b->sessions, name, len, NULL);
        if (other == NULL)
            differ(ctx, what, name, len);
        else
            compare_dicts(ctx, session->filters, other->filters, true, what);
    }
    sv.DictIteratorStop(iter);
}

static void tell_difference(void *context, const char *what, hmq_slice name) {
    differ(context, what, (const char *)name.data, name.len);
}

typedef struct trie_check {
    server_ctx *ctx;
    const index_t *index;
} trie_check;

/* Every pair of the trie must stand in the session's own list of filters. */
static bool check_pair(void *context, const char *filter, size_t len, uint64_t subscriber, uint32_t options) {
    trie_check *check = context;
    if (share_is_tagged(subscriber)) {
        hmq_slice inner = {0}, own = slice_of(share_of(subscriber)->filter);
        bool same = share_is(own, &inner) && inner.len == len && memcmp(inner.data, filter, len) == 0;
        if (!same) differ(check->ctx, "trie and share differ", filter, len);
        return true;
    }
    const indexed_session *session = (const indexed_session *)(uintptr_t)subscriber;
    void *listed = sv.DictGetC(session->filters, filter, len, NULL);
    if (listed != (void *)((uintptr_t)options + 1)) differ(check->ctx, "trie and session differ", filter, len);
    return true;
}

static size_t members_of_shares(const index_t *index) {
    size_t members = 0;
    server_dict_iter *iter = sv.DictIteratorStartC(index->shares, "^", NULL, 0);
    void *s;
    while (sv.DictNextC(iter, NULL, &s)) members += sv.DictSize(((share *)s)->members);
    sv.DictIteratorStop(iter);
    return members;
}

/* As many as the trie should have. */
static size_t count_filters(const index_t *index) {
    size_t filters = 0;
    server_dict_iter *iter = sv.DictIteratorStartC(index->sessions, "^", NULL, 0);
    void *session;
    while (sv.DictNextC(iter, NULL, &session)) filters += sv.DictSize(((indexed_session *)session)->filters);
    sv.DictIteratorStop(iter);
    return filters - members_of_shares(index) + sv.DictSize(index->shares);
}

int index_check_command(server_ctx *ctx, server_string **argv, int argc) {
    (void)argv;
    if (argc != 1) return sv.WrongArity(ctx);
    index_t *kept = index_of(ctx);
    look_at_all(ctx, kept);
    index_t *rebuilt = index_new();
    scan(ctx, rebuilt);
    for (int round = 0; round < 8 && sv.DictSize(rebuilt->stale) > 0; round++) refresh_stale(ctx, rebuilt);
    kept = index_of(ctx); /* the scan may have expired keys */
    differences = 0;
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    compare_sessions(ctx, kept, rebuilt, "subscription in the index but not in the keys, or different");
    compare_sessions(ctx, rebuilt, kept, "subscription in the keys but not in the index, or different");
    compare_dicts(ctx, kept->held, rebuilt->held, false, "list in the index but not in the keys");
    compare_dicts(ctx, rebuilt->held, kept->held, false, "list in the keys but not in the index");
    compare_dicts(ctx, kept->retained_keys, rebuilt->retained_keys, false,
                  "retained message in the index but not in the keys");
    compare_dicts(ctx, rebuilt->retained_keys, kept->retained_keys, false,
                  "retained message in the keys but not in the index");
    session_index_compare(kept->opened, rebuilt->opened, tell_difference, ctx);
    share_compare(kept->shares, rebuilt->shares, tell_difference, ctx);
    share_compare(rebuilt->shares, kept->shares, tell_difference, ctx);
    compare_dicts(ctx, kept->group_replays, rebuilt->group_replays, false, "group that replays, but not in the keys");
    compare_dicts(ctx, rebuilt->group_replays, kept->group_replays, false, "group that replays in the keys alone");
    history_stores_compare(kept->histories, rebuilt->histories, tell_difference, ctx);
    history_stores_compare(rebuilt->histories, kept->histories, tell_difference, ctx);
    history_live_check(ctx, kept->histories, tell_difference, ctx);
    trie_check check = {ctx, kept};
    hmq_trie_walk(kept->filters, check_pair, &check);
    if (hmq_trie_pairs(kept->filters) != count_filters(kept))
        differ(ctx, "the trie has another number of filters than the sessions", "", 0);
    if (hmq_trie_pairs(kept->retained) != sv.DictSize(kept->retained_keys))
        differ(ctx, "the trie of retained topics has another number than the keys", "", 0);
    sv.ReplySetArrayLength(ctx, differences);
    index_free(rebuilt);
    return SERVER_OK;
}

index_totals index_count(void) {
    index_totals totals = {0};
    for (int db = 0; db < index_count_; db++) {
        const index_t *index = indexes[db];
        if (index == NULL) continue;
        totals.sessions += sv.DictSize(index->sessions);
        totals.filters += hmq_trie_pairs(index->filters);
        totals.trie_nodes += hmq_trie_nodes(index->filters) + hmq_trie_nodes(index->retained);
        totals.trie_bytes += hmq_trie_bytes(index->filters) + hmq_trie_bytes(index->retained);
        totals.retained += sv.DictSize(index->retained_keys);
        totals.held += sv.DictSize(index->held);
        totals.stale += sv.DictSize(index->stale);
    }
    return totals;
}
