/* shard.c - reads and writes what describes a shard: its state, its epochs, its pattern sets. */
#include "history/shard.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "history/runs.h"

#define KEY_MAX_BYTES (HISTORY_NAME_MAX + 160)
#define STATE_FIELDS 12
#define NEEDED_FIELDS 8 /* what comes behind them counts as 0 if it is missing */
#define CACHED_SETS 8
#define FIRST_SET_BYTES 64

uint64_t history_writer(void) {
    static uint64_t writer;
    static unsigned long long doubts;
    if (writer != 0 && doubts == replication_doubts()) return writer;
    doubts = replication_doubts();
    if (getrandom(&writer, sizeof writer, 0) != (ssize_t)sizeof writer) writer += history_now_us();
    writer &= INT64_MAX;
    return writer |= 1;
}

server_string *history_key(const history_store *store, unsigned shard, const char *format, ...) {
    char text[KEY_MAX_BYTES];
    int used =
        snprintf(text, sizeof text, "{%.*s/%u}_history", (int)store->name.len, (const char *)store->name.data, shard);
    va_list arguments;
    va_start(arguments, format);
    used += vsnprintf(text + used, sizeof text - (size_t)used, format, arguments);
    va_end(arguments);
    return sv.CreateString(NULL, text, (size_t)used);
}

bool history_open_string(server_ctx *ctx, server_string *name, int mode, server_key **key, hmq_slice *bytes) {
    *key = sv.OpenKey(ctx, name, mode);
    *bytes = (hmq_slice){NULL, 0};
    int type = *key == NULL ? SERVER_EMPTY : sv.KeyType(*key);
    if (type == SERVER_STRING) bytes->data = (const uint8_t *)sv.StringDMA(*key, &bytes->len, SERVER_READ);
    if (type == SERVER_STRING || type == SERVER_EMPTY) return true;
    sv.CloseKey(*key);
    *key = NULL;
    return false;
}

/* ---- state ------------------------------------------------------------------------------------------------- */

static bool take_number(const server_string *value, long long max, long long *number) {
    return value != NULL && sv.StringToLongLong(value, number) == SERVER_OK && *number >= 0 && *number <= max;
}

static bool take_state(server_key *hash, history_shard *state) {
    server_string *f[STATE_FIELDS] = {NULL}, *writers = NULL;
    long long n[STATE_FIELDS];
    bool right = true;
    sv.HashGet(hash, SERVER_HASH_CFIELDS, "time", &f[0], "sequence", &f[1], "generation", &f[2], "epoch", &f[3],
               "oldest", &f[4], "first", &f[5], "begun", &f[6], "bytes", &f[7], "before", &f[8], "trimmed", &f[9],
               "dropping", &f[10], "writer", &f[11], "writers", &writers, NULL);
    for (size_t i = 0; i < STATE_FIELDS; i++) {
        n[i] = 0;
        bool missing = i >= NEEDED_FIELDS && f[i] == NULL;
        right = right && (missing || take_number(f[i], i >= 2 && i <= 4 ? INT32_MAX : INT64_MAX, &n[i]));
        if (f[i] != NULL) sv.FreeString(NULL, f[i]);
    }
    right = history_runs_read(writers, state) && right;
    if (writers != NULL) sv.FreeString(NULL, writers);
    if (!right) return false;
    state->exists = true;
    state->last = state->indexed = (hmq_message_id){(uint64_t)n[0], (uint64_t)n[1]};
    state->generation = (uint32_t)n[2];
    state->epoch = (uint32_t)n[3];
    state->oldest = (uint32_t)n[4];
    state->first = (uint64_t)n[5];
    state->begun_us = (uint64_t)n[6];
    state->bytes = state->indexed_bytes = (uint64_t)n[7];
    state->before = (uint64_t)n[8];
    state->trimmed = (uint64_t)n[9];
    state->writer = (uint64_t)n[11];
    state->dropping = n[10] >= 1 && n[10] <= n[4] ? (uint32_t)n[10] : state->oldest;
    return state->first >= 1 && state->first <= state->last.sequence + 1 && state->oldest >= 1 &&
           state->oldest <= state->epoch && state->generation >= 1 &&
           (state->run_count == 0 || state->runs[state->run_count - 1].first <= state->first);
}

bool history_shard_load(server_ctx *ctx, server_string *name, history_shard *state) {
    *state = (history_shard){.store = state->store, .shard = state->shard};
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    int type = hash == NULL ? SERVER_EMPTY : sv.KeyType(hash);
    bool right = type == SERVER_EMPTY || (type == SERVER_HASH && take_state(hash, state));
    if (hash != NULL) sv.CloseKey(hash);
    return right;
}

