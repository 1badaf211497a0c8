/* policy_write.c - writes policies of history as hashes, and as maps in replies. */
#include "history/policy_write.h"

#include <inttypes.h>
#include <string.h>

#include "server/keyspace.h"
#include "server/replication.h"
#include "server/reply.h"
#include "history/history.h"
#include "history/slots.h"

#define POLICY_FIELDS 11

typedef struct fields {
    server_string *pairs[2 * (POLICY_FIELDS + HISTORY_FILTERS_MAX)];
    size_t count;
} fields;

static void add(fields *f, const char *name, size_t len, server_string *value) {
    f->pairs[f->count++] = sv.CreateString(NULL, name, len);
    f->pairs[f->count++] = value;
}

static void add_number(fields *f, const char *name, long long number) {
    add(f, name, strlen(name), sv.CreateStringFromLongLong(NULL, number));
}

static void add_filters(fields *f, const history_store *store) {
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    size_t len;
    const char *filter;
    while ((filter = sv.DictNextC(iter, &len, NULL)) != NULL) {
        char *field = sv.Alloc(len + 7);
        memcpy(field, "filter ", 7);
        memcpy(field + 7, filter, len);
        add(f, field, len + 7, sv.CreateString(NULL, "", 0));
        sv.Free(field);
    }
    sv.DictIteratorStop(iter);
}

/* Writes fields to the hash, which is created if needed. */
static void write_fields(server_ctx *ctx, server_string *name, fields *f) {
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    for (size_t i = 0; i < f->count; i += 2) sv.HashSet(hash, SERVER_HASH_NONE, f->pairs[i], f->pairs[i + 1], NULL);
    sv.CloseKey(hash);
    replicate(ctx, "HSET", "sv", name, f->pairs, f->count);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    for (size_t i = 0; i < f->count; i++) sv.FreeString(NULL, f->pairs[i]);
}

static server_string *seed_text(const history_store *store) {
    return sv.CreateStringPrintf(NULL, "%016" PRIx64 "%016" PRIx64, store->seed.low, store->seed.high);
}

static void add_spread(fields *f, const history_store *store) {
    add_number(f, "spread", store->spread);
    add_number(f, "had", (long long)store->former_shards);
}

void history_policy_write(server_ctx *ctx, const history_store *store, unsigned shard) {
    fields f = {.count = 0};
    server_string *name = history_policy_key(store->name, shard);
    add_number(&f, "shards", store->shards);
    add_number(&f, "levels", store->levels);
    add_number(&f, "age", store->age_s);
    add_number(&f, "epoch", store->epoch_s);
    add_number(&f, "bytes", store->bytes);
    add(&f, "seed", 4, seed_text(store));
    if (store->hold >= 0) add_number(&f, "hold", store->hold);
    if (store->former_shards != 0) add_spread(&f, store);
    if (store->learn_s > 0) add_number(&f, "learn", store->learn_s);
    if (can.cluster) add_number(&f, "changed", store->changed_ms);
    add_filters(&f, store);
    keyspace_drop(ctx, sv.HoldString(NULL, name)); /* removes its former filters */
    write_fields(ctx, name, &f);
    sv.FreeString(NULL, name);
}

void history_policy_copy_to_shard(server_ctx *ctx, const history_store *store, unsigned shard) {
    if (!can.cluster || (store->copies >> shard & 1)) return;
    history_policy_write(ctx, store, shard);
    server_string *name = history_policy_key(store->name, shard);
    history_stores_refresh(ctx, index_of(ctx)->histories,
                           slice_of(name)); /* the content is the same, so the store stays */
    sv.FreeString(NULL, name);
}

void history_store_spread(server_ctx *ctx, const history_store *store, unsigned shards) {
    server_string *name = sv.HoldString(NULL, store->key); /* the store is read again, which frees this one */
    fields f = {.count = 0};
    history_store wanted = {.spread = shards, .former_shards = store->former_shards};
    if (shards > store->shards) wanted.former_shards |= UINT64_C(1) << (store->shards - 1);
    add_number(&f, "shards", shards > store->shards ? shards : store->shards);
    add_spread(&f, &wanted);
    write_fields(ctx, name, &f);
    history_stores_refresh(ctx, index_of(ctx)->histories, slice_of(name));
    sv.FreeString(NULL, name);
}

/* ---- removing ---------------------------------------------------------------------------------------------- */

static bool is_unmarked(server_ctx *ctx, server_string *name) {
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    int marked = 1;
    if (sv.KeyType(hash) == SERVER_HASH)
        sv.HashGet(hash, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, "removed", &marked, NULL);
    if (hash != NULL) sv.CloseKey(hash);
    return !marked;
}

static void mark(server_ctx *ctx, const history_store *store, unsigned shard) {
    fields f = {.count = 0};
    server_string *name = history_policy_key(store->name, shard);
    if (is_unmarked(ctx, name)) {
        add_number(&f, "removed", 1);
        if (can.cluster) add_number(&f, "changed", history_changed_now(store));
        write_fields(ctx, name, &f);
    }
    sv.FreeString(NULL, name);
}

void history_policy_mark_removed(server_ctx *ctx, const history_store *store) {
    for (unsigned shard = 0; shard < (can.cluster ? store->shards : 1); shard++) {
        if (history_is_here(ctx, store, shard)) mark(ctx, store, shard);
    }
}

long long history_changed_now(const history_store *own) {
    long long now_ms = sv.Milliseconds();
    return own != NULL && own->changed_ms >= now_ms ? own->changed_ms + 1 : now_ms;
}

/* ---- notices ----------------------------------------------------------------------------------------------- */

#define MAP_FIELDS 9
#define CLUSTER_FIELDS 2 /* additional fields */

static void reply_filters(server_ctx *ctx, const history_store *store) {
    sv.ReplyWithCString(ctx, "filters");
    sv.ReplyWithArray(ctx, (long)sv.DictSize(store->filters));
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    size_t len;
    const char *filter;
    while ((filter = sv.DictNextC(iter, &len, NULL)) != NULL) sv.ReplyWithStringBuffer(ctx, filter, len);
    sv.DictIteratorStop(iter);
}

static void reply_seed(server_ctx *ctx, const history_store *store) {
    server_string *seed = seed_text(store);
    sv.ReplyWithCString(ctx, "seed");
    sv.ReplyWithString(ctx, seed);
    reply_field(ctx, "changed", (uint64_t)store->changed_ms);
    sv.FreeString(NULL, seed);
}

void history_reply_policy(server_ctx *ctx, const history_store *store, long more) {
    sv.ReplyWithMap(ctx, MAP_FIELDS + (can.cluster ? CLUSTER_FIELDS : 0) + more);
    sv.ReplyWithCString(ctx, "store");
    sv.ReplyWithStringBuffer(ctx, (const char *)store->name.data, store->name.len);
    reply_filters(ctx, store);
    reply_field(ctx, "shards", store->shards);
    reply_field(ctx, "levels", store->levels);
    reply_field(ctx, "age", (uint64_t)store->age_s);
    reply_field(ctx, "epoch", (uint64_t)store->epoch_s);
    reply_field(ctx, "bytes", (uint64_t)store->bytes);
    reply_field(ctx, "holdbytes", (uint64_t)history_store_hold(store));
    reply_field(ctx, "learn", (uint64_t)store->learn_s);
    if (can.cluster) reply_seed(ctx, store);
}
