/* plan.c - the plan of a topic filter: the patterns that can match, and their fixed slots.
 *
 * The walk follows the filter down the trie of the set like topics do.  A concrete level follows the concrete edge or, only
 * if there is none, '+'; a '+' follows all edges; a '#' takes everything below.  The walk also takes the tail of each node
 * on its way, which has the topics without a further edge.  Recursion goes down one level at a time, at most
 * HMQ_PATTERNS_MAX_LEVELS.  A filter without wildcards is a topic, and has that topic's pattern. */
#include "history/plan.h"

#include <string.h>

#include "history/index.h"
#include "history/nodes.h"

typedef struct filter_levels {
    hmq_slice levels[HMQ_PATTERNS_MAX_LEVELS];
    size_t count;     /* of all levels before the '#', including those that are not indexed */
    bool hash;        /* ends in '#' */
    bool plus;        /* has a '+' */
    bool beyond_plus; /* has a '+' after the indexed levels */
    hmq_slice beyond; /* from the first level that is not indexed */
} filter_levels;

typedef struct walk {
    const hmq_patterns *set;
    const hmq_hash_seed *seed;
    hmq_plan_visit visit;
    void *context;
    filter_levels filter;
} walk;

static bool is(hmq_slice level, char wildcard) {
    return level.len == 1 && level.data[0] == (uint8_t)wildcard;
}

static void split_filter(filter_levels *f, uint32_t indexed, const char *filter, size_t len) {
    const uint8_t *at = (const uint8_t *)filter, *end = at + len;
    *f = (filter_levels){.count = 0};
    for (;; f->count++) {
        const uint8_t *slash = at < end ? memchr(at, '/', (size_t)(end - at)) : NULL;
        hmq_slice level = {at, (size_t)((slash ? slash : end) - at)};
        if ((f->hash = !slash && is(level, '#'))) return;
        f->plus = f->plus || is(level, '+');
        f->beyond_plus = f->beyond_plus || (f->count >= indexed && is(level, '+'));
        if (f->count < indexed) f->levels[f->count] = level;
        if (f->count == indexed) f->beyond = (hmq_slice){at, (size_t)(end - at)};
        if (!slash) break;
        at = slash + 1;
    }
    f->count++;
}

/* ---- one pattern ---- */

static void fix(const walk *w, hmq_plan_pattern *plan, const hmq_pattern *pattern, unsigned slot, hmq_slice level) {
    unsigned bits = pattern->bits[slot];
    plan->slots[plan->fixed++] =
        (hmq_plan_slot){.hash = hmq_index_hash(w->seed, level, bits), .slot = (uint8_t)slot, .bits = (uint8_t)bits};
}

/* The slots of a tail: the levels from `depth` on, then the token of those that are not indexed. */
static void fix_tail(const walk *w, hmq_plan_pattern *plan, const hmq_pattern *pattern, unsigned depth, unsigned slot) {
    const filter_levels *f = &w->filter;
    for (unsigned i = depth; i < w->set->levels && i < f->count; i++, slot++)
        if (!is(f->levels[i], '+')) fix(w, plan, pattern, slot, f->levels[i]);
    if (f->hash) return;
    if (f->count <= w->set->levels)
        fix(w, plan, pattern, slot, hmq_patterns_missing());
    else if (!f->beyond_plus)
        fix(w, plan, pattern, slot, f->beyond);
}

static bool take(const walk *w, uint32_t number) {
    if (number == HMQ_NONE) return true;
    const hmq_pattern_shape *shape = &w->set->shapes[number];
    const filter_levels *f = &w->filter;
    hmq_plan_pattern plan = {.pattern = number};
    unsigned slot = 0;
    for (unsigned i = 0; i < shape->depth; i++) {
        if (!(shape->plus_mask >> i & 1)) continue;
        if (i < f->count && !is(f->levels[i], '+')) fix(w, &plan, &shape->pattern, slot, f->levels[i]);
        slot++;
    }
    if (shape->tail) fix_tail(w, &plan, &shape->pattern, shape->depth, slot);
    return w->visit(w->context, &plan);
}

/* ---- down the trie ---- */

static bool each_below(const walk *w, uint32_t node, bool at_root);

/* Takes a node and all below it: the filter has only its '#' left. */
static bool each_in(const walk *w, uint32_t node) {
    const hmq_pattern_node *n = &w->set->nodes[node];
    return take(w, n->tail) && take(w, n->end) && each_below(w, node, false);
}

/* May a wildcard follow this edge?  Not to a '$' at the first level. */
static bool wildcard_takes(const walk *w, uint32_t child, bool at_root) {
    hmq_slice level = w->set->nodes[child].level;
    return !(at_root && level.len && level.data[0] == '$');
}

static bool each_below(const walk *w, uint32_t node, bool at_root) {
    const hmq_pattern_node *n = &w->set->nodes[node];
    const uint32_t *children = w->set->children + n->first_child;
    for (uint32_t i = 0; i < n->child_count; i++)
        if (wildcard_takes(w, children[i], at_root) && !each_in(w, children[i])) return false;
    return n->plus == HMQ_NONE || each_in(w, n->plus);
}

static bool descend(const walk *w, uint32_t node, unsigned depth);

static bool descend_all(const walk *w, uint32_t node, unsigned depth) {
    const hmq_pattern_node *n = &w->set->nodes[node];
    const uint32_t *children = w->set->children + n->first_child;
    for (uint32_t i = 0; i < n->child_count; i++)
        if (wildcard_takes(w, children[i], depth == 0) && !descend(w, children[i], depth + 1)) return false;
    return n->plus == HMQ_NONE || descend(w, n->plus, depth + 1);
}

static bool descend(const walk *w, uint32_t node, unsigned depth) {
    const hmq_pattern_node *n = &w->set->nodes[node];
    const filter_levels *f = &w->filter;
    if (depth == f->count) {
        if (f->hash) return take(w, n->tail) && take(w, n->end) && each_below(w, node, depth == 0);
        return take(w, n->end != HMQ_NONE ? n->end : n->tail); /* all its topics end here */
    }
    if (!take(w, n->tail)) return false;
    if (depth == w->set->levels) return true;
    if (is(f->levels[depth], '+')) return descend_all(w, node, depth);
    uint32_t child = hmq_pattern_next(w->set, node, depth, f->levels[depth]);
    return child == HMQ_NONE || descend(w, child, depth + 1);
}

bool hmq_plan_each(const hmq_patterns *set, const hmq_hash_seed *seed, const char *filter, size_t len,
                   hmq_plan_visit visit, void *context) {
    walk w = {.set = set, .seed = seed, .visit = visit, .context = context};
    split_filter(&w.filter, set->levels, filter, len);
    if (w.filter.hash || w.filter.plus) return descend(&w, 0, 0);
    hmq_topic_place place;
    hmq_patterns_find(set, filter, len, &place);
    return take(&w, place.pattern);
}

typedef struct collected {
    hmq_plan_pattern *out;
    size_t capacity, count;
} collected;

static bool collect(void *context, const hmq_plan_pattern *pattern) {
    collected *into = context;
    if (into->count < into->capacity) into->out[into->count] = *pattern;
    into->count++;
    return true;
}

size_t hmq_plan_collect(const hmq_patterns *set, const hmq_hash_seed *seed, const char *filter, size_t len,
                        hmq_plan_pattern *out, size_t capacity) {
    collected into = {.out = out, .capacity = capacity};
    (void)hmq_plan_each(set, seed, filter, len, collect, &into);
    return into.count;
}
