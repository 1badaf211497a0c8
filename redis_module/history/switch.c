/* switch.c - prepares and switches generations. */
#include "history/switch.h"

#include <inttypes.h>

#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "history/append.h"
#include "history/epoch.h"

#define PREPARED_WORDS 6 /* names and values */

uint32_t history_generation(const history_shard *state) {
    return state->exists ? state->generation : 1;
}

static server_string *prepared_key(const history_shard *state) {
    return history_key(state->store, state->shard, "_prepared");
}

/* ---- the key ----------------------------------------------------------------------------------------------- */

/* Releases the name. */
static bool has_type(server_ctx *ctx, server_string *name, int wanted, const char *expected, bool reply) {
    int type = key_type_of(ctx, name, SERVER_READ);
    bool right = type == wanted || type == SERVER_EMPTY;
    if (!right && reply) reply_wrong_type(ctx, name, expected);
    sv.FreeString(NULL, name);
    return right;
}

bool history_prepared_is_writable(server_ctx *ctx, const history_shard *state, bool reply) {
    return has_type(ctx, prepared_key(state), SERVER_HASH, "a prepared pattern set", reply);
}

/* The prepared generation; 0: none.  Reads its text, which the caller frees, only if it is for this generation. */
static long long read_prepared(server_ctx *ctx, const history_shard *state, uint32_t generation, server_string **text) {
    server_string *name = prepared_key(state), *number = NULL, *found = NULL;
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    long long of = 0;
    if (sv.KeyType(hash) == SERVER_HASH)
        sv.HashGet(hash, SERVER_HASH_CFIELDS, "generation", &number, "text", &found, NULL);
    if (hash != NULL) sv.CloseKey(hash);
    if (found != NULL) of = number_or_default(number, INT32_MAX, 0);
    if (number != NULL) sv.FreeString(NULL, number);
    if (of == generation && text != NULL)
        *text = found;
    else if (found != NULL)
        sv.FreeString(NULL, found);
    sv.FreeString(NULL, name);
    return of;
}

server_string *history_prepared_text(server_ctx *ctx, const history_shard *state, uint32_t generation) {
    server_string *text = NULL;
    read_prepared(ctx, state, generation, &text);
    return text;
}

unsigned history_prepared_shards(server_ctx *ctx, const history_shard *state) {
    server_string *name = prepared_key(state);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    bool is_hash = sv.KeyType(hash) == SERVER_HASH;
    long long shards = is_hash ? number_in_field(hash, "shards", HISTORY_SHARDS_MAX, 0) : 0;
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    return (unsigned)shards;
}

uint32_t history_prepared(server_ctx *ctx, const history_shard *state) {
    return (uint32_t)read_prepared(ctx, state, 0, NULL);
}

void history_prepare(server_ctx *ctx, const history_shard *state, uint32_t generation, hmq_slice text,
                     unsigned shards) {
    server_string *name = prepared_key(state);
    server_string *pairs[PREPARED_WORDS] = {
        sv.CreateString(NULL, "generation", 10), sv.CreateStringFromLongLong(NULL, generation),
        sv.CreateString(NULL, "text", 4),        sv.CreateString(NULL, (const char *)text.data, text.len),
        sv.CreateString(NULL, "shards", 6),      sv.CreateStringFromLongLong(NULL, shards)};
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    for (size_t i = 0; i < PREPARED_WORDS; i += 2) sv.HashSet(hash, SERVER_HASH_NONE, pairs[i], pairs[i + 1], NULL);
    sv.CloseKey(hash);
    replicate(ctx, "HSET", "sv", name, pairs, (size_t)PREPARED_WORDS);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    for (size_t i = 0; i < PREPARED_WORDS; i++) sv.FreeString(NULL, pairs[i]);
    sv.FreeString(NULL, name);
}

void history_abort(server_ctx *ctx, const history_shard *state) {
    keyspace_drop(ctx, prepared_key(state));
}

/* ---- the switch -------------------------------------------------------------------------------------------- */

static bool refuse(server_ctx *ctx, const history_shard *state, bool reply, uint32_t generation, const char *what,
                   long long other) {
    if (reply) {
        reply_error(ctx, ERROR_SWITCH_STALE, shown_slice(state->store->name), state->shard, what, other, generation);
    }
    return false;
}

/* Is the prepared text still valid? */
static bool is_valid(server_ctx *ctx, const history_shard *state, server_string *text, bool reply) {
    char why[256] = "";
    hmq_slice bytes = slice_of(text);
    hmq_patterns *set = hmq_patterns_parse(&server_allocator, (const char *)bytes.data, bytes.len, why, sizeof why);
    bool right = set != NULL && hmq_patterns_levels(set) == state->store->levels;
    if (!right && reply)
        reply_error(ctx, ERROR_PREPARED_FOREIGN, shown_slice(state->store->name), state->shard, why[0] ? ": " : "",
                    why);
    if (set != NULL) hmq_patterns_free(set);
    return right;
}

static bool may_switch(server_ctx *ctx, const history_shard *state, bool reply) {
    hmq_message_id next;
    if (state->epoch < INT32_MAX && hmq_message_id_next(state->last, 0, &next)) return true;
    if (reply)
        reply_error(ctx, ERROR_HISTORY_REFUSED, shown_slice(state->store->name), state->shard, "no epoch is left");
    return false;
}

bool history_is_prepared(server_ctx *ctx, const history_shard *state, uint32_t generation, bool reply) {
    uint32_t present = history_generation(state);
    if (generation != present + 1) return refuse(ctx, state, reply, generation, "the generation is", present);
    server_string *text = NULL;
    long long prepared = read_prepared(ctx, state, generation, &text);
    if (text == NULL) return refuse(ctx, state, reply, generation, "the prepared generation is", prepared);
    bool right = is_valid(ctx, state, text, reply) && may_switch(ctx, state, reply);
    sv.FreeString(NULL, text);
    return right && history_epoch_may_begin(ctx, state, reply) && history_tail_may_end(ctx, state, reply) &&
           has_type(ctx, history_key(state->store, state->shard, "_%" PRIu32 "_patterns", generation), SERVER_STRING,
                    "a pattern set", reply);
}

static void write_patterns(server_ctx *ctx, const history_shard *state, server_string *text) {
    server_string *name = history_key(state->store, state->shard, "_%" PRIu32 "_patterns", state->generation);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    sv.StringSet(key, text);
    sv.CloseKey(key);
    replicate(ctx, "SET", "ss", name, text);
    index_notify(ctx, SERVER_NOTIFY_STRING, "set", name);
    sv.FreeString(NULL, name);
}

void history_switch(server_ctx *ctx, history_shard *state, uint32_t generation) {
    server_string *text = NULL;
    hmq_message_id next;
    read_prepared(ctx, state, generation, &text);
    if (text == NULL || !hmq_message_id_next(state->last, 0, &next)) return;
    if (!state->exists) {
        state->exists = true;
        state->oldest = 1;
    }
    history_tail_end(ctx, state);
    state->generation = generation;
    write_patterns(ctx, state, text);
    history_epoch_begin(ctx, state, next);
    history_shard_write(ctx, state, true);
    history_abort(ctx, state);
    sv.FreeString(NULL, text);
}
