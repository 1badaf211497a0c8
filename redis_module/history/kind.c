/* kind.c - registers the policies of history and the remembered shards with the index. */
#include "history/kind.h"

#include "history/live.h"
#include "history/store.h"

static void make(index_t *index) {
    index->histories = history_stores_new(index, history_live_free);
}

static void release(index_t *index) {
    history_stores_free(index->histories);
}

static void refresh(server_ctx *ctx, index_t *index, hmq_slice name) {
    history_stores_refresh(ctx, index->histories, name);
}

static void mark_stale(index_t *index, hmq_slice name) {
    history_live_mark_stale(index->histories, name);
}

static void mark_all_stale(index_t *index) {
    history_live_mark_all_stale(index->histories);
}

static void mark_policy_stale(void *context, hmq_slice key) {
    index_mark_stale(context, key);
}

static void look(server_ctx *ctx, index_t *index) {
    (void)ctx;
    history_stores_each_key(index->histories, mark_policy_stale, index);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    history_stores_compare(kept->histories, rebuilt->histories, differ, context);
    history_stores_compare(rebuilt->histories, kept->histories, differ, context);
    history_live_check(ctx, kept->histories, differ, context);
}

const index_kind history_kind = {
    .make = make,
    .release = release,
    .is_key = history_store_is_key,
    .refresh = refresh,
    .changed = mark_stale,
    .written = mark_stale,
    .doubt_all = mark_all_stale,
    .look = look,
    .check = check,
};
