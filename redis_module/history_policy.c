/* history_policy.c - HISTORY.STORE, HISTORY.STORES, HISTORY.UNSTORE. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "../src/history_patterns.h"
#include "../src/topic.h"
#include "errors.h"
#include "history.h"
#include "history_drop.h"
#include "index.h"
#include "replication.h"

#define EPOCHS_OF_AN_AGE 16
#define DEFAULT_EPOCH_S 86400
#define DEFAULT_LEVELS 8
#define MAX_SECONDS 2147483647LL
#define POLICY_FIELDS 10
#define UNSTORE_KEYS 8192 /* are looked for at once; the others in the background */

typedef struct policy {
    hmq_slice name;
    server_string *filters[HISTORY_FILTERS_MAX];
    size_t count;
    long long shards, levels, age_s, epoch_s, bytes, hold, learn_s; /* -1: not said */
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
    reply_error(a->ctx, ERROR_SYNTAX, "the store is %s: 1 to %d letters, digits, '-', '_' or '.' expected", shown(text),
                HISTORY_NAME_MAX);
    return false;
}

static bool take_filter(args *a, policy *p) {
    server_string *filter;
    if (!args_string(a, "FILTER", &filter)) return false;
    hmq_slice text = slice_of(filter), group, inner;
    hmq_topic_error error = hmq_topic_check_filter((const char *)text.data, text.len);
    if (error != HMQ_TOPIC_OK) {
        reply_invalid_topic(a->ctx, "the topic filter", filter, error);
        return false;
    }
    if (hmq_topic_split_share((const char *)text.data, text.len, &group, &inner)) {
        reply_error(a->ctx, ERROR_INVALIDTOPIC,
                    "the topic filter %s is that of a shared subscription: an ordinary one "
                    "expected",
                    shown(filter));
        return false;
    }
    if (p->count == HISTORY_FILTERS_MAX) {
        reply_error(a->ctx, ERROR_SYNTAX, "FILTER: at most %d expected", HISTORY_FILTERS_MAX);
        return false;
    }
    p->filters[p->count++] = filter;
    return true;
}

static bool parse_policy(args *a, policy *p) {
    *p = (policy){.shards = -1, .levels = -1, .age_s = -1, .epoch_s = -1, .bytes = -1, .hold = -1, .learn_s = -1};
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
        else
            right = args_end(a);
        if (!right) return false;
    }
    if (p->count > 0) return true;
    reply_error(a->ctx, ERROR_SYNTAX, "FILTER is missing: one topic filter at least expected");
    return false;
}

/* ---- checking it ------------------------------------------------------------------------------------------- */

/* The first filter that overlaps with one of the store's, and that one, made printable; NULL if none does. */
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
        reply_error(ctx, ERROR_SYNTAX, "FILTER %s overlaps with %s of store %s: a topic can be in one store only",
                    shown(filter), other, shown_slice(s->name));
        return false;
    }
    if (own != NULL || count < HISTORY_STORES_MAX) return true;
    reply_error(ctx, ERROR_SYNTAX, "there are %d stores already: no more expected", HISTORY_STORES_MAX);
    return false;
}

static long long default_epoch_s(long long age_s) {
    if (age_s == 0) return DEFAULT_EPOCH_S;
    return age_s < EPOCHS_OF_AN_AGE ? 1 : age_s / EPOCHS_OF_AN_AGE;
}

/* What is not said stays, or gets its default; what never changes must be the same. */
static bool complete(server_ctx *ctx, policy *p, const history_store *own) {
    if (own != NULL && ((p->shards >= 0 && p->shards != own->shards) || (p->levels >= 0 && p->levels != own->levels))) {
        reply_error(ctx, ERROR_SYNTAX, "SHARDS and LEVELS of store %s are %u and %u: they cannot be changed here",
                    shown_slice(own->name), own->shards, own->levels);
        return false;
    }
    if (p->shards < 0) p->shards = own == NULL ? 1 : own->shards;
    if (p->levels < 0) p->levels = own == NULL ? DEFAULT_LEVELS : own->levels;
    if (p->age_s < 0) p->age_s = own == NULL ? 0 : own->age_s;
    if (p->bytes < 0) p->bytes = own == NULL ? 0 : own->bytes;
    if (p->hold < 0 && own != NULL) p->hold = own->hold;
    if (p->learn_s < 0) p->learn_s = own == NULL ? 0 : own->learn_s;
    bool chosen = own != NULL && own->epoch_s != default_epoch_s(own->age_s);
    if (p->epoch_s < 0) p->epoch_s = chosen ? own->epoch_s : default_epoch_s(p->age_s);
    if (p->age_s / p->epoch_s <= HISTORY_EPOCHS_MAX) return true;
    reply_error(ctx, ERROR_SYNTAX, "EPOCH is %lld: at least a part in %d of AGE %lld expected", p->epoch_s,
                HISTORY_EPOCHS_MAX, p->age_s);
    return false;
}

