/* events.c - how the index hears of changes: keyspace notifications, flushes, swapped databases. */
#include <string.h>

#include "topic/session_key.h"
#include "index/channels.h"
#include "history/live.h"
#include "index/internal.h"
#include "session/owner.h"
#include "server/keyspace.h"

/* A replica serves the former data while it loads those of its primary (repl-diskless-load swapdb): what is told of keys that
 * are loaded is not of the databases that are served. */
static bool loading_aside;

/* ---- keys -------------------------------------------------------------------------------------------------- */

static void tell_queue_expired(int db, const char *name, size_t len) {
    size_t key_len = hmq_session_key_of(name, len, HMQ_SUFFIX_MESSAGES);
    if (key_len > 0 && index_watched_by.queue_expired != NULL)
        index_watched_by.queue_expired(db, (hmq_slice){(const uint8_t *)name, key_len});
}

/* A key called {c}_messages_<packet id>: tells whoever watches. */
static void tell_message_gone(int db, const char *name, size_t len) {
    static const char middle[] = "}_messages_";
    const size_t n = sizeof middle - 1;
    if (index_watched_by.message_gone == NULL || len <= n + 1 || name[len - 1] < '0' || name[len - 1] > '9') return;
    const char *found = memmem(name, len, middle, n);
    if (found != NULL)
        index_watched_by.message_gone(db, (hmq_slice){(const uint8_t *)name, (size_t)(found - name) + 1});
}

static void key_gone(int db, index_t *index, const char *name, size_t len, bool expired) {
    hmq_slice owner;
    tell_message_gone(db, name, len);
    /* When an owner's key expires is known, and whether it counts already is the deadline's affair (session/owner.h). */
    bool has_deadline = expired && owner_is_key((hmq_slice){(const uint8_t *)name, len}, &owner);
    if (index_needs_look(name, len) && !has_deadline) index_mark_stale(index, name, len);
    hmq_slice key = {(const uint8_t *)name, len};
    if (channel_index_is_key(key))
        channel_index_key_changed(index, key, false);
    else
        channel_index_name_used(index, key, false);
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

static void on_key_event(server_ctx *ctx, int type, const char *event, server_string *key) {
    static const char *const gone[] = {"del", "rename_from", "move_from", NULL};
    static const char *const harmless[] = {"expire", "persist", NULL};
    if (loading_aside && type == SERVER_NOTIFY_LOADED) return;
    size_t len;
    const char *name = sv.StringPtrLen(key, &len);
    if (type == SERVER_NOTIFY_EXPIRED) tell_queue_expired(sv.GetSelectedDb(ctx), name, len);
    index_t *index = index_at(sv.GetSelectedDb(ctx));
    if (type != SERVER_NOTIFY_LIST) history_live_doubt(index->histories, slice_of(key));
    if (type == SERVER_NOTIFY_HASH) {
        if (index_needs_look(name, len)) index_mark_stale(index, name, len);
    } else if (type == SERVER_NOTIFY_LIST) {
        hmq_slice list = {(const uint8_t *)name, len};
        if (channel_index_is_key(list))
            channel_index_key_changed(index, list, true);
        else
            channel_index_name_used(index, list, true);
    } else if (type == SERVER_NOTIFY_EXPIRED || type == SERVER_NOTIFY_EVICTED || one_of(event, gone)) {
        key_gone(sv.GetSelectedDb(ctx), index, name, len, type == SERVER_NOTIFY_EXPIRED);
    } else if (database_is_uncertain(ctx, type, event)) {
        index_doubt_all();
    } else if (!one_of(event, harmless)) {
        index_key_appeared(ctx, index, name, len);
    }
}

/* The index knows already; what is remembered of the key beside it is in doubt. */
static void on_own_write(server_ctx *ctx, server_string *key) {
    index_t *index = index_at(sv.GetSelectedDb(ctx));
    history_live_doubt(index->histories, slice_of(key));
    session_index_forget_facts(index->opened, slice_of(key));
}

/* ---- server events ----------------------------------------------------------------------------------------- */

static void flush(server_ctx *ctx, int db) {
    hmq_slice after = {0};
    bool tells = index_exists(db) && index_tells_of_sessions(ctx);
    index_t *index = tells ? index_at(db) : NULL;
    if (tells) index_pin(index, INDEX_SESSIONS);
    for (session_entry *e; tells && (e = session_index_next(index->opened, after)) != NULL;) {
        after = slice_of(e->key);
        if (e->connected) index_watched_by.session_gone(ctx, after, e->epoch);
    }
    if (tells) index_unpin(index, INDEX_SESSIONS);
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
    channel_index_forget_names();
    for (int db = 0; db < index_databases(); db++) flush(ctx, db);
}

static void on_swapdb(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)sub;
    const server_swapdb_info *info = data;
    index_swap(info->first, info->second);
    if (index_watched_by.swapped != NULL) index_watched_by.swapped();
}

/* The databases that are served change at once, and without an event for each key. */
static void on_async_load(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)data;
    loading_aside = sub == SERVER_ASYNC_LOAD_STARTED;
    if (sub != SERVER_ASYNC_LOAD_COMPLETED) return;
    index_forget_all();
    if (index_watched_by.swapped != NULL) index_watched_by.swapped();
}

void index_start(server_ctx *ctx, bool populated) {
    index_scan_new(populated);
    keyspace_start(ctx, (keyspace_listener){on_key_event, on_own_write});
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_FLUSHDB, 1}, on_flush);
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_SWAPDB, 1}, on_swapdb);
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_REPL_ASYNC_LOAD, 1}, on_async_load);
}