void history_shard_write(server_ctx *ctx, const history_shard *state, bool whole) {
    static const char *const names[STATE_FIELDS] = {"time",  "sequence", "bytes",  "generation", "epoch",    "oldest",
                                                    "first", "begun",    "before", "trimmed",    "dropping", "writer"};
    const uint64_t numbers[STATE_FIELDS] = {
        state->indexed.time_us, state->indexed.sequence, state->indexed_bytes, state->generation,
        state->epoch,           state->oldest,           state->first,         state->begun_us,
        state->before,          state->trimmed,          state->dropping,      state->writer};
    size_t count = whole ? STATE_FIELDS : 3;
    server_string *name = history_key(state->store, state->shard, "%s", "");
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    server_string *pairs[2 * (STATE_FIELDS + 1)];
    for (size_t i = 0; i < count; i++) {
        pairs[2 * i] = sv.CreateString(NULL, names[i], strlen(names[i]));
        pairs[2 * i + 1] = sv.CreateStringFromLongLong(NULL, (long long)numbers[i]);
    }
    if (whole && state->run_count > 0) {
        pairs[2 * count] = sv.CreateString(NULL, "writers", 7);
        pairs[2 * count++ + 1] = history_runs_text(state);
    }
    for (size_t i = 0; i < count; i++) sv.HashSet(hash, SERVER_HASH_NONE, pairs[2 * i], pairs[2 * i + 1], NULL);
    replicate(ctx, "HSET", "sv", name, pairs, 2 * count);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    for (size_t i = 0; i < 2 * count; i++) sv.FreeString(NULL, pairs[i]);
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

/* ---- pattern sets ------------------------------------------------------------------------------------------ */

/* The last that were used. */
static history_set *cache[CACHED_SETS];
static size_t next_cached;

void history_set_release(history_set *set) {
    if (set == NULL || --set->holds > 0) return;
    hmq_patterns_free(set->patterns);
    sv.Free(set->text);
    sv.Free(set);
}

static history_set *parsed(hmq_slice text) {
    for (size_t i = 0; i < CACHED_SETS; i++) {
        if (cache[i] != NULL && cache[i]->len == text.len && memcmp(cache[i]->text, text.data, text.len) == 0)
            return cache[i];
    }
    char why[1];
    hmq_patterns *patterns = hmq_patterns_parse(&server_allocator, (const char *)text.data, text.len, why, 0);
    if (patterns == NULL) return NULL;
    history_set *set = sv.Alloc(sizeof *set);
    *set = (history_set){patterns, sv.Alloc(text.len + 1), text.len, 1};
    memcpy(set->text, text.data, text.len);
    size_t place = next_cached++ % CACHED_SETS;
    history_set_release(cache[place]);
    cache[place] = set;
    return set;
}

static history_set *read_set(server_ctx *ctx, const history_store *store, unsigned shard, uint32_t generation) {
    server_string *name = history_key(store, shard, "_%" PRIu32 "_patterns", generation);
    server_key *key;
    hmq_slice text;
    history_set *set = NULL;
    if (history_open_string(ctx, name, SERVER_READ, &key, &text) && text.data != NULL) set = parsed(text);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return set;
}

const hmq_patterns *history_patterns(server_ctx *ctx, const history_store *store, unsigned shard, uint32_t generation) {
    history_set *set = read_set(ctx, store, shard, generation);
    return set == NULL ? NULL : set->patterns;
}

history_set *history_set_hold(server_ctx *ctx, const history_store *store, unsigned shard, uint32_t generation) {
    history_set *set = read_set(ctx, store, shard, generation);
    if (set != NULL) set->holds++;
    return set;
}

static int first_text(const history_store *store, char text[FIRST_SET_BYTES]) {
    return snprintf(text, FIRST_SET_BYTES, "holdmq-patterns 1 levels=%u\n#\n", store->levels);
}

history_set *history_set_first(const history_store *store) {
    char text[FIRST_SET_BYTES];
    int len = first_text(store, text);
    history_set *set = parsed((hmq_slice){(const uint8_t *)text, (size_t)len});
    if (set != NULL) set->holds++;
    return set;
}

void history_patterns_begin(server_ctx *ctx, const history_store *store, unsigned shard, uint32_t generation) {
    char first[FIRST_SET_BYTES];
    int len = first_text(store, first);
    server_string *name = history_key(store, shard, "_%" PRIu32 "_patterns", generation);
    server_string *text = sv.CreateString(NULL, first, (size_t)len);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    sv.StringSet(key, text);
    sv.CloseKey(key);
    replicate(ctx, "SET", "ss", name, text);
    index_notify(ctx, SERVER_NOTIFY_STRING, "set", name);
    sv.FreeString(NULL, text);
    sv.FreeString(NULL, name);
}
