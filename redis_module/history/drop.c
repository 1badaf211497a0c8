/* drop.c - removes keys of history. */
#include "history/drop.h"

#include <inttypes.h>
#include <string.h>

#include "history/index.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "history/epoch.h"
#include "history/live.h"
#include "history/policy_write.h"
#include "history/slots.h"

#define KEYS_BETWEEN_CLOCKS 16

/* The progress of the removal within an epoch. */
static struct {
    bool has_begun;
    int db;
    history_epoch epoch;
    unsigned shard;
    hmq_hash_seed seed; /* of the store */
    uint32_t pattern;
    unsigned slot, page;
    uint32_t group;
    bool page_has_lists; /* a list of this page exists */
} at;

bool history_slice_left(history_slice *slice) {
    if (slice->keys <= 0) return false;
    bool asks = slice->until_us > 0 && slice->keys % KEYS_BETWEEN_CLOCKS == 0;
    if (asks && monotonic_us() >= slice->until_us) slice->keys = 1;
    slice->keys--;
    return slice->keys > 0;
}

/* ---- an epoch ---------------------------------------------------------------------------------------------- */

static bool is_progress_of(server_ctx *ctx, const history_shard *state) {
    return at.has_begun && at.db == sv.GetSelectedDb(ctx) && at.shard == state->shard &&
           memcmp(&at.seed, &state->store->seed, sizeof at.seed) == 0;
}

bool history_drop_is_elsewhere(server_ctx *ctx, const history_shard *state) {
    return at.has_begun && !is_progress_of(ctx, state);
}

static void begin_progress(server_ctx *ctx, const history_shard *state, const history_epoch *epoch) {
    bool same = is_progress_of(ctx, state) && at.epoch.epoch == epoch->epoch && at.epoch.begun_us == epoch->begun_us &&
                at.epoch.first == epoch->first;
    if (same) return;
    memset(&at, 0, sizeof at);
    at.has_begun = true;
    at.db = sv.GetSelectedDb(ctx);
    at.epoch = *epoch;
    at.shard = state->shard;
    at.seed = state->store->seed;
}

static size_t log_length(server_ctx *ctx, server_string *name) {
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    size_t length = sv.KeyType(key) == SERVER_STREAM ? sv.ValueLength(key) : 0;
    if (key != NULL) sv.CloseKey(key);
    return length;
}

static void next_page(void) {
    at.page++;
    at.group = 0;
    at.page_has_lists = false;
}

static void next_slot(void) {
    next_page();
    at.page = 0;
    at.slot++;
}

static void next_pattern(void) {
    next_slot();
    at.slot = 0;
    at.pattern++;
}

/* Removes all groups of the page.  False if the slice is over. */
static bool drop_page(server_ctx *ctx, const history_shard *state, unsigned bits, history_slice *slice) {
    hmq_index_place place = hmq_index_place_of(0, bits, at.page);
    for (; at.group < UINT32_C(1) << place.group_bits; at.group++) {
        if (!history_slice_left(slice)) return false;
        server_string *name = history_key(state->store, state->shard, "_%" PRIu32 "_%" PRIu32 "_%u_%u_%" PRIu32,
                                          at.epoch.epoch, at.pattern, at.slot, at.page, at.group);
        if (keyspace_drop_past(ctx, name)) at.page_has_lists = true;
    }
    return true;
}

/* Removes the lists of a pattern.  If other programs deleted entries from the log, there are more lists than its length
 * suggests: so the removal also continues until it finds an empty page. */
static bool drop_lists(server_ctx *ctx, const history_shard *state, const hmq_pattern *pattern, size_t length,
                       history_slice *slice) {
    unsigned known = length == 0 ? 0 : hmq_index_page(length - 1);
    while (at.slot < pattern->slots) {
        if (!drop_page(ctx, state, pattern->bits[at.slot], slice)) return false;
        if (at.page >= known && !at.page_has_lists)
            next_slot();
        else
            next_page();
    }
    return true;
}

/* Removes logs, lists and marks; false if the slice is over. */
static bool drop_epoch(server_ctx *ctx, const history_shard *state, const history_epoch *epoch, history_slice *slice) {
    const hmq_patterns *set = history_patterns(ctx, state->store, state->shard, epoch->generation);
    uint32_t count = set == NULL ? 0 : hmq_patterns_count(set);
    if (set == NULL)
        sv.Log(ctx, "warning",
               "history store %.*s, shard %u: the pattern set of generation %" PRIu32
               " is missing, so the messages of epoch %" PRIu32 " cannot be removed",
               (int)state->store->name.len, (const char *)state->store->name.data, state->shard, epoch->generation,
               epoch->epoch);
    begin_progress(ctx, state, epoch);
    while (at.pattern < count) {
        if (!history_slice_left(slice)) return false;
        server_string *log = history_key(state->store, state->shard, "_%" PRIu32 "_%" PRIu32, epoch->epoch, at.pattern);
        bool done = drop_lists(ctx, state, hmq_patterns_at(set, at.pattern), log_length(ctx, log), slice);
        if (!done) {
            sv.FreeString(NULL, log);
            return false;
        }
        keyspace_drop_past(ctx, log);
        next_pattern();
    }
    keyspace_drop_past(ctx, history_key(state->store, state->shard, "_%" PRIu32 "_marks", epoch->epoch));
    at.has_begun = false;
    return true;
}