/* ---- writing it -------------------------------------------------------------------------------------------- */

static server_string *policy_key(hmq_slice name) {
    return sv.CreateStringPrintf(NULL, "{%.*s}_history_store", (int)name.len, (const char *)name.data);
}

static bool make_seed(hmq_hash_seed *seed) {
    return getrandom(seed, sizeof *seed, 0) == (ssize_t)sizeof *seed;
}

static void set_field(server_key *hash, server_string **pairs, size_t *count, server_string *field,
                      server_string *value) {
    sv.HashSet(hash, SERVER_HASH_NONE, field, value, NULL);
    pairs[(*count)++] = field;
    pairs[(*count)++] = value;
}

static void write_spread(server_key *hash, server_string **pairs, size_t *count, unsigned spread, uint64_t had) {
    set_field(hash, pairs, count, sv.CreateString(NULL, "spread", 6), sv.CreateStringFromLongLong(NULL, spread));
    set_field(hash, pairs, count, sv.CreateString(NULL, "had", 3), sv.CreateStringFromLongLong(NULL, (long long)had));
}

void history_store_spread(server_ctx *ctx, const history_store *store, unsigned shards) {
    server_string *pairs[6], *name = sv.HoldString(NULL, store->key); /* the store is read anew */
    size_t count = 0;
    uint64_t had = store->had;
    unsigned all = shards > store->shards ? shards : store->shards;
    if (shards > store->shards) had |= UINT64_C(1) << (store->shards - 1);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    set_field(hash, pairs, &count, sv.CreateString(NULL, "shards", 6), sv.CreateStringFromLongLong(NULL, all));
    write_spread(hash, pairs, &count, shards, had);
    sv.CloseKey(hash);
    replicate(ctx, "HSET", "sv", name, pairs, count);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    for (size_t i = 0; i < count; i++) sv.FreeString(NULL, pairs[i]);
    history_stores_refresh(ctx, index_of(ctx)->histories, slice_of(name));
    sv.FreeString(NULL, name);
}

static void write_policy(server_ctx *ctx, const policy *p, const history_store *own, server_string *name,
                         hmq_hash_seed seed) {
    static const char *const names[] = {"shards", "levels", "age", "epoch", "bytes"};
    const long long numbers[] = {p->shards, p->levels, p->age_s, p->epoch_s, p->bytes};
    server_string *pairs[2 * (POLICY_FIELDS + HISTORY_FILTERS_MAX)];
    size_t count = 0;
    history_drop_key(ctx, sv.HoldString(NULL, name)); /* filters that it had */
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        set_field(hash, pairs, &count, sv.CreateString(NULL, names[i], strlen(names[i])),
                  sv.CreateStringFromLongLong(NULL, numbers[i]));
    set_field(hash, pairs, &count, sv.CreateString(NULL, "seed", 4),
              sv.CreateStringPrintf(NULL, "%016" PRIx64 "%016" PRIx64, seed.low, seed.high));
    if (p->hold >= 0)
        set_field(hash, pairs, &count, sv.CreateString(NULL, "hold", 4), sv.CreateStringFromLongLong(NULL, p->hold));
    if (own != NULL && own->had != 0) write_spread(hash, pairs, &count, own->spread, own->had);
    if (p->learn_s > 0)
        set_field(hash, pairs, &count, sv.CreateString(NULL, "learn", 5),
                  sv.CreateStringFromLongLong(NULL, p->learn_s));
    for (size_t i = 0; i < p->count; i++) {
        hmq_slice text = slice_of(p->filters[i]);
        char *field = sv.Alloc(text.len + 7);
        memcpy(field, "filter ", 7);
        memcpy(field + 7, text.data, text.len);
        set_field(hash, pairs, &count, sv.CreateString(NULL, field, text.len + 7), sv.CreateString(NULL, "", 0));
        sv.Free(field);
    }
    sv.CloseKey(hash);
    replicate(ctx, "HSET", "sv", name, pairs, count);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    for (size_t i = 0; i < count; i++) sv.FreeString(NULL, pairs[i]);
}

