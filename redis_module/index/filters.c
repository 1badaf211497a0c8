/* filters.c - who subscribes to what: sessions with their filters, groups with their members, and the trie over both. */
#include "index/filters.h"

#include <string.h>

#include "base/assert.h"
#include "topic/session_key.h"
#include "topic/topic.h"
#include "server/numbers.h"
#include "server/seeded_trie.h"
#include "server/session_keys.h"
#include "server/slots.h"
#include "server/turns.h"
#include "index/check.h"
#include "index/shares.h"
#include "index/subscription.h"
#include "index/usage.h"

#define AT_ONCE_MOST 64 /* filters; those of a session with more leave the trie in steps */
#define LEAVE_US 500U
#define LEAVE_BETWEEN_LOOKS 32
#define LEAVE_WITH_EACH 2 /* ... filter that comes: so those that leave do not become more */

static const filter_watcher *watcher; /* NULL: none */

void index_watch_filters(const filter_watcher *who) {
    watcher = who;
}

void index_filter_came(index_t *index, hmq_slice filter, unsigned slot) {
    if (watcher != NULL) watcher->came(index, filter, slot);
}

void index_filter_went(index_t *index, hmq_slice filter, unsigned slot) {
    if (watcher == NULL) return;
    watcher->went(index, filter, slot);
    watcher->vanished(index, slot); /* perhaps no command of this module removed it */
}

/* The session is no longer in the index. */
static void session_free(indexed_session *session) {
    session->is_gone = true;
    if (session->holds > 0) return; /* the last release frees it */
    sv.FreeString(NULL, session->key);
    sv.FreeString(NULL, session->inbox);
    sv.FreeString(NULL, session->hash);
    sv.FreeDict(NULL, session->filters);
    sv.Free(session);
}

void index_session_hold(indexed_session *session) {
    session->holds++;
}

void index_session_release(indexed_session *session) {
    hmq_assert(session->holds > 0);
    if (--session->holds == 0 && session->is_gone) session_free(session);
}

/* A copy of the first filter, or of the first one from `name` on; NULL: there is none.  The caller frees it. */
static server_string *first_filter(const indexed_session *session, const char *op, hmq_slice name) {
    size_t len;
    server_dict_iter *iter = sv.DictIteratorStartC(session->filters, op, (void *)(uintptr_t)name.data, name.len);
    const char *filter = sv.DictNextC(iter, &len, NULL);
    server_string *copy = filter == NULL ? NULL : sv.CreateString(NULL, filter, len);
    sv.DictIteratorStop(iter);
    return copy;
}

/* The first of those that leave has left. */
static void end_leaving(index_t *index) {
    indexed_session *session = index->leaving;
    index->leaving = session->next_leaving;
    index_session_release(session);
}

static void make(index_t *index) {
    index->filters = seeded_trie_new();
    index->sessions = sv.CreateDict(NULL);
    index->shares = sv.CreateDict(NULL);
    index->waiting = sv.CreateDict(NULL);
}

static void release(index_t *index) {
    server_dict_iter *iter = sv.DictIteratorStartC(index->sessions, "^", NULL, 0);
    void *session;
    while (sv.DictNextC(iter, NULL, &session)) session_free(session);
    sv.DictIteratorStop(iter);
    while (index->leaving != NULL) end_leaving(index);
    sv.FreeDict(NULL, index->sessions);
    share_free_all(index->shares);
    sv.FreeDict(NULL, index->waiting);
    hmq_trie_free(index->filters);
}

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
    session->since_ms = sv.Milliseconds();
    sv.DictSetC(index->sessions, key.data, key.len, session);
    return session;
}

static void session_drop(index_t *index, indexed_session *session) {
    hmq_assert(index->pins[INDEX_SESSIONS] == 0); /* invariant 4 of index.h */
    hmq_slice key = slice_of(session->key);
    sv.DictDelC(index->sessions, key.data, key.len, NULL);
    session_free(session);
}

