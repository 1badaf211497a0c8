/* events.c - how the index is notified of changes: keyspace notifications, flushes, swapped databases. */
#include <string.h>

#include "topic/session_key.h"
#include "server/data_set.h"
#include "server/keyspace.h"
#include "server/listening.h"
#include "index/internal.h"

/* A replica serves its former data while it loads those of its primary (repl-diskless-load swapdb).  Notifications of
 * keys that are loaded then do not concern the served databases. */
static bool loading_aside;

typedef void (*tell_name)(index_t *index, hmq_slice name);
/* The functions of the kinds.  A loop over all kinds would cost each of the many keys that a message writes. */
static tell_name *changed, *written;
static size_t changed_count, written_count;

/* ---- keys -------------------------------------------------------------------------------------------------- */

static void report_queue_expired(int db, hmq_slice name) {
    size_t key_len = hmq_session_key_of((const char *)name.data, name.len, HMQ_SUFFIX_MESSAGES);
    if (key_len > 0 && index_watched_by.queue_expired != NULL)
        index_watched_by.queue_expired(db, (hmq_slice){name.data, key_len});
}

/* A key named {c}_messages_<packet id>: calls the watcher. */
static void report_message_gone(int db, hmq_slice name) {
    static const char middle[] = "}_messages_";
    const size_t n = sizeof middle - 1;
    if (index_watched_by.message_gone == NULL || name.len <= n + 1) return;
    if (name.data[name.len - 1] < '0' || name.data[name.len - 1] > '9') return;
    const uint8_t *found = memmem(name.data, name.len, middle, n);
    if (found != NULL) index_watched_by.message_gone(db, (hmq_slice){name.data, (size_t)(found - name.data) + 1});
}

static void key_gone(server_ctx *ctx, int db, index_t *index, hmq_slice name, bool expired) {
    report_message_gone(db, name);
    if (index_needs_look(name, expired)) index_mark_stale(index, name);
    index_name_used(ctx, index, name, INDEX_NAME_GONE);
}

static bool one_of(const char *event, const char *const *names) {
    for (; *names != NULL; names++) {
        if (strcmp(event, *names) == 0) return true;
    }
    return false;
}

/* Inside a transaction, Valkey 9 reports the client's database in events of keys of another database.  Then nothing is
 * certain. */
static bool database_is_uncertain(server_ctx *ctx, int type, const char *event) {
    static const char *const elsewhere[] = {"copy_to", "move_to", NULL};
    if (!can.valkey || (type != SERVER_NOTIFY_LOADED && !one_of(event, elsewhere))) return false;
    return (sv.GetContextFlags(ctx) & SERVER_CTX_MULTI) != 0;
}

/* All keys of which an entry is made have such names: "{...}_..." with or without a prefix, or "holdmq:...". */
static bool may_be_own(hmq_slice name) {
    return name.len > 0 && (name.data[0] == 'h' || memchr(name.data, '{', name.len) != NULL);
}

static void on_key_event(server_ctx *ctx, int type, const char *event, server_string *key) {
    static const char *const gone[] = {"del", "rename_from", "move_from", NULL};
    static const char *const harmless[] = {"expire", "persist", NULL};
    if (loading_aside && type == SERVER_NOTIFY_LOADED) return;
    hmq_slice name = slice_of(key);
    bool is_own = may_be_own(name);
    if (!is_own && (type == SERVER_NOTIFY_HASH || (type == SERVER_NOTIFY_GENERIC && one_of(event, harmless)))) return;
    int db = sv.GetSelectedDb(ctx);
    if (!is_own && type != SERVER_NOTIFY_LIST && !index_exists(db)) { /* nothing to forget, and nothing to remember */
        if (database_is_uncertain(ctx, type, event)) index_mark_all_stale();
        return;
    }
    if (type == SERVER_NOTIFY_EXPIRED) report_queue_expired(db, name);
    index_t *index = index_at(db);
    for (size_t i = 0; is_own && type != SERVER_NOTIFY_LIST && i < changed_count; i++) changed[i](index, name);
    if (type == SERVER_NOTIFY_HASH) {
        if (index_needs_look(name, false)) index_mark_stale(index, name);
    } else if (type == SERVER_NOTIFY_LIST) {
        index_name_used(ctx, index, name, INDEX_NAME_LIST);
    } else if (type == SERVER_NOTIFY_EXPIRED || type == SERVER_NOTIFY_EVICTED || one_of(event, gone)) {
        key_gone(ctx, db, index, name, type == SERVER_NOTIFY_EXPIRED);
    } else if (database_is_uncertain(ctx, type, event)) {
        index_mark_all_stale();
    } else if (!one_of(event, harmless)) {
        index_key_appeared(ctx, index, name);
    }
}

