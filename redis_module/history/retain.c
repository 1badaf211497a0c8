/* retain.c - visits the stores of a database in turn, and advances the first epoch of their shards. */
#include "history/retain.h"

#include <limits.h>
#include <string.h>

#include "server/numbers.h"
#include "history/drop.h"
#include "history/epoch.h"
#include "history/hold.h"
#include "history/live.h"
#include "history/slots.h"

#define SLICE_US 1000
#define ROUND_US 1000000 /* interval between two rounds over all stores */

/* The decision for one store.  Per shard, candidates for the first epoch that stays; it may be the one after the current
 * epoch. */
typedef struct look {
    server_ctx *ctx;
    const history_store *store;
    unsigned first, end; /* shards that are decided together */
    uint64_t now_us;
    history_shard states[HISTORY_SHARDS_MAX];
    uint32_t oldest[HISTORY_SHARDS_MAX];
    uint32_t due[HISTORY_SHARDS_MAX]; /* by age and bytes, regardless of readers */
    uint32_t held[HISTORY_SHARDS_MAX]; /* <= due: a reader has not read further */
    uint32_t next[HISTORY_SHARDS_MAX]; /* the decision */
} look;

/* ---- epochs ------------------------------------------------------------------------------------------------ */

static bool epoch_at(const look *l, unsigned shard, uint32_t epoch, history_epoch *found) {
    const history_shard *s = &l->states[shard];
    if (epoch <= s->epoch) return history_epoch_read(l->ctx, s, epoch, found);
    *found = (history_epoch){epoch, s->generation, s->last.time_us + 1, s->last.sequence + 1, s->before + s->bytes};
    return true;
}

/* The last epoch of low .. high that begins at this time or earlier; low if none does. */
static bool epoch_of_time(const look *l, unsigned shard, uint32_t low, uint32_t high, uint64_t time_us,
                          history_epoch *found) {
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (!epoch_at(l, shard, middle, found)) return false;
        if (found->begun_us <= time_us)
            low = middle;
        else
            high = middle - 1;
    }
    return epoch_at(l, shard, low, found);
}

/* The bytes from the epochs that begin at a time (within low .. high) up to `high`; stores these epochs in `at`. */
static bool bytes_from(const look *l, const uint32_t *low, const uint32_t *high, uint64_t time_us, uint32_t *at,
                       uint64_t *bytes) {
    history_epoch from, to;
    *bytes = 0;
    for (unsigned s = l->first; s < l->end; s++) {
        at[s] = high[s];
        if (low[s] == high[s]) continue;
        if (!epoch_of_time(l, s, low[s], high[s], time_us, &from) || !epoch_at(l, s, high[s], &to)) return false;
        at[s] = from.epoch;
        *bytes += to.before - from.before;
    }
    return true;
}

/* Cuts all shards at the earliest time that leaves at most this many bytes up to `high`; in no shard before `low`. */
static bool cut(const look *l, const uint32_t *low, const uint32_t *high, uint64_t most, uint32_t *at) {
    uint64_t bytes, early = 0, late = 0;
    uint32_t tried[HISTORY_SHARDS_MAX] = {0};
    if (!bytes_from(l, low, high, 0, at, &bytes)) return false;
    if (bytes <= most) return true;
    history_epoch epoch;
    for (unsigned s = l->first; s < l->end; s++) {
        if (low[s] == high[s]) continue;
        if (!epoch_at(l, s, high[s], &epoch)) return false;
        if (epoch.begun_us > late) late = epoch.begun_us;
    }
    memcpy(at, high, sizeof tried);
    while (late - early > 1) {
        uint64_t middle = early + (late - early) / 2;
        if (!bytes_from(l, low, high, middle, tried, &bytes)) return false;
        if (bytes > most) {
            early = middle;
        } else {
            late = middle;
            memcpy(at, tried, sizeof tried);
        }
    }
    return true;
}

/* ---- what goes --------------------------------------------------------------------------------------------- */

/* The limit for these shards: in a cluster each shard has its part, wherever the others are. */
static uint64_t part_of(const look *l, long long bytes) {
    return (uint64_t)bytes / (l->end - l->first == l->store->shards ? 1 : l->store->shards);
}

