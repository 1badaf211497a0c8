/* patterns_command.c - HISTORY.PATTERNS: shows the pattern sets of a store, and switches to another one.
 *
 * Without SHARD a command applies to all shards of the store (in a cluster: those of this node).  It changes all of them in
 * one step, or none. */
#include <inttypes.h>
#include <stdio.h>

#include "server/errors.h"
#include "server/reply.h"
#include "index/index.h"
#include "history/epoch.h"
#include "history/history.h"
#include "history/hold.h"
#include "history/learn.h"
#include "history/slots.h"
#include "history/switch.h"

#define STATS_FIELDS 5
#define PROPOSAL_FIELDS 6

/* The shards that a command applies to. */
typedef struct scope {
    const history_store *store;
    unsigned count; /* of states; each has its shard number */
    unsigned spread; /* PREPARE: the new number of shards; 0: unchanged */
    history_shard states[HISTORY_SHARDS_MAX];
} scope;

static args args_of(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    a.at = 2; /* HISTORY.PATTERNS and the subcommand */
    return a;
}

/* Reads [SHARD n] and the states. */
static bool take_scope(args *a, scope *s, bool writes) {
    long long shard = -1;
    if (args_take_word(a, "SHARD") && !args_number(a, "SHARD", 0, s->store->shards - 1, &shard)) return false;
    if (shard >= 0 && s->spread > 0) {
        reply_error(a->ctx, ERROR_SPREAD_AND_SHARD);
        return false;
    }
    if (!args_end(a)) return false;
    if (shard < 0 && writes && !history_check_not_moving(a->ctx, s->store)) return false;
    s->count = 0;
    for (unsigned i = 0; i < s->store->shards; i++) {
        if (shard >= 0 ? i != (unsigned)shard : !history_is_here(a->ctx, s->store, i)) continue;
        if (!history_open_shard(a->ctx, s->store, i, &s->states[s->count++])) return false;
        if (writes && !history_may_change(a->ctx, s->store, i)) return false;
    }
    return true;
}

static bool take_generation(args *a, uint32_t *generation) {
    long long number;
    if (!args_number(a, "the generation", 1, INT32_MAX, &number)) return false;
    *generation = (uint32_t)number;
    return true;
}

/* ---- GET --------------------------------------------------------------------------------------------------- */

static int reply_patterns(server_ctx *ctx, const history_shard *state, uint32_t generation) {
    const hmq_patterns *set = state->exists ? history_patterns(ctx, state->store, state->shard, generation) : NULL;
    char first[64];
    hmq_slice text = {(const uint8_t *)first, 0};
    if (set != NULL)
        text = hmq_patterns_text(set);
    else if (!state->exists && generation == 1)
        text.len = (size_t)snprintf(first, sizeof first, "holdmq-patterns 1 levels=%u\n#\n", state->store->levels);
    else
        return reply_error(ctx, ERROR_PATTERNS_UNKNOWN, shown_slice(state->store->name), state->shard, generation);
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithLongLong(ctx, generation);
    return sv.ReplyWithStringBuffer(ctx, (const char *)text.data, text.len);
}

/* The first shard on this node; 0 if there is none: the command is redirected to its owner. */
static unsigned first_here(server_ctx *ctx, const history_store *store) {
    unsigned shard = 0;
    while (shard < store->shards && !history_is_here(ctx, store, shard)) shard++;
    return shard < store->shards ? shard : 0;
}

int history_patterns_get_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_of(ctx, argv, argc);
    history_shard state = {0};
    uint32_t generation = 0;
    const history_store *store = history_take_store(&a, history_shard_option(&a));
    bool right = store != NULL, opened = false;
    while (right && args_left(&a)) {
        if (args_take_word(&a, "SHARD"))
            right = opened = history_take_shard(&a, store, &state);
        else if (args_take_word(&a, "GENERATION"))
            right = take_generation(&a, &generation);
        else
            right = args_end(&a);
    }
    if (right && !opened) right = history_open_shard(ctx, store, first_here(ctx, store), &state);
    if (!right) return SERVER_OK;
    return reply_patterns(ctx, &state, generation == 0 ? history_generation(&state) : generation);
}

/* ---- STATS ------------------------------------------------------------------------------------------------- */

