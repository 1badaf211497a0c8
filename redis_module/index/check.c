/* check.c - HOLDMQ.CHECK: compares the indexes of a database with a rebuild from its keys. */
#include <string.h>

#include "topic/session_key.h"
#include "index/channels.h"
#include "history/live.h"
#include "index/internal.h"
#include "queue/notes.h"
#include "queue/usage.h"
#include "routing/retained_cursors.h"
#include "index/session_hash.h"
#include "server/session_keys.h"

static void doubt_policy(void *context, hmq_slice key) {
    index_doubt(context, key);
}

static server_dict *copy_names(server_dict *from) {
    server_dict *names = sv.CreateDict(NULL);
    server_dict_iter *iter = sv.DictIteratorStartC(from, "^", NULL, 0);
    size_t len;
    const char *name;
    while ((name = sv.DictNextC(iter, &len, NULL)) != NULL) sv.DictSetC(names, name, len, names);
    sv.DictIteratorStop(iter);
    return names;
}

static void look_at_retained(server_ctx *ctx, index_t *index) {
    server_dict *names = copy_names(index->retained_keys);
    server_dict_iter *iter = sv.DictIteratorStartC(names, "^", NULL, 0);
    size_t len;
    const char *name;
    while ((name = sv.DictNextC(iter, &len, NULL)) != NULL) index_key_appeared(ctx, index, name, len);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, names);
}

/* Looks at the key of every entry, as its next user would. */
static void look_at_all(server_ctx *ctx, index_t *index) {
    channel_index_look(ctx, index);
    look_at_retained(ctx, index);
    index_pin(index, INDEX_SESSIONS);
    server_dict_iter *iter = sv.DictIteratorStartC(index->sessions, "^", NULL, 0);
    void *session;
    while (sv.DictNextC(iter, NULL, &session)) index_session_lives(ctx, index, session);
    sv.DictIteratorStop(iter);
    hmq_slice after = {0};
    history_stores_each_key(index->histories, doubt_policy, index);
    for (session_entry *e; (e = session_index_next(index->opened, after)) != NULL; after = slice_of(e->key)) {
        server_string *name = session_key_name(slice_of(e->key), HMQ_SUFFIX_SESSION);
        hmq_slice text = slice_of(name);
        if (index_type_of(ctx, (const char *)text.data, text.len) != SERVER_HASH)
            index_mark_stale(index, (const char *)text.data, text.len);
        sv.FreeString(NULL, name);
    }
    index_unpin(index, INDEX_SESSIONS);
}

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

/* For whom each retained message counts. */
static void compare_holders(server_ctx *ctx, const index_t *a, const index_t *b) {
    server_dict_iter *iter = sv.DictIteratorStartC(a->retained_keys, "^", NULL, 0);
    size_t len;
    const char *name;
    void *value;
    while ((name = sv.DictNextC(iter, &len, &value)) != NULL) {
        const retained_entry *entry = value, *other = sv.DictGetC(b->retained_keys, name, len, NULL);
        if (other == NULL) continue; /* told by others */
        if (!usage_is_same(entry->user, other->user))
            differ(ctx, "retained message of another user in the index", name, len);
    }
    sv.DictIteratorStop(iter);
}

static void compare_facts(server_ctx *ctx, const index_t *kept) {
    hmq_slice after = {0};
    for (session_entry *e; (e = session_index_next(kept->opened, after)) != NULL; after = slice_of(e->key))
        if (!session_facts_hold(ctx, e)) tell_difference(ctx, "the session's hash holds other facts", slice_of(e->key));
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
    index_t *rebuilt = index_rebuild(ctx);
    kept = index_of(ctx); /* the scan may have expired keys */
    differences = 0;
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    compare_sessions(ctx, kept, rebuilt, "subscription in the index but not in the keys, or different");
    compare_sessions(ctx, rebuilt, kept, "subscription in the keys but not in the index, or different");
    compare_dicts(ctx, kept->held, rebuilt->held, true, "lists of a channel in the index but not in the keys");
    compare_dicts(ctx, rebuilt->held, kept->held, true, "lists of a channel in the keys but not in the index");
    compare_dicts(ctx, kept->retained_keys, rebuilt->retained_keys, false,
                  "retained message in the index but not in the keys");
    compare_dicts(ctx, rebuilt->retained_keys, kept->retained_keys, false,
                  "retained message in the keys but not in the index");
    session_index_compare(kept->opened, rebuilt->opened, tell_difference, ctx);
    compare_facts(ctx, kept);
    queue_notes_check(ctx, tell_difference, ctx);
    compare_holders(ctx, kept, rebuilt);
    usage_compare(kept->usage, rebuilt->usage, tell_difference, ctx);
    queue_usage_check(ctx, kept, tell_difference, ctx);
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
    compare_dicts(ctx, kept->retained, rebuilt->retained, false, "retained topic in the index but not in the keys");
    if (sv.DictSize(kept->retained) != sv.DictSize(kept->retained_keys))
        differ(ctx, "there is another number of retained topics than of their keys", "", 0);
    retained_cursors_compare(kept->cursors, rebuilt->cursors, tell_difference, ctx);
    retained_cursors_compare(rebuilt->cursors, kept->cursors, tell_difference, ctx);
    sv.ReplySetArrayLength(ctx, differences);
    index_free(rebuilt);
    return SERVER_OK;
}
