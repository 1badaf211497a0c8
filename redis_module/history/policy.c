/* policy.c - HISTORY.STORE: creates or changes a policy.
 *
 * In a cluster the command is sent to every primary.  Each writes the copies for its own shards.  Seed and time are the same
 * for all primaries, so that they agree, in whatever order several such calls reach a node. */
#include <sys/random.h>

#include "history/patterns.h"
#include "server/errors.h"
#include "server/keys.h"
#include "index/subscription.h"
#include "history/filters.h"
#include "history/history.h"
#include "history/policy_write.h"
#include "history/slots.h"

#define EPOCHS_OF_AN_AGE 16
#define DEFAULT_EPOCH_S 86400
#define DEFAULT_LEVELS 8
#define MAX_SECONDS 2147483647LL

typedef struct policy {
    hmq_slice name;
    server_string *filters[HISTORY_FILTERS_MAX];
    size_t count;
    long long shards, levels, age_s, epoch_s, bytes, hold, learn_s, changed_ms; /* -1: not given */
    bool seeded;
    hmq_hash_seed seed;
} policy;

/* ---- reading the command ----------------------------------------------------------------------------------- */

static bool take_name(args *a, policy *p) {
    server_string *text;
    if (!args_string(a, "the store", &text)) return false;
    p->name = slice_of(text);
    bool right = p->name.len >= 1 && p->name.len <= HISTORY_NAME_MAX;
    for (size_t i = 0; right && i < p->name.len; i++) {
        uint8_t c = p->name.data[i];
        right = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
                c == '.';
    }
    if (right) return true;
    reply_error(a->ctx, ERROR_STORE_NAME_INVALID, shown(text), HISTORY_NAME_MAX);
    return false;
}

static bool take_filter(args *a, policy *p) {
    server_string *filter;
    if (!args_string(a, "FILTER", &filter)) return false;
    if (!subscription_check_filter(a->ctx, filter, false)) return false;
    if (p->count == HISTORY_FILTERS_MAX) {
        reply_error(a->ctx, ERROR_STORE_FILTERS_COUNT, HISTORY_FILTERS_MAX);
        return false;
    }
    p->filters[p->count++] = filter;
    return true;
}

static bool take_seed(args *a, policy *p) {
    server_string *text;
    if (!args_string(a, "SEED", &text)) return false;
    p->seeded = history_seed_read(text, &p->seed);
    if (p->seeded) return true;
    reply_error(a->ctx, ERROR_SEED_INVALID, shown(text), HISTORY_SEED_DIGITS);
    return false;
}

static bool take_changed(args *a, policy *p) {
    if (can.cluster) return args_number(a, "CHANGED", 1, INT64_MAX, &p->changed_ms);
    reply_error(a->ctx, ERROR_CLUSTER_ONLY, "CHANGED", "CHANGED");
    return false;
}

static bool parse_policy(args *a, policy *p) {
    *p = (policy){.shards = -1,
                  .levels = -1,
                  .age_s = -1,
                  .epoch_s = -1,
                  .bytes = -1,
                  .hold = -1,
                  .learn_s = -1,
                  .changed_ms = -1};
    if (!take_name(a, p)) return false;
    while (args_left(a)) {
        bool right;
        if (args_take_word(a, "FILTER"))
            right = take_filter(a, p);
        else if (args_take_word(a, "SHARDS"))
            right = args_number(a, "SHARDS", 1, HISTORY_SHARDS_MAX, &p->shards);
        else if (args_take_word(a, "LEVELS"))
            right = args_number(a, "LEVELS", 1, HMQ_PATTERNS_MAX_LEVELS, &p->levels);
        else if (args_take_word(a, "AGE"))
            right = args_number(a, "AGE", 0, MAX_SECONDS, &p->age_s);
        else if (args_take_word(a, "EPOCH"))
            right = args_number(a, "EPOCH", 1, MAX_SECONDS, &p->epoch_s);
        else if (args_take_word(a, "BYTES"))
            right = args_number(a, "BYTES", 0, INT64_MAX, &p->bytes);
        else if (args_take_word(a, "HOLDBYTES"))
            right = args_number(a, "HOLDBYTES", 0, INT64_MAX, &p->hold);
        else if (args_take_word(a, "LEARN"))
            right = args_number(a, "LEARN", 0, MAX_SECONDS, &p->learn_s);
        else if (args_take_word(a, "SEED"))
            right = take_seed(a, p);
        else if (args_take_word(a, "CHANGED"))
            right = take_changed(a, p);
        else
            right = args_end(a);
        if (!right) return false;
    }
    if (p->count > 0) return true;
    reply_error(a->ctx, ERROR_STORE_FILTER_MISSING);
    return false;
}

