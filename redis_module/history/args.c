/* args.c - the common arguments of history commands: the store, and a shard of it.
 *
 * The keys of a shard are not arguments, so the server cannot check the user's access to them.  It is checked here. */
#include "server/access.h"
#include "server/errors.h"
#include "index/index.h"
#include "history/history.h"
#include "history/live.h"
#include "history/shard.h"
#include "history/slots.h"

int history_shard_option(const args *a) {
    for (int i = a->at; i + 1 < a->argc; i++) {
        if (slice_is(slice_of(a->argv[i]), "SHARD")) return i + 1;
    }
    return 0;
}

/* A node without any shard of a store does not know the store: the command is redirected to the owner of the shard. */
static bool may_be_elsewhere(const args *a, hmq_slice name, int shard_at) {
    long long shard;
    return can.cluster && shard_at > 0 && shard_at < a->argc && name.len <= HISTORY_NAME_MAX &&
           number_of(a->argv[shard_at], 0, HISTORY_SHARDS_MAX - 1, &shard) &&
           !history_check_slot(a->ctx, name, (unsigned)shard);
}

const history_store *history_take_store(args *a, int shard_at) {
    server_string *name;
    if (!args_string(a, "the store", &name)) return NULL;
    const history_store *store = history_stores_find(index_of(a->ctx)->histories, slice_of(name));
    if (store == NULL && !may_be_elsewhere(a, slice_of(name), shard_at))
        reply_error(a->ctx, ERROR_STORE_UNKNOWN, shown(name));
    return store;
}

bool history_open_shard(server_ctx *ctx, const history_store *store, unsigned shard, history_shard *state) {
    if (!history_check_here(ctx, store, shard)) return false;
    server_string *key = history_key(store, shard, "%s", "");
    bool may = access_may_read_here(ctx, key);
    if (!may) reply_error(ctx, ERROR_KEY_READ_DENIED, shown(key));
    sv.FreeString(NULL, key);
    return may && history_shard_read(ctx, store, shard, state, true);
}

bool history_take_shard(args *a, const history_store *store, history_shard *state) {
    long long shard;
    return args_number(a, "the shard", 0, store->shards - 1, &shard) &&
           history_open_shard(a->ctx, store, (unsigned)shard, state);
}

bool history_may_change(server_ctx *ctx, const history_store *store, unsigned shard) {
    server_string *key = history_key(store, shard, "%s", "");
    bool may = access_may_write(ctx, key);
    if (!may) reply_error(ctx, ERROR_KEY_WRITE_DENIED, shown(key));
    sv.FreeString(NULL, key);
    return may;
}