/* True if sessions are pinned: the session's filters will be read again. */
static bool defers_session(index_t *index, hmq_slice session_key) {
    if (index->pins[INDEX_SESSIONS] == 0) return false;
    server_string *name = session_key_name(session_key, HMQ_SUFFIX_SUBSCRIPTIONS);
    index_mark_stale(index, slice_of(name));
    sv.FreeString(NULL, name);
    return true;
}

static hmq_slice without_group(hmq_slice filter) {
    hmq_slice inner;
    return share_is(filter, &inner) ? inner : filter;
}

static void tell_new(index_t *index, const indexed_session *session, hmq_slice filter) {
    if (sv.DictGetC(session->filters, (void *)(uintptr_t)filter.data, filter.len, NULL) == NULL)
        watcher->came(index, without_group(filter), session->slot);
}

static void continue_leaving(index_t *index, size_t count);

void index_set_filter(index_t *index, hmq_slice session_key, hmq_slice filter, uint32_t options) {
    if (defers_session(index, session_key)) return;
    indexed_session *session = session_get(index, session_key);
    hmq_slice inner;
    if (index->leaving != NULL) continue_leaving(index, LEAVE_WITH_EACH);
    if (watcher != NULL) tell_new(index, session, filter);
    if (share_is(filter, &inner)) {
        if (share_find(index->shares, filter) == NULL)
            sv.DictSetC(index->waiting, filter.data, filter.len, index); /* it may have a queue already */
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
    if (s != NULL && sv.DictSize(s->members) <= 1)
        usage_forget(index->usage, NULL, &s->queued); /* the share may end with this member */
    if (is_shared)
        share_leave(index->shares, index->filters, filter, slice_of(session->key));
    else
        hmq_trie_remove(index->filters, (const char *)filter.data, filter.len, (uint64_t)(uintptr_t)session);
    if (watcher != NULL) watcher->went(index, without_group(filter), session->slot);
}

void index_remove_filter(index_t *index, hmq_slice session_key, hmq_slice filter) {
    indexed_session *session = session_find(index, session_key);
    if (session == NULL || defers_session(index, session_key)) return;
    if (sv.DictGetC(session->filters, (void *)(uintptr_t)filter.data, filter.len, NULL) == NULL) return;
    take_out(index, session, filter);
    sv.DictDelC(session->filters, filter.data, filter.len, NULL);
    if (sv.DictSize(session->filters) == 0) session_drop(index, session);
}

/* Groups lose a member at once. */
static void take_out_shares(index_t *index, indexed_session *session) {
    hmq_slice inner, from = {(const uint8_t *)"$share/", 7};
    server_string *name;
    while ((name = first_filter(session, ">=", from)) != NULL) {
        hmq_slice filter = slice_of(name);
        bool is_shared = share_is(filter, &inner);
        if (is_shared) take_out(index, session, filter);
        if (is_shared) sv.DictDelC(session->filters, (void *)(uintptr_t)filter.data, filter.len, NULL);
        sv.FreeString(NULL, name);
        if (!is_shared) return;
    }
}

static void take_out_all(index_t *index, indexed_session *session) {
    server_dict_iter *iter = sv.DictIteratorStartC(session->filters, "^", NULL, 0);
    size_t len;
    const char *filter;
    while ((filter = sv.DictNextC(iter, &len, NULL)) != NULL)
        take_out(index, session, (hmq_slice){(const uint8_t *)filter, len});
    sv.DictIteratorStop(iter);
    session_drop(index, session);
}

/* Its filters are taken out later: from now on they are nobody's. */
static void begin_leaving(index_t *index, indexed_session *session) {
    index_session_hold(session);
    session->next_leaving = index->leaving;
    index->leaving = session;
    session_drop(index, session);
    turns_request();
}

/* Takes up to `count` filters of sessions that leave out of the trie. */
static void continue_leaving(index_t *index, size_t count) {
    for (; count > 0 && index->leaving != NULL; count--) {
        indexed_session *session = index->leaving;
        server_string *name = first_filter(session, "^", (hmq_slice){0});
        if (name == NULL) {
            end_leaving(index);
            continue;
        }
        hmq_slice filter = slice_of(name);
        take_out(index, session, filter);
        sv.DictDelC(session->filters, (void *)(uintptr_t)filter.data, filter.len, NULL);
        sv.FreeString(NULL, name);
    }
}

/* In a cluster the routes of its slot go with the filters. */
void index_remove_session(index_t *index, hmq_slice session_key) {
    indexed_session *session = session_find(index, session_key);
    if (session == NULL || defers_session(index, session_key)) return;
    if (watcher != NULL || sv.DictSize(session->filters) <= AT_ONCE_MOST) {
        take_out_all(index, session);
        return;
    }
    take_out_shares(index, session);
    begin_leaving(index, session);
}

static bool has_leaving(int db) {
    return index_exists(db) && index_peek(db)->leaving != NULL;
}

bool index_filters_any_leaving(void) {
    for (int db = 0; db < index_databases(); db++) {
        if (has_leaving(db)) return true;
    }
    return false;
}

void index_filters_before_sleep(void) {
    uint64_t until_us = monotonic_us() + LEAVE_US;
    for (int db = 0; db < index_databases(); db++) {
        while (has_leaving(db) && monotonic_us() < until_us) continue_leaving(index_as_it_is(db), LEAVE_BETWEEN_LOOKS);
    }
    if (index_filters_any_leaving()) turns_request_another();
}

/* Is this field of a subscriptions hash valid for the index?  (Other programs may write anything there.) */
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
    if (subscription_of(filter, value, &s) && s.kind == SUBSCRIPTION_LIVE) /* the others read history */
        index_set_filter(target->index, target->key, filter, subscription_pack(s));
}

