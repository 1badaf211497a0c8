/* learn_turn.c - automatic learning of stores: one store at a time, a few milliseconds per turn. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/errors.h"
#include "history/learn.h"
#include "history/live.h"
#include "history/slots.h"
#include "history/switch.h"
#include "history/uses.h"

#define SLICE_MS 2

/* The store whose topics are being learned. */
static struct {
    history_learning *learning; /* NULL: none */
    int db;
    char name[HISTORY_NAME_MAX];
    size_t len;
} turn;

static void begin_turn(server_ctx *ctx, const history_store *store) {
    turn.learning = history_learning_begin(ctx, store);
    turn.db = sv.GetSelectedDb(ctx);
    turn.len = store->name.len;
    memcpy(turn.name, store->name.data, turn.len);
}

static void end_turn(void) {
    history_learning_end(turn.learning);
    turn.learning = NULL;
}

/* Begins with a store that is due; false if none is. */
static bool choose_store(server_ctx *ctx, index_t *index) {
    for (const history_store *s = NULL; (s = history_stores_next(index->histories, s)) != NULL;) {
        long long now_ms = sv.Milliseconds(), *learned_ms = s->learn_s > 0 ? history_uses_learned(ctx, s) : NULL;
        if (learned_ms == NULL) continue;
        bool due = *learned_ms > 0 && now_ms - *learned_ms >= s->learn_s * 1000;
        if (*learned_ms == 0 || due) *learned_ms = now_ms;
        if (!due) continue;
        begin_turn(ctx, s);
        return turn.learning != NULL;
    }
    return false;
}

/* ---- the switch -------------------------------------------------------------------------------------------- */

/* Reads all shards on this node and returns their number; 0 if another switch is prepared.  Without a cluster all must have
 * one generation, else the result is 0; in a cluster each has its own. */
static unsigned read_states(server_ctx *ctx, const history_store *store, history_shard *states) {
    unsigned count = 0;
    for (unsigned shard = 0; shard < store->shards; shard++) {
        if (!history_is_here(ctx, store, shard)) continue;
        history_shard *state = &states[count++];
        if (!history_shard_read(ctx, store, shard, state, false) || !history_prepared_is_writable(ctx, state, false) ||
            history_prepared(ctx, state) != 0 ||
            (!can.cluster && history_generation(state) != history_generation(&states[0])))
            return 0;
    }
    return count;
}

static bool switch_all(server_ctx *ctx, const history_store *store, const hmq_patterns *set) {
    history_shard states[HISTORY_SHARDS_MAX];
    unsigned count = read_states(ctx, store, states);
    bool right = count > 0;
    for (unsigned i = 0; i < count; i++)
        history_prepare(ctx, &states[i], history_generation(&states[i]) + 1, hmq_patterns_text(set), 0);
    for (unsigned i = 0; right && i < count; i++)
        right = history_is_prepared(ctx, &states[i], history_generation(&states[i]) + 1, false);
    for (unsigned i = 0; i < count; i++) {
        if (right)
            history_switch(ctx, &states[i], history_generation(&states[i]) + 1);
        else
            history_abort(ctx, &states[i]);
    }
    return right;
}

static const hmq_patterns *present_set(server_ctx *ctx, const history_store *store) {
    history_shard state;
    for (unsigned i = 0; i < store->shards; i++) {
        if (!history_is_here(ctx, store, i)) continue;
        if (history_shard_read(ctx, store, i, &state, false) && state.exists)
            return history_patterns(ctx, store, i, state.generation);
    }
    return NULL;
}

static void finish_learning(server_ctx *ctx, const history_store *store) {
    hmq_patterns *set = NULL;
    hmq_patterns_cost costs[2];
    const hmq_patterns *present = present_set(ctx, store);
    if (present == NULL) return;
    hmq_proposal proposal = history_learning_propose(ctx, store, turn.learning, present, HISTORY_MARGIN, &set, costs);
    history_uses_decay(ctx, store);
    counters.history_learned++;
    if (proposal != HMQ_PROPOSAL_NEW) return;
    uint32_t count = hmq_patterns_count(set);
    if (switch_all(ctx, store, set)) {
        counters.history_switched++;
        sv.Log(ctx, "notice", "history store %s: switched to %" PRIu32 " learned patterns, cost %.2f instead of %.2f",
               shown_slice(store->name), count, costs[1].cost, costs[0].cost);
    }
    hmq_patterns_free(set);
}

bool history_learn(server_ctx *ctx, index_t *index) {
    if (turn.learning == NULL) return choose_store(ctx, index);
    if (turn.db != sv.GetSelectedDb(ctx)) return false;
    const history_store *store =
        history_stores_find(index->histories, (hmq_slice){(const uint8_t *)turn.name, turn.len});
    if (store != NULL && store->learn_s > 0) {
        if (!history_learning_read(ctx, store, turn.learning, sv.Milliseconds() + SLICE_MS)) return true;
        finish_learning(ctx, store);
    }
    end_turn();
    return false;
}
