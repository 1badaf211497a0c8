/* hold.c - reads the watermarks of readers, and drops those that hold back too much. */
#include "history/hold.h"

#include <inttypes.h>
#include <string.h>

#include "server/keys.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"

server_string *history_holds_key(const history_shard *state) {
    return history_key(state->store, state->shard, "_holds");
}

history_hold history_hold_parse(const server_string *value) {
    static const char lost[] = "lost ";
    hmq_slice text = slice_of(value);
    history_hold hold = {.lost = text.len > sizeof lost - 1 && memcmp(text.data, lost, sizeof lost - 1) == 0};
    if (hold.lost) {
        text.data += sizeof lost - 1;
        text.len -= sizeof lost - 1;
    }
    if (!numbers_read(text, &hold.sequence, 1)) return (history_hold){false, 0};
    return hold;
}

/* ---- all of a shard ---------------------------------------------------------------------------------------- */

/* Opens the hash; NULL if there is none. */
static server_key *open_holds(server_ctx *ctx, const history_shard *state, server_string **name, int mode) {
    *name = history_holds_key(state);
    server_key *hash = sv.OpenKey(ctx, *name, mode);
    if (hash != NULL && !key_may_be(hash, SERVER_HASH)) {
        sv.CloseKey(hash);
        hash = NULL;
    }
    return hash;
}

