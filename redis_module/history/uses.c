/* uses.c - counts the filters of readers. */
#include "history/uses.h"

#include <string.h>

#define STORES_MAX 1024 /* in all databases; further stores are not counted */
#define NAME_BYTES (HISTORY_NAME_MAX + sizeof(int))

typedef struct use {
    uint64_t hash, weight;
    uint8_t *filter;
    size_t len;
} use;

typedef struct uses {
    long long learned_ms;
    size_t count;
    use list[HISTORY_USES_MAX];
} uses;

static const hmq_hash_seed seed = {0, 0}; /* filters with equal hashes are compared */
static server_dict *by_store;             /* database and name -> uses */

static size_t name_of(server_ctx *ctx, const history_store *store, uint8_t name[NAME_BYTES]) {
    int db = sv.GetSelectedDb(ctx);
    memcpy(name, &db, sizeof db);
    memcpy(name + sizeof db, store->name.data, store->name.len);
    return sizeof db + store->name.len;
}

static uses *uses_of(server_ctx *ctx, const history_store *store, bool made) {
    uint8_t name[NAME_BYTES];
    size_t len = name_of(ctx, store, name);
    if (by_store == NULL) by_store = sv.CreateDict(NULL);
    uses *found = sv.DictGetC(by_store, name, len, NULL);
    if (found != NULL || !made || sv.DictSize(by_store) >= STORES_MAX) return found;
    found = sv.Calloc(1, sizeof *found);
    sv.DictSetC(by_store, name, len, found);
    return found;
}

static bool is(const use *u, uint64_t hash, hmq_slice filter) {
    return u->hash == hash && u->len == filter.len && memcmp(u->filter, filter.data, filter.len) == 0;
}

/* The place of the filter; a new one gets the next free place, or that of the rarest filter. */
static use *place_of(uses *u, uint64_t hash, hmq_slice filter) {
    use *rarest = &u->list[0];
    for (size_t i = 0; i < u->count; i++) {
        if (is(&u->list[i], hash, filter)) return &u->list[i];
        if (u->list[i].weight < rarest->weight) rarest = &u->list[i];
    }
    return u->count < HISTORY_USES_MAX ? &u->list[u->count++] : rarest;
}

void history_uses_note(server_ctx *ctx, const history_store *store, hmq_slice filter) {
    uses *u = uses_of(ctx, store, true);
    if (u == NULL) return;
    uint64_t hash = hmq_hash_text(&seed, (const char *)filter.data, filter.len);
    use *place = place_of(u, hash, filter);
    if (!is(place, hash, filter)) {
        sv.Free(place->filter);
        place->filter = sv.Alloc(filter.len);
        memcpy(place->filter, filter.data, filter.len);
        place->len = filter.len;
        place->hash = hash;
    }
    place->weight++;
}

size_t history_uses_list(server_ctx *ctx, const history_store *store, hmq_filter_use *list) {
    const uses *u = uses_of(ctx, store, false);
    size_t count = 0;
    for (size_t i = 0; u != NULL && i < u->count; i++) {
        if (u->list[i].weight > 0)
            list[count++] = (hmq_filter_use){{u->list[i].filter, u->list[i].len}, u->list[i].weight};
    }
    return count;
}

void history_uses_decay(server_ctx *ctx, const history_store *store) {
    uses *u = uses_of(ctx, store, false);
    for (size_t i = 0; u != NULL && i < u->count; i++) u->list[i].weight /= 2;
}

long long *history_uses_learned(server_ctx *ctx, const history_store *store) {
    uses *u = uses_of(ctx, store, true);
    return u == NULL ? NULL : &u->learned_ms;
}