/* ---- the state --------------------------------------------------------------------------------------------- */

void history_drop_write(server_ctx *ctx, const history_shard *state) {
    static const char *const names[] = {"oldest", "trimmed", "dropping"};
    const uint64_t numbers[] = {state->oldest, state->trimmed, state->dropping};
    server_string *pairs[6], *name = history_key(state->store, state->shard, "%s", "");
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    for (size_t i = 0; i < 3; i++) {
        pairs[2 * i] = sv.CreateString(NULL, names[i], strlen(names[i]));
        pairs[2 * i + 1] = sv.CreateStringFromLongLong(NULL, (long long)numbers[i]);
        sv.HashSet(hash, SERVER_HASH_NONE, pairs[2 * i], pairs[2 * i + 1], NULL);
    }
    sv.CloseKey(hash);
    replicate(ctx, "HSET", "sv", name, pairs, (size_t)6);
    index_notify_others(ctx, SERVER_NOTIFY_HASH, "hset", name);
    for (size_t i = 0; i < 6; i++) sv.FreeString(NULL, pairs[i]);
    sv.FreeString(NULL, name);
    history_live *live = state->store->live[state->shard];
    if (live == NULL) return;
    live->state.oldest = state->oldest;
    live->state.trimmed = state->trimmed;
    live->state.dropping = state->dropping;
}

/* ---- a shard ----------------------------------------------------------------------------------------------- */

static void forget_epoch(server_ctx *ctx, const history_shard *state, uint32_t epoch) {
    server_string *name = history_key(state->store, state->shard, "_epochs");
    server_string *field = sv.CreateStringPrintf(NULL, "%" PRIu32, epoch);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(hash) == SERVER_HASH && sv.HashSet(hash, SERVER_HASH_COUNT_ALL, field, SERVER_HASH_DELETE, NULL)) {
        replicate(ctx, "HDEL", "ss", name, field);
        index_notify_others(ctx, SERVER_NOTIFY_HASH, "hdel", name);
    }
    sv.CloseKey(hash);
    sv.FreeString(NULL, field);
    sv.FreeString(NULL, name);
}

static void drop_patterns(server_ctx *ctx, const history_shard *state, uint32_t from, uint32_t to) {
    for (uint32_t g = from; g < to; g++)
        keyspace_drop_past(ctx, history_key(state->store, state->shard, "_%" PRIu32 "_patterns", g));
}

/* Ends the removal of the first dropped epoch: removes its entry, and the sets that no later epoch uses. */
static void end_epoch(server_ctx *ctx, history_shard *state, bool known, uint32_t generation) {
    history_epoch next;
    if (known && history_epoch_read(ctx, state, state->dropping + 1, &next))
        drop_patterns(ctx, state, generation, next.generation);
    forget_epoch(ctx, state, state->dropping);
    state->dropping++;
    history_drop_write(ctx, state);
}

bool history_drop_epochs(server_ctx *ctx, history_shard *state, history_slice *slice) {
    history_epoch epoch;
    while (state->exists && state->dropping < state->oldest) {
        bool known =
            history_epoch_read(ctx, state, state->dropping, &epoch); /* false: another program removed its entry */
        if (known && !drop_epoch(ctx, state, &epoch, slice)) return false;
        end_epoch(ctx, state, known, known ? epoch.generation : 0);
    }
    return true;
}

/* Removes everything of a shard.  False if the slice is over. */
static bool drop_shard(server_ctx *ctx, history_shard *state, history_slice *slice) {
    history_epoch last;
    if (!state->exists) return true;
    if (state->oldest < state->epoch) {
        state->oldest = state->epoch;
        history_drop_write(ctx, state);
    }
    if (!history_drop_epochs(ctx, state, slice)) return false;
    if (history_epoch_read(ctx, state, state->epoch, &last) && !drop_epoch(ctx, state, &last, slice)) return false;
    drop_patterns(ctx, state, 1, state->generation + 1);
    static const char *const others[] = {"_prepared", "_producers", "_holds", "_epochs", ""};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        keyspace_drop(ctx, history_key(state->store, state->shard, "%s", others[i]));
    return true;
}

bool history_drop_store(server_ctx *ctx, const history_store *store, history_slice *slice) {
    history_shard state;
    history_policy_mark_removed(ctx, store); /* including copies that arrived with their slots */
    for (unsigned shard = 0; shard < store->shards; shard++) {
        if (!history_is_here(ctx, store, shard)) continue;
        state = (history_shard){.store = store, .shard = shard};
        server_string *name = history_key(store, shard, "%s", "");
        bool right = history_shard_load(ctx, name, &state); /* the logs need not be valid */
        sv.FreeString(NULL, name);
        if (!right)
            sv.Log(ctx, "warning",
                   "history store %.*s, shard %u: another program changed its state, so it cannot be removed",
                   (int)store->name.len, (const char *)store->name.data, shard);
        else if (!drop_shard(ctx, &state, slice))
            return false;
        if (can.cluster) keyspace_drop(ctx, history_policy_key(store->name, shard));
    }
    if (!can.cluster) keyspace_drop(ctx, history_policy_key(store->name, 0));
    return true;
}
