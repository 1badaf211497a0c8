/* shard.c - reads and writes the description of a shard: its state, its epochs, its pattern sets. */
#include "history/shard.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/slots.h"
#include "history/runs.h"

#define KEY_MAX_BYTES (HISTORY_NAME_MAX + 160)
#define CACHED_SETS 8
#define FIRST_SET_BYTES 64

uint64_t history_writer(void) {
    static uint64_t writer;
    static unsigned long long doubts;
    if (writer != 0 && doubts == replication_change_count()) return writer;
    doubts = replication_change_count();
    if (getrandom(&writer, sizeof writer, 0) != (ssize_t)sizeof writer) writer += clock_us();
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

unsigned history_slot(hmq_slice store, unsigned shard) {
    char tag[HISTORY_NAME_MAX + 16];
    if (!can.cluster) return 0;
    int len = snprintf(tag, sizeof tag, "%.*s/%u", (int)store.len, (const char *)store.data, shard);
    return slots_of_key((hmq_slice){(const uint8_t *)tag, (size_t)len});
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

/* One table of the fields of the hash, for writing and reading.  The INDEXED fields come first: they change with the lists,
 * the others with the epoch. */
typedef struct state_field {
    const char *name;
    size_t offset;    /* in history_shard */
    bool is_short;    /* a uint32_t up to INT32_MAX; otherwise a uint64_t up to INT64_MAX */
    bool is_required; /* otherwise 0 if missing: earlier releases did not write it */
} state_field;

#define LONG(name, member, required) {name, offsetof(history_shard, member), false, required}
#define SHORT(name, member, required) {name, offsetof(history_shard, member), true, required}
#define INDEXED_FIELDS 3

static const state_field fields[] = {LONG("time", indexed.time_us, true), LONG("sequence", indexed.sequence, true),
                                     LONG("bytes", indexed_bytes, true),  SHORT("generation", generation, true),
                                     SHORT("epoch", epoch, true),         SHORT("oldest", oldest, true),
                                     LONG("first", first, true),          LONG("begun", begun_us, true),
                                     LONG("before", before, false),       LONG("trimmed", trimmed, false),
                                     SHORT("dropping", dropping, false),  LONG("writer", writer, false)};

#define STATE_FIELDS (sizeof fields / sizeof fields[0])

static long long get_field(const history_shard *state, const state_field *field) {
    const char *place = (const char *)state + field->offset;
    uint64_t number = 0;
    if (field->is_short) {
        uint32_t short_number;
        memcpy(&short_number, place, sizeof short_number);
        number = short_number;
    } else {
        memcpy(&number, place, sizeof number);
    }
    return (long long)number;
}

static void set_field(history_shard *state, const state_field *field, long long number) {
    char *place = (char *)state + field->offset;
    uint64_t long_number = (uint64_t)number;
    uint32_t short_number = (uint32_t)number;
    if (field->is_short)
        memcpy(place, &short_number, sizeof short_number);
    else
        memcpy(place, &long_number, sizeof long_number);
}

static bool read_field(server_key *hash, const state_field *field, history_shard *state) {
    server_string *text = NULL;
    long long number = 0;
    sv.HashGet(hash, SERVER_HASH_CFIELDS, field->name, &text, NULL);
    if (text == NULL) return !field->is_required;
    bool right = number_of(text, 0, field->is_short ? INT32_MAX : INT64_MAX, &number);
    sv.FreeString(NULL, text);
    set_field(state, field, number);
    return right;
}

static bool read_writers(server_key *hash, history_shard *state) {
    server_string *text = NULL;
    sv.HashGet(hash, SERVER_HASH_CFIELDS, "writers", &text, NULL);
    bool right = history_runs_read(text, state);
    if (text != NULL) sv.FreeString(NULL, text);
    return right;
}

static bool is_consistent(const history_shard *s) {
    return s->first >= 1 && s->first <= s->last.sequence + 1 && s->oldest >= 1 && s->oldest <= s->epoch &&
           s->generation >= 1 && (s->run_count == 0 || s->runs[s->run_count - 1].first <= s->first);
}

static bool read_state(server_key *hash, history_shard *state) {
    history_shard found = {.store = state->store, .shard = state->shard, .exists = true};
    for (size_t i = 0; i < STATE_FIELDS; i++) {
        if (!read_field(hash, &fields[i], &found)) return false;
    }
    if (!read_writers(hash, &found)) return false;
    found.last = found.indexed;
    found.bytes = found.indexed_bytes;
    if (found.dropping < 1 || found.dropping > found.oldest) found.dropping = found.oldest;
    *state = found;
    return is_consistent(state);
}

bool history_shard_load(server_ctx *ctx, server_string *name, history_shard *state) {
    *state = (history_shard){.store = state->store, .shard = state->shard};
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    int type = sv.KeyType(hash);
    bool right = type == SERVER_EMPTY || (type == SERVER_HASH && read_state(hash, state));
    if (hash != NULL) sv.CloseKey(hash);
    return right;
}

void history_shard_write(server_ctx *ctx, const history_shard *state, bool whole) {
    size_t count = whole ? STATE_FIELDS : INDEXED_FIELDS;
    server_string *name = history_key(state->store, state->shard, "%s", "");
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    server_string *pairs[2 * (STATE_FIELDS + 1)];
    for (size_t i = 0; i < count; i++) {
        pairs[2 * i] = sv.CreateString(NULL, fields[i].name, strlen(fields[i].name));
        pairs[2 * i + 1] = sv.CreateStringFromLongLong(NULL, get_field(state, &fields[i]));
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

/* The most recently used sets. */
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
