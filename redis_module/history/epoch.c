/* epoch.c - the epochs of a shard: finds where each begins, and begins the next one. */
#include "history/epoch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "history/hold.h"
#include "history/runs.h"

static bool take_epoch(const server_string *value, history_epoch *found) {
    uint64_t n[4];
    if (!numbers_read(slice_of(value), n, 4) || n[0] < 1 || n[0] > INT32_MAX || n[2] < 1) return false;
    *found = (history_epoch){found->epoch, (uint32_t)n[0], n[1], n[2], n[3]};
    return true;
}

bool history_epoch_read(server_ctx *ctx, const history_shard *state, uint32_t epoch, history_epoch *found) {
    if (!state->exists || epoch < state->dropping || epoch > state->epoch) return false;
    if (epoch == state->epoch) {
        *found = (history_epoch){epoch, state->generation, state->begun_us, state->first, state->before};
        return true;
    }
    char field[16];
    snprintf(field, sizeof field, "%" PRIu32, epoch);
    server_string *name = history_key(state->store, state->shard, "_epochs"), *value = NULL;
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    if (sv.KeyType(hash) == SERVER_HASH) sv.HashGet(hash, SERVER_HASH_CFIELDS, field, &value, NULL);
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    found->epoch = epoch;
    bool right = value != NULL && take_epoch(value, found);
    if (value != NULL) sv.FreeString(NULL, value);
    return right;
}

bool history_epoch_may_begin(server_ctx *ctx, const history_shard *state, bool reply) {
    server_string *name = history_key(state->store, state->shard, "_epochs");
    int type = key_type_of(ctx, name, SERVER_READ);
    bool right = type == SERVER_HASH || type == SERVER_EMPTY;
    if (!right && reply) reply_wrong_type(ctx, name, key_type_name(SERVER_HASH));
    sv.FreeString(NULL, name);
    return right;
}

void history_epoch_begin(server_ctx *ctx, history_shard *state, hmq_message_id first) {
    state->before += state->bytes;
    state->bytes = state->indexed_bytes = 0;
    state->indexed = state->last;
    state->epoch++;
    if (state->writer != history_writer()) {
        history_holds_lower(ctx, state, state->last.sequence);
        history_runs_add(state, history_writer(), first.sequence);
    }
    state->writer = history_writer();
    state->first = first.sequence;
    state->begun_us = first.time_us;
    server_string *name = history_key(state->store, state->shard, "_epochs");
    server_string *field = sv.CreateStringPrintf(NULL, "%" PRIu32, state->epoch);
    server_string *value = sv.CreateStringPrintf(NULL, "%" PRIu32 " %" PRIu64 " %" PRIu64 " %" PRIu64,
                                                 state->generation, first.time_us, first.sequence, state->before);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    sv.HashSet(hash, SERVER_HASH_NONE, field, value, NULL);
    sv.CloseKey(hash);
    replicate(ctx, "HSET", "sss", name, field, value);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, value);
    sv.FreeString(NULL, field);
    sv.FreeString(NULL, name);
}

/* The last epoch for which `value` of it is <= wanted. */
static bool find_epoch(server_ctx *ctx, const history_shard *state, uint64_t wanted, bool by_time,
                       history_epoch *found) {
    uint32_t low = state->oldest, high = state->epoch;
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (!history_epoch_read(ctx, state, middle, found)) return false;
        if ((by_time ? found->begun_us : found->first) <= wanted)
            low = middle;
        else
            high = middle - 1;
    }
    return history_epoch_read(ctx, state, low, found);
}

bool history_epoch_of_sequence(server_ctx *ctx, const history_shard *state, uint64_t sequence, history_epoch *found) {
    return find_epoch(ctx, state, sequence, false, found);
}

bool history_epoch_of_time(server_ctx *ctx, const history_shard *state, uint64_t time_us, history_epoch *found) {
    return find_epoch(ctx, state, time_us, true, found);
}
