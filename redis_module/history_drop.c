/* history_drop.c - removes keys of history. */
#include "history_drop.h"

#include <inttypes.h>

#include "../src/history_index.h"
#include "errors.h"
#include "index.h"
#include "replication.h"

void history_drop_key(server_ctx *ctx, server_string *name) {
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(key) != SERVER_EMPTY) {
        sv.UnlinkKey(key);
        replicate(ctx, "UNLINK", "s", name);
        index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

static size_t log_length(server_ctx *ctx, server_string *name) {
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    size_t length = key != NULL && sv.KeyType(key) == SERVER_STREAM ? sv.ValueLength(key) : 0;
    if (key != NULL) sv.CloseKey(key);
    return length;
}

static void drop_slot(server_ctx *ctx, const history_shard *state, uint32_t epoch, uint32_t pattern, unsigned slot,
                      unsigned bits, unsigned last_page) {
    for (unsigned page = 0; page <= last_page; page++) {
        hmq_index_place at = hmq_index_place_of(0, bits, page);
        for (uint32_t group = 0; group < UINT32_C(1) << at.group_bits; group++) {
            history_drop_key(ctx, history_key(state->store, state->shard, "_%" PRIu32 "_%" PRIu32 "_%u_%u_%" PRIu32,
                                              epoch, pattern, slot, page, group));
        }
    }
}

void history_drop_epoch(server_ctx *ctx, const history_shard *state, const history_epoch *epoch) {
    const hmq_patterns *set = history_patterns(ctx, state->store, state->shard, epoch->generation);
    uint32_t count = set == NULL ? 0 : hmq_patterns_count(set);
    for (uint32_t p = 0; p < count; p++) {
        server_string *log = history_key(state->store, state->shard, "_%" PRIu32 "_%" PRIu32, epoch->epoch, p);
        size_t length = log_length(ctx, log);
        const hmq_pattern *pattern = hmq_patterns_at(set, p);
        for (unsigned slot = 0; length > 0 && slot < pattern->slots; slot++)
            drop_slot(ctx, state, epoch->epoch, p, slot, pattern->bits[slot], hmq_index_page(length - 1));
        history_drop_key(ctx, log);
    }
    history_drop_key(ctx, history_key(state->store, state->shard, "_%" PRIu32 "_marks", epoch->epoch));
}

static void drop_shard(server_ctx *ctx, const history_shard *state) {
    history_epoch epoch;
    for (uint32_t e = state->oldest; state->exists && e <= state->epoch; e++) {
        if (history_epoch_read(ctx, state, e, &epoch)) history_drop_epoch(ctx, state, &epoch);
    }
    for (uint32_t g = 1; g <= state->generation; g++)
        history_drop_key(ctx, history_key(state->store, state->shard, "_%" PRIu32 "_patterns", g));
    history_drop_key(ctx, history_key(state->store, state->shard, "_producers"));
    history_drop_key(ctx, history_key(state->store, state->shard, "_epochs"));
    history_drop_key(ctx, history_key(state->store, state->shard, "%s", ""));
}

/* The logs need not be right. */
static bool read_state(server_ctx *ctx, const history_store *store, unsigned shard, history_shard *state) {
    *state = (history_shard){.store = store, .shard = shard};
    server_string *name = history_key(store, shard, "%s", "");
    bool right = history_shard_load(ctx, name, state);
    if (!right) reply_wrong_type(ctx, name, "the state of a shard of history");
    sv.FreeString(NULL, name);
    return right;
}

bool history_drop_store(server_ctx *ctx, const history_store *store) {
    history_shard state;
    for (unsigned shard = 0; shard < store->shards; shard++) {
        if (!read_state(ctx, store, shard, &state)) return false;
    }
    for (unsigned shard = 0; shard < store->shards; shard++) {
        if (read_state(ctx, store, shard, &state)) drop_shard(ctx, &state);
    }
    history_drop_key(ctx, sv.HoldString(NULL, store->key));
    return true;
}
