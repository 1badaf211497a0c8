/* own.c - the routes of the sessions and shards on this node. */
#include "cluster/own.h"

#include <string.h>

#include "base/assert.h"
#include "topic/slot.h"
#include "topic/topic.h"
#include "index/filters.h"

#define SLOT_BYTES 2

/* The value of a route: the number of its subscriptions, at least 1, as an odd number; or a pointer to this. */
typedef struct noted {
    own_note note;
    uintptr_t count;
} noted;

struct own_routes {
    server_dict *counts;
    size_t notes;
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

static uintptr_t value_of(const own_routes *routes, hmq_slice name) {
    return (uintptr_t)sv.DictGetC(routes->counts, (void *)(uintptr_t)name.data, name.len, NULL);
}

static noted *noted_in(uintptr_t value) {
    return (value & 1) == 0 ? (noted *)value : NULL;
}

static uintptr_t count_in(uintptr_t value) {
    const noted *with_note = noted_in(value);
    return with_note == NULL ? value >> 1 : with_note->count;
}

static uintptr_t count_of(const own_routes *routes, hmq_slice name) {
    uintptr_t value = value_of(routes, name);
    return value == 0 ? 0 : count_in(value);
}

/* Sets the number of subscriptions; 0 removes the route with its note. */
static void set_count(own_routes *routes, hmq_slice name, uintptr_t count) {
    uintptr_t value = value_of(routes, name);
    noted *with_note = value == 0 ? NULL : noted_in(value);
    if (count == 0) {
        sv.DictDelC(routes->counts, name.data, name.len, NULL);
        if (with_note == NULL) return;
        sv.Free(with_note);
        routes->notes--;
    } else if (with_note != NULL) {
        with_note->count = count;
    } else {
        sv.DictReplaceC(routes->counts, name.data, name.len, (void *)(count << 1 | 1));
    }
}

own_note *own_routes_note(own_routes *routes, hmq_slice filter, unsigned slot, bool make) {
    if (filter.len > HMQ_TOPIC_MAX_BYTES) return NULL;
    hmq_slice name = name_of(slot, filter);
    uintptr_t value = value_of(routes, name);
    if (value == 0) return NULL;
    noted *with_note = noted_in(value);
    if (with_note == NULL && make) {
        with_note = sv.Calloc(1, sizeof *with_note);
        with_note->count = count_in(value);
        sv.DictReplaceC(routes->counts, name.data, name.len, with_note);
        routes->notes++;
    }
    return with_note == NULL ? NULL : &with_note->note;
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

static void add_subscriber(index_t *index, hmq_slice filter, unsigned slot) {
    hmq_slice name = name_of(slot, filter);
    set_count(index->routes, name, count_of(index->routes, name) + 1);
}

static void remove_subscriber(index_t *index, hmq_slice filter, unsigned slot) {
    hmq_slice name = name_of(slot, filter);
    uintptr_t count = count_of(index->routes, name);
    hmq_assert(count > 0);
    set_count(index->routes, name, count - 1);
}

static void vanished(index_t *index, unsigned slot) {
    index->routes->vanished[slot]++;
}

static const filter_watcher watcher = {add_subscriber, remove_subscriber, vanished};

void own_routes_start(void) {
    if (can.cluster) index_watch_filters(&watcher);
}

static void make(index_t *index) {
    if (!can.cluster) return;
    index->routes = sv.Calloc(1, sizeof *index->routes);
    index->routes->counts = sv.CreateDict(NULL);
}

static void free_notes(own_routes *routes) {
    if (routes->notes == 0) return;
    server_dict_iter *iter = sv.DictIteratorStartC(routes->counts, "^", NULL, 0);
    size_t len;
    void *value;
    while (sv.DictNextC(iter, &len, &value) != NULL) sv.Free(noted_in((uintptr_t)value));
    sv.DictIteratorStop(iter);
}

static void release(index_t *index) {
    if (index->routes == NULL) return;
    free_notes(index->routes);
    sv.FreeDict(NULL, index->routes->counts);
    sv.Free(index->routes);
}

/* Reports each route of `a` that `b` lacks, or has with another number of subscriptions. */
static void compare(const own_routes *a, const own_routes *b, const char *what, index_differ differ, void *context) {
    server_dict_iter *iter = sv.DictIteratorStartC(a->counts, "^", NULL, 0);
    hmq_slice name;
    void *value;
    while ((name.data = sv.DictNextC(iter, &name.len, &value)) != NULL) {
        if (count_in((uintptr_t)value) != count_of(b, name)) differ(context, what, name);
    }
    sv.DictIteratorStop(iter);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    if (kept->routes == NULL) return;
    compare(kept->routes, rebuilt->routes, "route in the index but not in the keys, or different", differ, context);
    compare(rebuilt->routes, kept->routes, "route in the keys but not in the index, or different", differ, context);
}

const index_kind own_routes_kind = {.make = make, .release = release, .check = check};
