/* filters.c - finds topic filters that overlap, and the stores that keep topics of a filter. */
#include "history/filters.h"

#include <string.h>

#include "topic/topic.h"
#include "server/access.h"
#include "history/store.h"

/* The level that begins at *at; advances *at past the level and its '/', to len + 1 after the last one. */
static hmq_slice take_level(hmq_slice filter, size_t *at) {
    hmq_slice level = {filter.data + *at, 0};
    while (*at + level.len < filter.len && level.data[level.len] != '/') level.len++;
    *at += level.len + 1;
    return level;
}

static bool level_is(hmq_slice level, char wildcard) {
    return level.len == 1 && level.data[0] == (uint8_t)wildcard;
}

static bool levels_overlap(hmq_slice a, hmq_slice b, bool first) {
    bool a_wild = level_is(a, '+') || level_is(a, '#'), b_wild = level_is(b, '+') || level_is(b, '#');
    if (a_wild && b_wild) return true;
    hmq_slice concrete = a_wild ? b : a;
    if (a_wild || b_wild) return !(first && concrete.len > 0 && concrete.data[0] == '$');
    return hmq_slice_equal(a, b);
}

bool history_filters_overlap(hmq_slice a, hmq_slice b) {
    size_t at_a = 0, at_b = 0;
    while (at_a <= a.len && at_b <= b.len) {
        bool first = at_a == 0;
        hmq_slice level_a = take_level(a, &at_a), level_b = take_level(b, &at_b);
        if (!levels_overlap(level_a, level_b, first)) return false;
        if (level_is(level_a, '#') || level_is(level_b, '#')) return true;
    }
    if (at_a > a.len && at_b > b.len) return true;
    hmq_slice longer = at_a <= a.len ? a : b; /* "x/#" also matches "x" */
    size_t rest = at_a <= a.len ? at_a : at_b;
    return rest > 1 && longer.len - rest == 1 &&
           longer.data[rest] == '#'; /* with "/#" the rest would be an empty topic */
}

static bool store_overlaps(const history_store *store, hmq_slice filter) {
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    size_t len;
    const char *own;
    bool overlaps = false;
    while (!overlaps && (own = sv.DictNextC(iter, &len, NULL)) != NULL)
        overlaps = history_filters_overlap((hmq_slice){(const uint8_t *)own, len}, filter);
    sv.DictIteratorStop(iter);
    return overlaps;
}

size_t history_stores_of_filter(const history_stores *stores, hmq_slice filter, const history_store **first) {
    size_t count = 0;
    for (const history_store *s = NULL; (s = history_stores_next(stores, s)) != NULL;) {
        if (store_overlaps(s, filter) && count++ == 0) *first = s;
    }
    return count;
}

bool history_store_covers(const history_store *store, hmq_slice filter) {
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    size_t len;
    const char *own;
    bool covers = false;
    while (!covers && (own = sv.DictNextC(iter, &len, NULL)) != NULL)
        covers = hmq_topic_covers(own, len, (const char *)filter.data, filter.len);
    sv.DictIteratorStop(iter);
    return covers;
}

const history_store *history_stores_covering(const history_stores *stores, hmq_slice filter) {
    const history_store *s = NULL;
    while ((s = history_stores_next(stores, s)) != NULL && !history_store_covers(s, filter)) {}
    return s;
}

bool history_may_see(server_string *user, const history_store *store) {
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    const char *filter;
    size_t len;
    bool may = true;
    while (may && (filter = sv.DictNextC(iter, &len, NULL)) != NULL) {
        hmq_slice name = {(const uint8_t *)filter, len};
        may = access_user_may_use_topic(user, name, access_has_wildcard(name));
    }
    sv.DictIteratorStop(iter);
    return may;
}
