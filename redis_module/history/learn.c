/* learn.c - reads a sample of a store and proposes a pattern set. */
#include "history/learn.h"

#include "server/numbers.h"
#include "history/epoch.h"
#include "history/live.h"
#include "history/read.h"
#include "history/slots.h"
#include "history/uses.h"
#include "history/visible.h"

#define WINDOW 64                                 /* consecutive messages */
#define WINDOWS (HISTORY_SAMPLE_MAX / WINDOW)     /* of all shards */
#define TOPICS 512                                /* sample for measuring sets: a few milliseconds */

struct history_learning {
    hmq_learner *learner;
    unsigned shard, window; /* to read next */
    unsigned windows;       /* of a shard */
    uint64_t visible;       /* visible messages of the shards */
};

history_learning *history_learning_begin(server_ctx *ctx, const history_store *store) {
    (void)ctx;
    hmq_learner_options options = hmq_learner_defaults();
    options.levels = store->levels;
    options.sample = TOPICS;
    hmq_learner *learner = hmq_learner_new(&server_allocator, &options);
    if (learner == NULL) return NULL;
    history_learning *learning = sv.Alloc(sizeof *learning);
    unsigned windows = WINDOWS / store->shards;
    *learning = (history_learning){.learner = learner, .windows = windows > 0 ? windows : 1};
    return learning;
}

void history_learning_end(history_learning *learning) {
    hmq_learner_free(learning->learner);
    sv.Free(learning);
}

uint64_t history_learning_messages(const history_learning *learning) {
    return hmq_learner_messages(learning->learner);
}

/* ---- the sample -------------------------------------------------------------------------------------------- */

static void read_window(server_ctx *ctx, const history_shard *state, hmq_learner *learner, uint64_t from,
                        uint64_t count) {
    history_epoch epoch;
    history_entry entry;
    uint64_t budget = 0;
    if (!history_epoch_of_sequence(ctx, state, from, &epoch)) return;
    history_reader *reader = history_reader_open(ctx, state, &epoch, (hmq_slice){NULL, 0}, from);
    if (reader == NULL) return;
    for (uint64_t i = 0; i < count && history_reader_next(reader, &entry, &budget) == HISTORY_FOUND; i++)
        hmq_learner_observe(learner, (const char *)entry.record.topic.data, entry.record.topic.len, 1);
    history_reader_close(reader);
}

static void read_next(server_ctx *ctx, const history_store *store, history_learning *learning) {
    history_shard state;
    uint64_t first;
    unsigned window = learning->window++;
    if (!history_is_here(ctx, store, learning->shard) ||
        !history_shard_read(ctx, store, learning->shard, &state, false) || !state.exists ||
        !history_visible(ctx, &state, clock_us(), 0, &first) || first > state.last.sequence) {
        learning->window = learning->windows;
        return;
    }
    if (window == 0) learning->visible += state.last.sequence - first + 1;
    uint64_t length = state.last.sequence - first + 1, windows = learning->windows;
    uint64_t from = length / windows * window + length % windows * window / windows;
    uint64_t to = length / windows * (window + 1) + length % windows * (window + 1) / windows;
    if (to > from) read_window(ctx, &state, learning->learner, first + from, to - from < WINDOW ? to - from : WINDOW);
}

bool history_learning_read(server_ctx *ctx, const history_store *store, history_learning *learning,
                           long long until_ms) {
    while (learning->shard < store->shards) {
        read_next(ctx, store, learning);
        if (learning->window >= learning->windows) {
            learning->window = 0;
            learning->shard++;
        }
        if (sv.Milliseconds() >= until_ms) break;
    }
    return learning->shard >= store->shards;
}

/* ---- the proposal ------------------------------------------------------------------------------------------ */

hmq_proposal history_learning_propose(server_ctx *ctx, const history_store *store, const history_learning *learning,
                                      const hmq_patterns *present, unsigned margin, hmq_patterns **set,
                                      hmq_patterns_cost costs[2]) {
    hmq_filter_use uses[HISTORY_USES_MAX];
    size_t count = history_uses_list(ctx, store, uses);
    hmq_learner_is_sample_of(learning->learner, learning->visible);
    return hmq_learner_propose(learning->learner, present, uses, count, margin, set, costs);
}