/* Adds up the messages of each pattern in the epochs of the current generation. */
static bool count_messages(server_ctx *ctx, const history_shard *state, uint32_t patterns, uint64_t *messages) {
    history_epoch epoch;
    for (uint32_t e = state->epoch; e >= state->oldest && e > 0; e--) {
        if (!history_epoch_read(ctx, state, e, &epoch)) return false;
        if (epoch.generation != state->generation) break;
        for (uint32_t p = 0; p < patterns; p++) {
            server_string *name = history_key(state->store, state->shard, "_%" PRIu32 "_%" PRIu32, e, p);
            server_key *log = sv.OpenKey(ctx, name, SERVER_READ | SERVER_OPEN_NOTOUCH);
            if (sv.KeyType(log) == SERVER_STREAM) messages[p] += sv.ValueLength(log);
            if (log != NULL) sv.CloseKey(log);
            sv.FreeString(NULL, name);
        }
    }
    return true;
}

static void reply_stats(server_ctx *ctx, const hmq_patterns *set, const uint64_t *messages) {
    sv.ReplyWithArray(ctx, hmq_patterns_count(set));
    for (uint32_t p = 0; p < hmq_patterns_count(set); p++) {
        const hmq_pattern *pattern = hmq_patterns_at(set, p);
        sv.ReplyWithMap(ctx, STATS_FIELDS);
        reply_field(ctx, "pattern", p);
        sv.ReplyWithCString(ctx, "filter");
        sv.ReplyWithStringBuffer(ctx, (const char *)pattern->text.data, pattern->text.len);
        reply_field(ctx, "messages", messages[p]);
        reply_field(ctx, "slots", pattern->slots);
        sv.ReplyWithCString(ctx, "bits");
        sv.ReplyWithArray(ctx, pattern->slots);
        for (unsigned i = 0; i < pattern->slots; i++) sv.ReplyWithLongLong(ctx, pattern->bits[i]);
    }
}

/* The set of the first requested shard; others may have an older one while a switch proceeds from shard to shard. */
static const hmq_patterns *present_set(server_ctx *ctx, const scope *s, hmq_patterns **own) {
    char first[64];
    for (unsigned i = 0; i < s->count; i++) {
        const history_shard *state = &s->states[i];
        if (!state->exists) continue;
        const hmq_patterns *set = history_patterns(ctx, s->store, state->shard, state->generation);
        if (set == NULL) reply_error(ctx, ERROR_PATTERNS_FOREIGN, shown_slice(s->store->name), state->shard);
        return set;
    }
    int len = snprintf(first, sizeof first, "holdmq-patterns 1 levels=%u\n#\n", s->store->levels);
    return *own = hmq_patterns_parse(&server_allocator, first, (size_t)len, NULL, 0);
}

int history_patterns_stats_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_of(ctx, argv, argc);
    scope s = {.store = history_take_store(&a, history_shard_option(&a))};
    hmq_patterns *own = NULL;
    if (s.store == NULL || !take_scope(&a, &s, false)) return SERVER_OK;
    const hmq_patterns *set = present_set(ctx, &s, &own);
    if (set == NULL) return SERVER_OK;
    uint32_t count = hmq_patterns_count(set), generation = 0;
    uint64_t *messages = sv.Calloc(count, sizeof *messages);
    bool right = true;
    for (unsigned i = 0; i < s.count && right; i++) {
        if (!s.states[i].exists) continue;
        if (generation == 0) generation = s.states[i].generation;
        if (s.states[i].generation == generation) right = count_messages(ctx, &s.states[i], count, messages);
    }
    if (right)
        reply_stats(ctx, set, messages);
    else
        reply_error(ctx, ERROR_HISTORY_FOREIGN_EPOCHS, shown_slice(s.store->name));
    sv.Free(messages);
    if (own != NULL) hmq_patterns_free(own);
    return SERVER_OK;
}

/* ---- PROPOSE ----------------------------------------------------------------------------------------------- */

static void reply_cost(server_ctx *ctx, const char *name, const hmq_patterns_cost *cost) {
    char text[64];
    snprintf(text, sizeof text, "%.3f", cost->cost);
    sv.ReplyWithCString(ctx, name);
    sv.ReplyWithCString(ctx, text);
}