int history_store_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 4) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    policy p;
    if (can.cluster) return reply_error(ctx, ERROR_SYNTAX, "history in a cluster: a server without one expected");
    if (!parse_policy(&a, &p)) return SERVER_OK;
    index_t *index = index_of(ctx);
    if (history_stores_is_removed(index->histories, p.name))
        return reply_error(ctx, ERROR_TRYAGAIN, "the store %s is still being removed: try again", shown_slice(p.name));
    const history_store *own = history_stores_find(index->histories, p.name);
    if (!complete(ctx, &p, own) || !check_others(ctx, &p, index->histories, own)) return SERVER_OK;
    hmq_hash_seed seed;
    if (own != NULL)
        seed = own->seed;
    else if (!make_seed(&seed))
        return reply_error(ctx, ERROR_TRYAGAIN, "the system has no random numbers yet: try again");
    server_string *name = policy_key(p.name);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    int type = key == NULL ? SERVER_EMPTY : sv.KeyType(key);
    if (key != NULL) sv.CloseKey(key);
    if (type != SERVER_EMPTY && own == NULL) {
        reply_wrong_type(ctx, name, "a policy of history");
    } else {
        write_policy(ctx, &p, own, name, seed);
        history_stores_refresh(ctx, index->histories, slice_of(name));
        sv.ReplyWithSimpleString(ctx, "OK");
    }
    sv.FreeString(NULL, name);
    return SERVER_OK;
}

/* Is the state one that says what there is?  The logs need not be right. */
static bool may_drop(server_ctx *ctx, const history_store *store, unsigned shard) {
    history_shard state = {.store = store, .shard = shard};
    server_string *name = history_key(store, shard, "%s", "");
    bool right = history_shard_load(ctx, name, &state);
    if (!right) reply_wrong_type(ctx, name, "the state of a shard of history");
    sv.FreeString(NULL, name);
    return right;
}

/* So that it selects nothing more and is not found, though all that it has is still there. */
static void mark_removed(server_ctx *ctx, server_string *name) {
    server_string *field = sv.CreateString(NULL, "removed", 7), *value = sv.CreateString(NULL, "1", 1);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    sv.HashSet(hash, SERVER_HASH_NONE, field, value, NULL);
    sv.CloseKey(hash);
    replicate(ctx, "HSET", "sss", name, field, value);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, value);
    sv.FreeString(NULL, field);
}

int history_unstore_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc != 2) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    const history_store *store = history_take_store(&a);
    if (store == NULL) return SERVER_OK;
    for (unsigned shard = 0; shard < store->shards; shard++) {
        if (!may_drop(ctx, store, shard)) return SERVER_OK;
    }
    server_string *key = sv.HoldString(NULL, store->key);
    history_slice slice = {.keys = UNSTORE_KEYS};
    mark_removed(ctx, key);
    history_drop_store(ctx, store, &slice);
    history_stores_refresh(ctx, index_of(ctx)->histories, slice_of(key));
    sv.FreeString(NULL, key);
    return sv.ReplyWithSimpleString(ctx, "OK");
}

/* ---- listing ----------------------------------------------------------------------------------------------- */

static void reply_number(server_ctx *ctx, const char *name, long long number) {
    sv.ReplyWithCString(ctx, name);
    sv.ReplyWithLongLong(ctx, number);
}

static void reply_store(server_ctx *ctx, const history_store *s) {
    sv.ReplyWithMap(ctx, 9);
    sv.ReplyWithCString(ctx, "store");
    sv.ReplyWithStringBuffer(ctx, (const char *)s->name.data, s->name.len);
    sv.ReplyWithCString(ctx, "filters");
    sv.ReplyWithArray(ctx, (long)sv.DictSize(s->filters));
    server_dict_iter *iter = sv.DictIteratorStartC(s->filters, "^", NULL, 0);
    size_t len;
    const char *filter;
    while ((filter = sv.DictNextC(iter, &len, NULL)) != NULL) sv.ReplyWithStringBuffer(ctx, filter, len);
    sv.DictIteratorStop(iter);
    reply_number(ctx, "shards", s->shards);
    reply_number(ctx, "levels", s->levels);
    reply_number(ctx, "age", s->age_s);
    reply_number(ctx, "epoch", s->epoch_s);
    reply_number(ctx, "bytes", s->bytes);
    reply_number(ctx, "holdbytes", history_store_hold(s));
    reply_number(ctx, "learn", s->learn_s);
}

int history_stores_command(server_ctx *ctx, server_string **argv, int argc) {
    (void)argv;
    if (argc != 1) return sv.WrongArity(ctx);
    const history_stores *stores = index_of(ctx)->histories;
    long count = 0;
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    for (const history_store *s = NULL; (s = history_stores_next(stores, s)) != NULL; count++) reply_store(ctx, s);
    sv.ReplySetArrayLength(ctx, count);
    return SERVER_OK;
}