/* The index is current already.  What a kind remembers of the key beside it may be outdated. */
static void on_own_write(server_ctx *ctx, server_string *key) {
    index_t *index = index_at(sv.GetSelectedDb(ctx));
    for (size_t i = 0; i < written_count; i++) written[i](index, slice_of(key));
}

/* ---- server events ----------------------------------------------------------------------------------------- */

static void flush(server_ctx *ctx, int db) {
    for (const index_kind *const *kind = index_kinds(); index_exists(db) && *kind != NULL; kind++) {
        if ((*kind)->emptied != NULL) (*kind)->emptied(ctx, index_at(db));
    }
    index_reset(db);
}

static void on_flush(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)event;
    const server_flush_info *info = data;
    if (sub != SERVER_FLUSHDB_END) return;
    if (index_watched_by.emptied != NULL) index_watched_by.emptied();
    if (info->db >= 0) {
        flush(ctx, info->db);
        return;
    }
    index_scan_new(false);
    for (const index_kind *const *kind = index_kinds(); *kind != NULL; kind++) {
        if ((*kind)->all_emptied != NULL) (*kind)->all_emptied();
    }
    for (int db = 0; db < index_databases(); db++) flush(ctx, db);
}

static void on_swapdb(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)sub;
    const server_swapdb_info *info = data;
    index_swap(info->first, info->second);
    if (index_watched_by.swapped != NULL) index_watched_by.swapped();
}

/* The served databases change at once, without an event for each key. */
static void on_async_load(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)data;
    loading_aside = sub == SERVER_ASYNC_LOAD_STARTED;
    if (sub != SERVER_ASYNC_LOAD_COMPLETED) return;
    index_forget_all();
    if (index_watched_by.swapped != NULL) index_watched_by.swapped();
}

static void collect_listeners(const index_kind *const *kinds) {
    size_t count = 0;
    while (kinds[count] != NULL) count++;
    changed = sv.Calloc(count, sizeof *changed);
    written = sv.Calloc(count, sizeof *written);
    for (size_t i = 0; i < count; i++) {
        if (kinds[i]->changed != NULL) changed[changed_count++] = kinds[i]->changed;
        if (kinds[i]->written != NULL) written[written_count++] = kinds[i]->written;
    }
}

void index_start(server_ctx *ctx, bool populated, const index_kind *const *kinds) {
    index_register(kinds);
    collect_listeners(kinds);
    index_scan_new(populated);
    keyspace_start(ctx, (keyspace_listener){on_key_event, on_own_write});
    data_set_on_flush(on_flush);
    data_set_on_swap(on_swapdb);
}

void index_expect_async_load(bool is_replica) {
    static event_listener loads = {.event = SERVER_EVENT_REPL_ASYNC_LOAD, .handler = on_async_load};
    if (loads.is_wanted == is_replica) return;
    listening_set(&loads, is_replica);
    bool is_loading =
        (sv.GetContextFlags(detached) & SERVER_CTX_ASYNC_LOADING) != 0; /* one of its keys woke the module */
    loading_aside = is_replica && is_loading;
}