static void reply_proposal(server_ctx *ctx, bool better, const hmq_patterns *set, const hmq_patterns_cost costs[2],
                           uint64_t messages) {
    sv.ReplyWithMap(ctx, PROPOSAL_FIELDS);
    reply_field(ctx, "better", better);
    sv.ReplyWithCString(ctx, "text");
    sv.ReplyWithStringBuffer(ctx, (const char *)hmq_patterns_text(set).data, hmq_patterns_text(set).len);
    reply_cost(ctx, "cost", better ? &costs[1] : &costs[0]);
    reply_cost(ctx, "present_cost", &costs[0]);
    reply_field(ctx, "patterns", hmq_patterns_count(set));
    reply_field(ctx, "messages", messages);
}

static void propose(server_ctx *ctx, const scope *s, const hmq_patterns *present, unsigned margin) {
    history_learning *learning = history_learning_begin(ctx, s->store);
    hmq_patterns_cost costs[2] = {{0}};
    hmq_patterns *set = NULL;
    if (learning == NULL) {
        reply_error(ctx, ERROR_LEARNING_MEMORY);
        return;
    }
    history_learning_read(ctx, s->store, learning, INT64_MAX);
    hmq_proposal proposal = history_learning_propose(ctx, s->store, learning, present, margin, &set, costs);
    bool better = proposal == HMQ_PROPOSAL_NEW;
    if (proposal == HMQ_PROPOSAL_NO_MEMORY)
        reply_error(ctx, ERROR_LEARNING_MEMORY);
    else
        reply_proposal(ctx, better, better ? set : present, costs, history_learning_messages(learning));
    if (set != NULL) hmq_patterns_free(set);
    history_learning_end(learning);
}

int history_patterns_propose_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_of(ctx, argv, argc);
    scope s = {.store = history_take_store(&a, history_shard_option(&a))};
    long long margin = HISTORY_MARGIN;
    hmq_patterns *own = NULL;
    if (s.store == NULL || (args_take_word(&a, "MARGIN") && !args_number(&a, "MARGIN", 0, 100, &margin)) ||
        !args_end(&a) || !take_scope(&a, &s, false))
        return SERVER_OK;
    const hmq_patterns *present = present_set(ctx, &s, &own);
    if (present == NULL) return SERVER_OK;
    /* Reading the sample may evict a set from the cache. */
    hmq_slice text = hmq_patterns_text(present);
    hmq_patterns *kept = hmq_patterns_parse(&server_allocator, (const char *)text.data, text.len, NULL, 0);
    if (kept == NULL) {
        reply_error(ctx, ERROR_LEARNING_MEMORY);
    } else {
        propose(ctx, &s, kept, (unsigned)margin);
        hmq_patterns_free(kept);
    }
    if (own != NULL) hmq_patterns_free(own);
    return SERVER_OK;
}

/* ---- PREPARE, COMMIT, ABORT -------------------------------------------------------------------------------- */

static hmq_patterns *parse_text(server_ctx *ctx, const history_store *store, const server_string *text) {
    char why[256];
    hmq_slice bytes = slice_of(text);
    hmq_patterns *set = hmq_patterns_parse(&server_allocator, (const char *)bytes.data, bytes.len, why, sizeof why);
    if (set == NULL) {
        reply_error(ctx, ERROR_PATTERNS_INVALID, why);
    } else if (hmq_patterns_levels(set) != store->levels) {
        reply_error(ctx, ERROR_PATTERNS_LEVELS, hmq_patterns_levels(set), store->levels, shown_slice(store->name));
        hmq_patterns_free(set);
        set = NULL;
    }
    return set;
}

static bool may_prepare(server_ctx *ctx, const scope *s, uint32_t generation) {
    for (unsigned i = 0; i < s->count; i++) {
        uint32_t present = history_generation(&s->states[i]);
        if (generation != present + 1) {
            reply_error(ctx, ERROR_GENERATION_STALE, shown_slice(s->store->name), s->states[i].shard, present,
                        present + 1);
            return false;
        }
        if (!history_prepared_is_writable(ctx, &s->states[i], true)) return false;
    }
    return true;
}

static bool take_spread(args *a, scope *s) {
    long long shards = 0;
    if (args_take_word(a, "SHARDS") && !args_number(a, "SHARDS", 1, HISTORY_SHARDS_MAX, &shards)) return false;
    if (shards > 0 && can.cluster) {
        reply_error(a->ctx, ERROR_SPREAD_IN_CLUSTER);
        return false;
    }
    s->spread = (unsigned)shards;
    return true;
}

