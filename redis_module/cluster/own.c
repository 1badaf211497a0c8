/* own.c - the routes of the sessions on this node. */
#include "cluster/own.h"

#include <string.h>

#include "base/assert.h"
#include "topic/slot.h"
#include "topic/topic.h"
#include "index/check.h"
#include "index/filters.h"

#define SLOT_BYTES 2

struct own_routes {
    server_dict *counts; /* as a pointer: the number of subscriptions, at least 1 */
    uint32_t vanished[HMQ_SLOTS];
};

/* The name of a route; valid until the next call. */
static hmq_slice name_of(unsigned slot, hmq_slice filter) {
    static uint8_t name[SLOT_BYTES + HMQ_TOPIC_MAX_BYTES];
    hmq_assert(filter.len <= HMQ_TOPIC_MAX_BYTES);
    name[0] = (uint8_t)(slot >> 8);
    name[1] = (uint8_t)slot;
    if (filter.len > 0) memcpy(name + SLOT_BYTES, filter.data, filter.len);
    return (hmq_slice){name, SLOT_BYTES + filter.len};
}

static uintptr_t count_of(const own_routes *routes, hmq_slice name) {
    return (uintptr_t)sv.DictGetC(routes->counts, (void *)(uintptr_t)name.data, name.len, NULL);
}

size_t own_routes_count(const own_routes *routes) {
    return (size_t)sv.DictSize(routes->counts);
}

bool own_routes_has(const own_routes *routes, hmq_slice filter, unsigned slot) {
    return filter.len <= HMQ_TOPIC_MAX_BYTES && count_of(routes, name_of(slot, filter)) > 0;
}

uint32_t own_routes_vanished(const own_routes *routes, unsigned slot) {
    return routes->vanished[slot];
}

/* ---- walking ----------------------------------------------------------------------------------------------- */

void own_routes_walk_begin(own_routes_walk *walk, const own_routes *routes, unsigned slot, hmq_slice after) {
    hmq_slice name = name_of(slot, after);
    const char *op = after.len > 0 ? ">" : ">=";
    *walk =
        (own_routes_walk){.iter = sv.DictIteratorStartC(routes->counts, op, (void *)(uintptr_t)name.data, name.len)};
}

bool own_routes_walk_next(own_routes_walk *walk) {
    size_t len;
    const uint8_t *name = sv.DictNextC(walk->iter, &len, NULL);
    if (name == NULL) return false;
    walk->slot = (unsigned)name[0] << 8 | name[1];
    walk->filter = (hmq_slice){name + SLOT_BYTES, len - SLOT_BYTES};
    return true;
}

void own_routes_walk_skip_to(own_routes_walk *walk, unsigned slot) {
    hmq_slice name = name_of(slot, (hmq_slice){0});
    sv.DictIteratorReseekC(walk->iter, ">=", (void *)(uintptr_t)name.data, name.len);
}

void own_routes_walk_end(own_routes_walk *walk) {
    sv.DictIteratorStop(walk->iter);
}

/* ---- as a part of the index -------------------------------------------------------------------------------- */

static void came(index_t *index, hmq_slice filter, unsigned slot) {
    hmq_slice name = name_of(slot, filter);
    uintptr_t count = count_of(index->routes, name) + 1;
    sv.DictReplaceC(index->routes->counts, name.data, name.len, (void *)count);
}

static void went(index_t *index, hmq_slice filter, unsigned slot) {
    hmq_slice name = name_of(slot, filter);
    uintptr_t count = count_of(index->routes, name);
    hmq_assert(count > 0);
    if (count > 1)
        sv.DictReplaceC(index->routes->counts, name.data, name.len, (void *)(count - 1));
    else
        sv.DictDelC(index->routes->counts, name.data, name.len, NULL);
}

static void vanished(index_t *index, unsigned slot) {
    index->routes->vanished[slot]++;
}

static const filter_watcher watcher = {came, went, vanished};

void own_routes_start(void) {
    if (can.cluster) index_watch_filters(&watcher);
}

static void make(index_t *index) {
    if (!can.cluster) return;
    index->routes = sv.Calloc(1, sizeof *index->routes);
    index->routes->counts = sv.CreateDict(NULL);
}

static void release(index_t *index) {
    if (index->routes == NULL) return;
    sv.FreeDict(NULL, index->routes->counts);
    sv.Free(index->routes);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    if (kept->routes == NULL) return;
    index_compare_names(kept->routes->counts, rebuilt->routes->counts, true,
                        "route in the index but not in the keys, or different", differ, context);
    index_compare_names(rebuilt->routes->counts, kept->routes->counts, true,
                        "route in the keys but not in the index, or different", differ, context);
}

const index_kind own_routes_kind = {.make = make, .release = release, .check = check};