static bool find_due(look *l) {
    uint64_t now_us = l->now_us, age_us = (uint64_t)l->store->age_s * 1000000, present = 0;
    uint32_t last[HISTORY_SHARDS_MAX] = {0};
    for (unsigned s = l->first; s < l->end; s++) {
        l->due[s] = l->oldest[s];
        last[s] = l->states[s].epoch;
        present += l->states[s].bytes;
    }
    uint64_t part = part_of(l, l->store->bytes), most = part > present ? part - present : 0;
    if (l->store->bytes > 0 && !cut(l, l->oldest, last, most, l->due)) return false;
    if (age_us == 0 || age_us >= now_us) return true;
    history_epoch epoch;
    for (unsigned s = l->first; s < l->end; s++) {
        const history_shard *state = &l->states[s];
        if (!state->exists) continue;
        bool empty = state->first > state->last.sequence;
        if (!epoch_of_time(l, s, l->oldest[s], state->epoch + (empty ? 0 : 1), now_us - age_us, &epoch)) return false;
        if (epoch.epoch > l->due[s]) l->due[s] = epoch.epoch;
    }
    return true;
}

static bool find_held(look *l) {
    history_epoch epoch;
    for (unsigned s = l->first; s < l->end; s++) {
        l->held[s] = l->due[s];
        if (l->due[s] == l->oldest[s]) continue;
        uint64_t read = history_holds_lowest(l->ctx, &l->states[s], NULL);
        if (read >= l->states[s].last.sequence) continue;
        if (!history_epoch_of_sequence(l->ctx, &l->states[s], read + 1, &epoch)) return false;
        if (epoch.epoch < l->due[s]) l->held[s] = epoch.epoch;
    }
    return true;
}

/* ---- doing it ---------------------------------------------------------------------------------------------- */

static bool drop_before_next(look *l, unsigned shard) {
    history_shard *s = &l->states[shard];
    history_epoch from, to;
    hmq_message_id id;
    if (l->next[shard] == s->oldest) return true;
    if (!epoch_at(l, shard, s->oldest, &from) || !epoch_at(l, shard, l->next[shard], &to)) return false;
    if (l->next[shard] > l->held[shard]) history_holds_mark_lost(l->ctx, s, to.first - 1);
    uint64_t first = from.first > s->trimmed ? from.first : s->trimmed + 1;
    if (to.first > first) counters.history_dropped += to.first - first;
    if (l->next[shard] > s->epoch) { /* even the current epoch is dropped: an empty one begins */
        if (s->epoch >= INT32_MAX || !hmq_message_id_next(s->last, 0, &id)) return false;
        if (!history_epoch_may_begin(l->ctx, s, false)) return false;
        history_epoch_begin(l->ctx, s, id);
        s->oldest = s->epoch;
        history_shard_write(l->ctx, s, true);
    } else {
        s->oldest = l->next[shard];
        history_drop_write(l->ctx, s);
    }
    return true;
}

/* If an epoch is missing, because another program changed keys, nothing is dropped; readers get an error that names the
 * shard. */
static void decide(look *l) {
    for (unsigned s = l->first; s < l->end; s++) l->oldest[s] = l->states[s].oldest;
    if (!find_due(l) || !find_held(l)) return;
    if (!cut(l, l->held, l->due, part_of(l, history_store_hold(l->store)), l->next)) return;
    for (unsigned s = l->first; s < l->end; s++) {
        if (l->states[s].exists && !drop_before_next(l, s)) return;
    }
}

/* The hash is enough for a shard that was not used yet, unless everything in its lists is past its age: then the tail is
 * read, too. */
static bool read_state(const look *l, unsigned shard, history_shard *state) {
    if (l->store->live[shard] != NULL) return history_shard_read(l->ctx, l->store, shard, state, false);
    *state = (history_shard){.store = l->store, .shard = shard};
    server_string *name = history_key(l->store, shard, "%s", "");
    bool right = history_shard_load(l->ctx, name, state);
    sv.FreeString(NULL, name);
    uint64_t age_us = (uint64_t)l->store->age_s * 1000000;
    bool past = right && state->exists && age_us > 0 && age_us < l->now_us && state->last.time_us < l->now_us - age_us;
    return past ? history_shard_read(l->ctx, l->store, shard, state, false) : right;
}