int history_patterns_prepare_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 5) return sv.WrongArity(ctx);
    args a = args_of(ctx, argv, argc);
    scope s = {.store = history_take_store(&a, history_shard_option(&a))};
    uint32_t generation;
    server_string *text;
    if (s.store == NULL || !take_generation(&a, &generation) || !args_string(&a, "the pattern set", &text) ||
        !take_spread(&a, &s) || !take_scope(&a, &s, true) || !may_prepare(ctx, &s, generation))
        return SERVER_OK;
    hmq_patterns *set = parse_text(ctx, s.store, text);
    if (set == NULL) return SERVER_OK;
    for (unsigned i = 0; i < s.count; i++)
        history_prepare(ctx, &s.states[i], generation, hmq_patterns_text(set), s.spread);
    hmq_patterns_free(set);
    return sv.ReplyWithSimpleString(ctx, "OK");
}

/* Are the added shards really new, and does the command apply to all shards? */
static bool may_spread(server_ctx *ctx, const scope *s, unsigned shards) {
    if (s->count < s->store->shards) {
        reply_error(ctx, ERROR_SPREAD_PARTIAL, shards);
        return false;
    }
    for (unsigned i = 0; i < s->count; i++) {
        if (history_prepared_shards(ctx, &s->states[i]) == shards) continue;
        reply_error(ctx, ERROR_SPREAD_DIFFERS, shown_slice(s->store->name), i);
        return false;
    }
    for (unsigned i = s->store->shards; i < shards; i++) {
        server_string *name = history_key(s->store, i, "%s", "");
        bool there = sv.KeyExists(ctx, name);
        if (there) reply_wrong_type(ctx, name, "no key, because the shard is about to be created");
        sv.FreeString(NULL, name);
        if (there) return false;
    }
    return true;
}

/* Writes the policy, then the new shards.  Readers with a watermark in the first shard hold the new ones from their
 * beginning. */
static void spread_anew(server_ctx *ctx, scope *s, uint32_t generation, unsigned shards, server_string *text) {
    unsigned had = s->store->shards;
    server_string *key = sv.HoldString(NULL, s->store->key);
    hmq_slice name = {slice_of(key).data + 1, s->store->name.len};
    history_store_spread(ctx, s->store, shards);
    s->store = history_stores_find(index_of(ctx)->histories, name);
    for (unsigned i = had; s->store != NULL && i < shards; i++) {
        history_shard state = {.store = s->store, .shard = i};
        history_prepare(ctx, &state, generation, slice_of(text), 0);
        history_switch(ctx, &state, generation);
        history_holds_begin(ctx, s->store, i);
    }
    sv.FreeString(NULL, key);
}

int history_patterns_commit_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 4) return sv.WrongArity(ctx);
    args a = args_of(ctx, argv, argc);
    scope s = {.store = history_take_store(&a, history_shard_option(&a))};
    uint32_t generation;
    if (s.store == NULL || !take_generation(&a, &generation) || !take_scope(&a, &s, true)) return SERVER_OK;
    for (unsigned i = 0; i < s.count; i++) {
        if (!history_is_prepared(ctx, &s.states[i], generation, true)) return SERVER_OK;
    }
    unsigned spread = s.count == 0 || can.cluster ? 0 : history_prepared_shards(ctx, &s.states[0]);
    if (spread > 0 && !may_spread(ctx, &s, spread)) return SERVER_OK;
    server_string *text = spread > s.store->shards ? history_prepared_text(ctx, &s.states[0], generation) : NULL;
    for (unsigned i = 0; i < s.count; i++) history_switch(ctx, &s.states[i], generation);
    if (spread > 0 && (spread != s.store->spread || spread > s.store->shards))
        spread_anew(ctx, &s, generation, spread, text);
    if (text != NULL) sv.FreeString(NULL, text);
    counters.history_switched++;
    return sv.ReplyWithSimpleString(ctx, "OK");
}

int history_patterns_abort_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_of(ctx, argv, argc);
    scope s = {.store = history_take_store(&a, history_shard_option(&a))};
    if (s.store == NULL || !take_scope(&a, &s, true)) return SERVER_OK;
    for (unsigned i = 0; i < s.count; i++) history_abort(ctx, &s.states[i]);
    return sv.ReplyWithSimpleString(ctx, "OK");
}