/* ---- checking it ------------------------------------------------------------------------------------------- */

/* The first filter that overlaps with a filter of the store, and the latter as printable text; NULL if none does. */
static const server_string *overlaps_with(const policy *p, const history_store *store, const char **other) {
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    const server_string *found = NULL;
    size_t len;
    const char *filter;
    while (found == NULL && (filter = sv.DictNextC(iter, &len, NULL)) != NULL) {
        hmq_slice theirs = {(const uint8_t *)filter, len};
        for (size_t i = 0; i < p->count && found == NULL; i++) {
            if (history_filters_overlap(slice_of(p->filters[i]), theirs)) found = p->filters[i];
        }
        if (found != NULL) *other = shown_slice(theirs);
    }
    sv.DictIteratorStop(iter);
    return found;
}

static bool check_others(server_ctx *ctx, const policy *p, const history_stores *stores, const history_store *own) {
    size_t count = 0;
    const char *other;
    for (const history_store *s = NULL; (s = history_stores_next(stores, s)) != NULL; count++) {
        const server_string *filter = s == own ? NULL : overlaps_with(p, s, &other);
        if (filter == NULL) continue;
        reply_error(ctx, ERROR_STORE_FILTERS_OVERLAP, shown(filter), other, shown_slice(s->name));
        return false;
    }
    if (own != NULL || count < HISTORY_STORES_MAX) return true;
    reply_error(ctx, ERROR_STORES_COUNT, HISTORY_STORES_MAX);
    return false;
}

static long long default_epoch_s(long long age_s) {
    if (age_s == 0) return DEFAULT_EPOCH_S;
    return age_s < EPOCHS_OF_AN_AGE ? 1 : age_s / EPOCHS_OF_AN_AGE;
}

/* All nodes of a cluster must have the same seed, and no node knows that of the others. */
static bool choose_seed(server_ctx *ctx, policy *p, const history_store *own) {
    bool same = own == NULL || !p->seeded || (own->seed.low == p->seed.low && own->seed.high == p->seed.high);
    if (!same) {
        reply_error(ctx, ERROR_SEED_DIFFERS, shown_slice(own->name));
        return false;
    }
    if (own != NULL) p->seed = own->seed;
    if (own != NULL || p->seeded) return true;
    if (can.cluster) {
        reply_error(ctx, ERROR_SEED_MISSING, HISTORY_SEED_DIGITS);
        return false;
    }
    if (getrandom(&p->seed, sizeof p->seed, 0) == (ssize_t)sizeof p->seed) return true;
    reply_error(ctx, ERROR_RANDOM_NOT_READY);
    return false;
}

static bool choose_shards(server_ctx *ctx, policy *p, const history_store *own) {
    if (own != NULL && p->shards < 0) p->shards = own->shards;
    if (p->shards < 0 && can.cluster) {
        reply_error(ctx, ERROR_STORE_SHARDS_MISSING);
        return false;
    }
    if (p->shards < 0) p->shards = 1;
    return true;
}

/* Missing values stay, or get their defaults; values that cannot change must be the same. */
static bool complete(server_ctx *ctx, policy *p, const history_store *own) {
    if (own != NULL && ((p->shards >= 0 && p->shards != own->shards) || (p->levels >= 0 && p->levels != own->levels))) {
        reply_error(ctx, ERROR_STORE_SHAPE_FIXED, shown_slice(own->name), own->shards, own->levels);
        return false;
    }
    if (!choose_shards(ctx, p, own) || !choose_seed(ctx, p, own)) return false;
    if (p->levels < 0) p->levels = own == NULL ? DEFAULT_LEVELS : own->levels;
    if (p->age_s < 0) p->age_s = own == NULL ? 0 : own->age_s;
    if (p->bytes < 0) p->bytes = own == NULL ? 0 : own->bytes;
    if (p->hold < 0 && own != NULL) p->hold = own->hold;
    if (p->changed_ms < 0) p->changed_ms = history_changed_now(own);
    if (p->learn_s < 0) p->learn_s = own == NULL ? 0 : own->learn_s;
    bool chosen = own != NULL && own->epoch_s != default_epoch_s(own->age_s);
    if (p->epoch_s < 0) p->epoch_s = chosen ? own->epoch_s : default_epoch_s(p->age_s);
    if (p->age_s / p->epoch_s <= HISTORY_EPOCHS_MAX) return true;
    reply_error(ctx, ERROR_STORE_EPOCH_SHORT, p->epoch_s, HISTORY_EPOCHS_MAX, p->age_s);
    return false;
}

