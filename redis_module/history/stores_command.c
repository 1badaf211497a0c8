/* stores_command.c - HISTORY.STORES and HISTORY.UNSTORE: lists the stores, and removes one. */
#include "server/access.h"
#include "server/errors.h"
#include "server/reply.h"
#include "history/drop.h"
#include "history/filters.h"
#include "history/history.h"
#include "history/policy_write.h"
#include "history/slots.h"

#define CLUSTER_FIELDS 2  /* besides those of the policy */
#define UNSTORE_KEYS 8192 /* removed immediately; the others in the background */

/* ---- HISTORY.UNSTORE --------------------------------------------------------------------------------------- */

/* Can the state be read?  The logs need not be valid. */
static bool may_drop(server_ctx *ctx, const history_store *store, unsigned shard) {
    history_shard state = {.store = store, .shard = shard};
    server_string *name = history_key(store, shard, "%s", "");
    bool right = history_shard_load(ctx, name, &state);
    if (!right) reply_wrong_type(ctx, name, "the state of a shard of history");
    sv.FreeString(NULL, name);
    return right;
}

int history_unstore_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc != 2) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    const history_store *store = history_take_store(&a, 0);
    if (store == NULL || !history_check_not_moving(ctx, store)) return SERVER_OK;
    for (unsigned shard = 0; shard < store->shards; shard++) {
        if (history_is_here(ctx, store, shard) && !may_drop(ctx, store, shard)) return SERVER_OK;
    }
    server_string *key = sv.HoldString(NULL, store->key);
    history_slice slice = {.keys = UNSTORE_KEYS};
    history_drop_store(ctx, store, &slice);
    history_stores_refresh(ctx, index_of(ctx)->histories, slice_of(key));
    sv.FreeString(NULL, key);
    return sv.ReplyWithSimpleString(ctx, "OK");
}

/* ---- HISTORY.STORES ---------------------------------------------------------------------------------------- */

/* In a cluster: replies the shards of this node. */
static void reply_here(server_ctx *ctx, const history_store *s) {
    long count = 0;
    sv.ReplyWithCString(ctx, "here");
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    for (unsigned shard = 0; shard < s->shards; shard++) {
        if (!history_is_here(ctx, s, shard)) continue;
        sv.ReplyWithLongLong(ctx, shard);
        count++;
    }
    sv.ReplySetArrayLength(ctx, count);
}

static void reply_store(server_ctx *ctx, const history_store *s) {
    history_reply_policy(ctx, s, can.cluster ? CLUSTER_FIELDS : 0);
    if (!can.cluster) return;
    reply_field(ctx, "spread", s->spread);
    reply_here(ctx, s);
}

int history_stores_command(server_ctx *ctx, server_string **argv, int argc) {
    (void)argv;
    if (argc != 1) return sv.WrongArity(ctx);
    const history_stores *stores = index_of(ctx)->histories;
    long count = 0;
    server_string *user;
    bool is_restricted = access_is_restricted(ctx, false, &user);
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    for (const history_store *s = NULL; (s = history_stores_next(stores, s)) != NULL;) {
        if (is_restricted && !history_may_see(user, s)) continue;
        reply_store(ctx, s);
        count++;
    }
    sv.ReplySetArrayLength(ctx, count);
    if (user != NULL) sv.FreeString(NULL, user);
    return SERVER_OK;
}