static void close_holds(server_key *hash, server_string *name) {
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

static void visit(server_key *hash, server_scan_key_visit visitor, void *data) {
    server_scan_cursor *cursor = sv.ScanCursorCreate();
    while (sv.ScanKey(hash, cursor, visitor, data)) {}
    sv.ScanCursorDestroy(cursor);
}

typedef struct lowest {
    uint64_t sequence;
    server_string *reader;
} lowest;

static void take_lowest(server_key *key, server_string *field, server_string *value, void *data) {
    (void)key;
    lowest *found = data;
    history_hold hold = history_hold_parse(value);
    if (hold.lost || hold.sequence >= found->sequence) return;
    found->sequence = hold.sequence;
    if (found->reader != NULL) sv.FreeString(NULL, found->reader);
    hmq_slice name = slice_of(field);
    found->reader = sv.CreateString(NULL, (const char *)name.data, name.len);
}

uint64_t history_holds_lowest(server_ctx *ctx, const history_shard *state, server_string **reader) {
    lowest found = {UINT64_MAX, NULL};
    server_string *name;
    server_key *hash = open_holds(ctx, state, &name, SERVER_READ);
    if (hash != NULL) visit(hash, take_lowest, &found);
    close_holds(hash, name);
    if (reader != NULL)
        *reader = found.reader;
    else if (found.reader != NULL)
        sv.FreeString(NULL, found.reader);
    return found.sequence;
}

/* ---- giving up --------------------------------------------------------------------------------------------- */

#define HOLD_PAIRS ((size_t)2 * HISTORY_READERS_MAX)

typedef struct losers {
    uint64_t sequence; /* what is dropped; or the last one that there is */
    server_string *pairs[HOLD_PAIRS];
    size_t count; /* of names and values, in pairs */
} losers;

static void collect_lost_reader(server_key *key, server_string *field, server_string *value, void *data) {
    (void)key;
    losers *found = data;
    history_hold hold = history_hold_parse(value);
    if (hold.lost || hold.sequence >= found->sequence || found->count == HOLD_PAIRS) return;
    hmq_slice name = slice_of(field);
    found->pairs[found->count++] = sv.CreateString(NULL, (const char *)name.data, name.len);
    found->pairs[found->count++] = sv.CreateStringPrintf(NULL, "lost %" PRIu64, hold.sequence);
}

static void lose(server_ctx *ctx, const history_shard *state, server_key *hash, losers *found) {
    for (size_t i = 0; i < found->count; i += 2) {
        sv.HashSet(hash, SERVER_HASH_NONE, found->pairs[i], found->pairs[i + 1], NULL);
        hmq_slice reader = slice_of(found->pairs[i]), value = slice_of(found->pairs[i + 1]);
        sv.Log(ctx, "warning",
               "history store %.*s, shard %u: the reader %.*s held back more than HOLDBYTES and lost its hold (%.*s; "
               "messages up to %" PRIu64 " are dropped)",
               (int)state->store->name.len, (const char *)state->store->name.data, state->shard, (int)reader.len,
               (const char *)reader.data, (int)value.len, (const char *)value.data, found->sequence);
        counters.history_holds_lost++;
    }
}

void history_holds_mark_lost(server_ctx *ctx, const history_shard *state, uint64_t sequence) {
    losers found = {.sequence = sequence};
    server_string *name;
    server_key *hash = open_holds(ctx, state, &name, SERVER_READ | SERVER_WRITE);
    if (hash != NULL) visit(hash, collect_lost_reader, &found);
    if (found.count > 0) {
        lose(ctx, state, hash, &found);
        replicate(ctx, "HSET", "sv", name, found.pairs, found.count);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    }
    for (size_t i = 0; i < found.count; i++) sv.FreeString(NULL, found.pairs[i]);
    close_holds(hash, name);
}

/* ---- a new shard ------------------------------------------------------------------------------------------- */

typedef struct readers {
    server_string *names[HISTORY_READERS_MAX];
    size_t count;
} readers;

static void take_reader(server_key *key, server_string *field, server_string *value, void *data) {
    (void)key;
    readers *found = data;
    if (found->count == HISTORY_READERS_MAX || history_hold_parse(value).lost) return;
    hmq_slice name = slice_of(field);
    found->names[found->count++] = sv.CreateString(NULL, (const char *)name.data, name.len);
}

void history_holds_begin(server_ctx *ctx, const history_store *store, unsigned shard) {
    history_shard first = {.store = store, .shard = 0}, state = {.store = store, .shard = shard};
    readers found = {.count = 0};
    server_string *name, *zero = sv.CreateString(NULL, "0", 1);
    server_key *hash = open_holds(ctx, &first, &name, SERVER_READ);
    if (hash != NULL) visit(hash, take_reader, &found);
    close_holds(hash, name);
    hash = open_holds(ctx, &state, &name, SERVER_READ | SERVER_WRITE);
    for (size_t i = 0; i < found.count; i++) {
        if (hash != NULL) sv.HashSet(hash, SERVER_HASH_NONE, found.names[i], zero, NULL);
        if (hash != NULL) replicate(ctx, "HSET", "sss", name, found.names[i], zero);
        sv.FreeString(NULL, found.names[i]);
    }
    if (hash != NULL && found.count > 0) index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    close_holds(hash, name);
    sv.FreeString(NULL, zero);
}

/* ---- numbers that are given again -------------------------------------------------------------------------- */

static void take_higher(server_key *key, server_string *field, server_string *value, void *data) {
    (void)key;
    losers *found = data;
    history_hold hold = history_hold_parse(value);
    if (hold.lost || hold.sequence <= found->sequence || found->count == HOLD_PAIRS) return;
    hmq_slice name = slice_of(field);
    found->pairs[found->count++] = sv.CreateString(NULL, (const char *)name.data, name.len);
    found->pairs[found->count++] = sv.CreateStringPrintf(NULL, "%" PRIu64, found->sequence);
}

void history_holds_lower(server_ctx *ctx, const history_shard *state, uint64_t last) {
    losers found = {.sequence = last};
    server_string *name;
    server_key *hash = open_holds(ctx, state, &name, SERVER_READ | SERVER_WRITE);
    if (hash != NULL) visit(hash, take_higher, &found);
    for (size_t i = 0; i < found.count; i += 2)
        sv.HashSet(hash, SERVER_HASH_NONE, found.pairs[i], found.pairs[i + 1], NULL);
    if (found.count > 0) {
        replicate(ctx, "HSET", "sv", name, found.pairs, found.count);
        index_notify_others(ctx, SERVER_NOTIFY_HASH, "hset", name);
    }
    for (size_t i = 0; i < found.count; i++) sv.FreeString(NULL, found.pairs[i]);
    close_holds(hash, name);
}