/* ---- writing it -------------------------------------------------------------------------------------------- */

/* The new store; the caller frees its filters. */
static history_store new_store_of(const policy *p, const history_store *own) {
    history_store wanted = {.name = p->name,
                            .shards = (unsigned)p->shards,
                            .spread = own == NULL ? (unsigned)p->shards : own->spread,
                            .former_shards = own == NULL ? 0 : own->former_shards,
                            .levels = (unsigned)p->levels,
                            .age_s = p->age_s,
                            .epoch_s = p->epoch_s,
                            .bytes = p->bytes,
                            .hold = p->hold,
                            .learn_s = p->learn_s,
                            .seed = p->seed,
                            .changed_ms = p->changed_ms,
                            .filters = sv.CreateDict(NULL)};
    for (size_t i = 0; i < p->count; i++) {
        hmq_slice filter = slice_of(p->filters[i]);
        sv.DictReplaceC(wanted.filters, filter.data, filter.len, NULL);
    }
    return wanted;
}

/* Refuses to overwrite a foreign key with the name of the policy. */
static bool may_write(server_ctx *ctx, const policy *p, const history_store *own, unsigned shard) {
    bool known = own != NULL && (!can.cluster || (own->copies >> shard & 1));
    server_string *name = history_policy_key(p->name, shard);
    bool right = known || key_type_of(ctx, name, SERVER_READ) == SERVER_EMPTY;
    if (!right) reply_wrong_type(ctx, name, "a policy of history");
    sv.FreeString(NULL, name);
    return right;
}

static void refresh(server_ctx *ctx, const policy *p, unsigned shard) {
    server_string *name = history_policy_key(p->name, shard);
    history_stores_refresh(ctx, index_of(ctx)->histories, slice_of(name));
    sv.FreeString(NULL, name);
}

static void write_here(server_ctx *ctx, const policy *p, const history_store *own) {
    history_store wanted = new_store_of(p, own);
    if (may_write(ctx, p, own, 0)) {
        history_policy_write(ctx, &wanted, 0);
        refresh(ctx, p, 0);
        sv.ReplyWithSimpleString(ctx, "OK");
    }
    sv.FreeDict(NULL, wanted.filters);
}

/* Replies the shards on this node.  A newer policy stays: the call was late. */
static void write_copies(server_ctx *ctx, const policy *p, const history_store *own) {
    history_store wanted = new_store_of(p, own);
    unsigned shards[HISTORY_SHARDS_MAX], count = 0;
    bool right = true;
    for (unsigned shard = 0; shard < wanted.shards && right; shard++) {
        if (!history_is_here(ctx, &wanted, shard)) continue;
        right = may_write(ctx, p, own, shard);
        shards[count++] = shard;
    }
    bool late = own != NULL && own->changed_ms > p->changed_ms;
    for (unsigned i = 0; right && !late && i < count; i++) history_policy_write(ctx, &wanted, shards[i]);
    for (unsigned i = 0; right && late && i < count; i++) history_policy_copy_to_shard(ctx, own, shards[i]);
    for (unsigned i = 0; right && i < count; i++) refresh(ctx, p, shards[i]);
    if (right) sv.ReplyWithArray(ctx, count);
    for (unsigned i = 0; right && i < count; i++) sv.ReplyWithLongLong(ctx, shards[i]);
    sv.FreeDict(NULL, wanted.filters);
}

int history_store_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 4) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    policy p;
    if (!parse_policy(&a, &p)) return SERVER_OK;
    index_t *index = index_of(ctx);
    if (history_stores_is_removed(index->histories, p.name))
        return reply_error(ctx, ERROR_STORE_BEING_REMOVED, shown_slice(p.name));
    const history_store *own = history_stores_find(index->histories, p.name);
    if (!complete(ctx, &p, own) || !check_others(ctx, &p, index->histories, own)) return SERVER_OK;
    if (can.cluster)
        write_copies(ctx, &p, own);
    else
        write_here(ctx, &p, own);
    return SERVER_OK;
}