/* False if the slice ends before all is done. */
static bool retain_shards(server_ctx *ctx, const history_store *store, unsigned first, unsigned end,
                          history_slice *slice) {
    static look l; /* static because it is large; it is used nowhere else meanwhile */
    l.ctx = ctx;
    l.store = store;
    l.first = first;
    l.end = end;
    l.now_us = clock_us();
    for (unsigned s = first; s < end; s++) {
        if (!read_state(&l, s, &l.states[s]))
            l.states[s] =
                (history_shard){.store = store, .shard = s}; /* another program changed it: treated as empty */
    }
    if (store->age_s > 0 || store->bytes > 0) decide(&l);
    for (unsigned s = first; s < end; s++) {
        if (!history_drop_epochs(ctx, &l.states[s], slice)) return false;
    }
    return true;
}

/* All shards together; in a cluster each shard of this node by itself. */
static bool retain_store(server_ctx *ctx, const history_store *store, history_slice *slice) {
    if (!can.cluster) return retain_shards(ctx, store, 0, store->shards, slice);
    for (unsigned s = 0; s < store->shards; s++) {
        if (history_is_here(ctx, store, s) && !retain_shards(ctx, store, s, s + 1, slice)) return false;
    }
    return true;
}

/* Shards on other nodes, or that are moving, stay for the node that gets them. */
static bool drop_removed(server_ctx *ctx, index_t *index, history_slice *slice) {
    server_string *after = NULL;
    bool done = true;
    while (done) {
        hmq_slice from = after == NULL ? (hmq_slice){NULL, 0} : slice_of(after);
        const history_store *store = history_stores_removed_after(index->histories, from);
        if (store == NULL) break;
        if (after != NULL) sv.FreeString(NULL, after);
        after = sv.HoldString(NULL, store->key);
        done = history_drop_store(ctx, store, slice);
        history_stores_refresh(ctx, index->histories, slice_of(after));
    }
    if (after != NULL) sv.FreeString(NULL, after);
    return done;
}

/* ---- in turn ----------------------------------------------------------------------------------------------- */

/* The progress of the current round through a database. */
typedef struct turn {
    server_string *after; /* key of the last finished store; NULL: none */
    uint64_t begun_us;
    bool waits_for_round; /* until the next round */
} turn;

static turn *turns;
static int turn_count;

static turn *turn_of(int db) {
    if (db >= turn_count) {
        turns = sv.Realloc(turns, (size_t)(db + 1) * sizeof *turns);
        memset(turns + turn_count, 0, (size_t)(db + 1 - turn_count) * sizeof *turns);
        turn_count = db + 1;
    }
    return &turns[db];
}

static void set_after(turn *t, server_string *key) {
    if (t->after != NULL) sv.FreeString(NULL, t->after);
    t->after = key == NULL ? NULL : sv.HoldString(NULL, key);
}

bool history_retain(server_ctx *ctx, index_t *index) {
    uint64_t now_us = monotonic_us();
    history_slice slice = {.keys = LONG_MAX, .until_us = now_us + SLICE_US};
    turn *t = turn_of(sv.GetSelectedDb(ctx));
    if (!drop_removed(ctx, index, &slice)) return true;
    if (t->waits_for_round && now_us < t->begun_us + ROUND_US) return false;
    if (t->waits_for_round) set_after(t, NULL);
    if (t->after == NULL) t->begun_us = now_us;
    t->waits_for_round = false;
    const history_store *store;
    hmq_slice none = {NULL, 0};
    while ((store = history_stores_after(index->histories, t->after == NULL ? none : slice_of(t->after))) != NULL) {
        if (!retain_store(ctx, store, &slice)) return true;
        set_after(t, store->key);
        if (monotonic_us() >= slice.until_us) return true;
    }
    t->waits_for_round = true;
    return false;
}