bool index_session_is_valid(server_ctx *ctx, index_t *index, const indexed_session *session) {
    server_key *hash = sv.OpenKey(ctx, session->hash, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool lives = sv.KeyType(hash) == SERVER_HASH;
    if (hash != NULL) sv.CloseKey(hash);
    if (lives) return true;
    index_mark_stale(index, slice_of(session->hash));
    return false;
}

bool index_session_matches(const indexed_session *session, hmq_slice topic) {
    server_dict_iter *iter = sv.DictIteratorStartC(session->filters, "^", NULL, 0);
    hmq_slice filter, inner;
    bool matches = false;
    while (!matches && (filter.data = sv.DictNextC(iter, &filter.len, NULL)) != NULL) {
        matches = !share_is(filter, &inner) &&
                  hmq_topic_matches((const char *)filter.data, filter.len, (const char *)topic.data, topic.len);
    }
    sv.DictIteratorStop(iter);
    return matches;
}

/* ---- from the keys ----------------------------------------------------------------------------------------- */

/* The length of the session key, if this is the name of {c}_subscriptions; else 0. */
static size_t subscriptions_of(hmq_slice name) {
    return hmq_session_key_of((const char *)name.data, name.len, HMQ_SUFFIX_SUBSCRIPTIONS);
}

static bool is_subscriptions(hmq_slice name) {
    return subscriptions_of(name) > 0;
}

/* Reads the hash of a session again. */
static void refresh_session(server_ctx *ctx, index_t *index, hmq_slice name) {
    session_target target = {index, {name.data, subscriptions_of(name)}};
    bool had = session_find(index, target.key) != NULL;
    index_remove_session(index, target.key);
    server_string *hash_name = session_key_name(target.key, HMQ_SUFFIX_SUBSCRIPTIONS);
    server_key *hash = sv.OpenKey(ctx, hash_name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    if (sv.KeyType(hash) == SERVER_HASH) {
        server_scan_cursor *cursor = sv.ScanCursorCreate();
        while (sv.ScanKey(hash, cursor, take_field, &target)) {}
        sv.ScanCursorDestroy(cursor);
    } else if (had && watcher != NULL) {
        watcher->vanished(index, slots_of_key(target.key));
    }
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, hash_name);
}

/* ---- checking ---------------------------------------------------------------------------------------------- */

static void look(server_ctx *ctx, index_t *index) {
    index_pin(index, INDEX_SESSIONS);
    server_dict_iter *iter = sv.DictIteratorStartC(index->sessions, "^", NULL, 0);
    void *session;
    while (sv.DictNextC(iter, NULL, &session)) index_session_is_valid(ctx, index, session);
    sv.DictIteratorStop(iter);
    index_unpin(index, INDEX_SESSIONS);
}

static void compare_sessions(const index_t *a, const index_t *b, const char *what, index_differ differ, void *context) {
    server_dict_iter *iter = sv.DictIteratorStartC(a->sessions, "^", NULL, 0);
    hmq_slice name;
    void *value;
    while ((name.data = sv.DictNextC(iter, &name.len, &value)) != NULL) {
        const indexed_session *session = value;
        const indexed_session *other = sv.DictGetC(b->sessions, (void *)(uintptr_t)name.data, name.len, NULL);
        if (other == NULL)
            differ(context, what, name);
        else
            index_compare_names(session->filters, other->filters, true, what, differ, context);
    }
    sv.DictIteratorStop(iter);
}

typedef struct trie_check {
    index_differ differ;
    void *context;
} trie_check;

/* Every pair of the trie must be in the session's own list of filters. */
static bool check_pair(void *context, const char *filter, size_t len, uint64_t subscriber, uint32_t options) {
    trie_check *check = context;
    hmq_slice text = {(const uint8_t *)filter, len};
    if (share_is_tagged(subscriber)) {
        hmq_slice inner = {0}, own = slice_of(share_of(subscriber)->filter);
        bool same = share_is(own, &inner) && inner.len == len && memcmp(inner.data, filter, len) == 0;
        if (!same) check->differ(check->context, "trie and share differ", text);
        return true;
    }
    const indexed_session *session = (const indexed_session *)(uintptr_t)subscriber;
    void *listed = sv.DictGetC(session->filters, (void *)(uintptr_t)filter, len, NULL);
    if (listed != (void *)((uintptr_t)options + 1)) check->differ(check->context, "trie and session differ", text);
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

/* The number of pairs that the trie should have. */
static size_t count_filters(const index_t *index) {
    size_t filters = 0;
    server_dict_iter *iter = sv.DictIteratorStartC(index->sessions, "^", NULL, 0);
    void *session;
    while (sv.DictNextC(iter, NULL, &session)) filters += sv.DictSize(((indexed_session *)session)->filters);
    sv.DictIteratorStop(iter);
    for (const indexed_session *left = index->leaving; left != NULL; left = left->next_leaving)
        filters += sv.DictSize(left->filters);
    return filters - members_of_shares(index) + sv.DictSize(index->shares);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    compare_sessions(kept, rebuilt, "subscription in the index but not in the keys, or different", differ, context);
    compare_sessions(rebuilt, kept, "subscription in the keys but not in the index, or different", differ, context);
    share_compare(kept->shares, rebuilt->shares, differ, context);
    share_compare(rebuilt->shares, kept->shares, differ, context);
    trie_check pairs = {differ, context};
    hmq_trie_walk(kept->filters, check_pair, &pairs);
    if (hmq_trie_pairs(kept->filters) != count_filters(kept))
        differ(context, "the trie has another number of filters than the sessions", (hmq_slice){0});
}

const index_kind index_filters_kind = {
    .make = make,
    .release = release,
    .is_key = is_subscriptions,
    .refresh = refresh_session,
    .look = look,
    .check = check,
};
