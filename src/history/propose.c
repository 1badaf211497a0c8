/* propose.c - builds the pattern set of a learner's trie for a threshold, and finds the best of several.
 *
 * The trie is not changed.  If levels become '+', the recursion continues with all their nodes together (a group), which is
 * equivalent to merging them.
 *
 *      emit({devices})  children 1, 2, 3 (more than the threshold)  ->  emit({1, 2, 3}) after "devices/+"
 *      emit({1, 2, 3})  children temperature (of 1, 2, 3), pressure (of 2)  ->  one group each
 *
 * Depth is bounded by the indexed levels; the size of all groups of a depth by the nodes. */
#include <stdio.h>
#include <string.h>

#include "base/sort.h"
#include "topic/topic.h"
#include "history/counts.h"
#include "history/index.h"

#define TAIL_PERMILLE 1 /* of all messages: fewer are not worth a separate '#' */
#define SAMPLED_TIMES 4 /* messages per value; above it a sample contains nearly all values */
#define FIRST_TEXT_BYTES 1024
/* A topic with these levels was published; a '+' with its two digits may be longer than the level it replaces. */
#define PATH_BYTES (HMQ_TOPIC_MAX_BYTES + 3 * HMQ_PATTERNS_MAX_LEVELS)

typedef enum outcome { MADE, TOO_MANY, NO_MEMORY } outcome;

typedef const hmq_count_node *node_ref;

typedef struct maker {
    const hmq_learner *learner;
    const hmq_allocator *allocator;
    uint32_t max_children;
    char *text;
    size_t len, capacity;
    uint32_t lines;
    char path[PATH_BYTES]; /* the levels of the current group, joined by '/' */
    size_t path_len;
} maker;

/* ---- text ---- */

static bool append(maker *m, const char *text, size_t len) {
    if (m->capacity - m->len < len) {
        size_t capacity = 2 * (m->capacity + len);
        char *larger = m->allocator->resize(m->text, capacity);
        if (!larger) return false;
        m->text = larger;
        m->capacity = capacity;
    }
    memcpy(m->text + m->len, text, len);
    m->len += len;
    return true;
}

/* Skips a line that would be too long: its topics have the pattern '#'. */
static outcome append_line(maker *m, const char *ending) {
    if (m->path_len + strlen(ending) > HMQ_TOPIC_MAX_BYTES) return MADE;
    if (m->lines == m->learner->options.max_patterns) return TOO_MANY;
    m->lines++;
    bool ok = append(m, m->path, m->path_len) && append(m, ending, strlen(ending)) && append(m, "\n", 1);
    return ok ? MADE : NO_MEMORY;
}

/* Adds a level to the path; returns its former length. */
static size_t push_level(maker *m, const char *level, size_t len, bool first) {
    size_t before = m->path_len;
    if (!first) m->path[m->path_len++] = '/';
    memcpy(m->path + m->path_len, level, len);
    m->path_len += len;
    return before;
}

/* ---- groups ---- */

static int compare_nodes(const void *a, const void *b) {
    node_ref x = *(const node_ref *)a, y = *(const node_ref *)b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    if (x->level_len != y->level_len) return x->level_len < y->level_len ? -1 : 1;
    return x->level_len ? memcmp(x->level, y->level, x->level_len) : 0;
}

/* The children of a group: concrete ones, equal levels side by side, then the '+'. */
typedef struct family {
    node_ref *nodes;
    size_t concrete; /* number of concrete nodes, which come first */
    size_t count;
    uint64_t messages;
} family;

static bool gather(const maker *m, const node_ref *group, size_t size, family *f) {
    *f = (family){.nodes = NULL};
    size_t most = 1;
    for (size_t i = 0; i < size; i++) most += group[i]->child_count + 1;
    f->nodes = m->allocator->alloc(most * sizeof(node_ref));
    if (!f->nodes) return false;
    for (size_t i = 0; i < size; i++)
        for (node_ref child = group[i]->children; child; child = child->next) f->nodes[f->concrete++] = child;
    hmq_sort(f->nodes, f->concrete, sizeof(node_ref), compare_nodes);
    f->count = f->concrete;
    for (size_t i = 0; i < size; i++)
        if (group[i]->plus) f->nodes[f->count++] = group[i]->plus;
    for (size_t i = 0; i < f->count; i++) f->messages += f->nodes[i]->messages;
    return true;
}

/* The number of nodes from `at` on with the same level. */
static size_t run_of(const family *f, size_t at, uint64_t *messages) {
    size_t end = at;
    for (*messages = 0; end < f->concrete && compare_nodes(&f->nodes[at], &f->nodes[end]) == 0; end++)
        *messages += f->nodes[end]->messages;
    return end - at;
}

static uint32_t different_levels(const family *f, uint32_t depth) {
    uint32_t count = 0;
    uint64_t messages;
    for (size_t at = 0; at < f->concrete; at += run_of(f, at, &messages))
        count += !hmq_count_is_dollar(depth, f->nodes[at]);
    return count;
}

/* Two bits more than numbering the values needs: four hashes per value. */
static unsigned bits_for(uint64_t different) {
    unsigned bits = 2;
    while (bits < HMQ_INDEX_MAX_BITS && different >> (bits - 2)) bits++;
    return bits < 4 ? 4 : bits;
}

/* The number of values to choose bits for, from the different values in a number of messages.  If a sample contains each
 * value several times, it has nearly all values; otherwise there are more, at most in proportion. */
static uint64_t all_values(const hmq_learner *learner, uint64_t different, uint64_t messages) {
    uint64_t observed = hmq_learner_messages(learner);
    if (different <= messages / SAMPLED_TIMES || observed == 0 || learner->sample_of <= observed) return different;
    return (uint64_t)((double)different * ((double)learner->sample_of / (double)observed));
}

/* ---- the recursion ---- */

static outcome emit(maker *m, const node_ref *group, size_t size, uint32_t depth);

static outcome emit_concrete(maker *m, const family *f, size_t at, size_t size, uint32_t depth) {
    node_ref first = f->nodes[at];
    size_t before = push_level(m, (const char *)first->level, first->level_len, depth == 0);
    outcome result = emit(m, f->nodes + at, size, depth + 1);
    m->path_len = before;
    return result;
}

/* Emits all nodes from `at` on as '+'. */
static outcome emit_plus(maker *m, const family *f, size_t at, uint64_t different, uint32_t depth) {
    hmq_sketch sketch = {{0}};
    for (size_t i = f->concrete; i < f->count; i++) hmq_sketch_merge(&sketch, hmq_count_sketch(f->nodes[i]));
    char level[16];
    different = all_values(m->learner, different + hmq_sketch_estimate(&sketch), f->messages);
    int len = snprintf(level, sizeof level, "+%u", bits_for(different));
    size_t before = push_level(m, level, (size_t)len, depth == 0);
    outcome result = emit(m, f->nodes + at, f->count - at, depth + 1);
    m->path_len = before;
    return result;
}

/* Does this level stay concrete although others vary? */
static bool stays_concrete(const maker *m, const family *f, size_t at, uint64_t messages, uint32_t depth) {
    bool hot = m->max_children > 0 && messages * 100 >= f->messages * m->learner->options.hot_percent;
    return hot || hmq_count_is_dollar(depth, f->nodes[at]);
}

/* Emits levels that stay concrete immediately; the varying ones move to the end of the concrete nodes. */
static outcome emit_varying(maker *m, family *f, uint32_t depth) {
    size_t rest = f->concrete; /* from here on levels vary */
    uint64_t different = 0, messages;
    for (size_t end = f->concrete; end > 0;) {
        size_t at = end - 1;
        while (at > 0 && compare_nodes(&f->nodes[at - 1], &f->nodes[at]) == 0) at--;
        size_t size = run_of(f, at, &messages);
        if (stays_concrete(m, f, at, messages, depth)) {
            outcome result = emit_concrete(m, f, at, size, depth);
            if (result != MADE) return result;
        } else {
            rest -= size;
            memmove(f->nodes + rest, f->nodes + at, size * sizeof(node_ref));
            different++;
        }
        end = at;
    }
    return rest < f->count ? emit_plus(m, f, rest, different, depth) : MADE;
}

static outcome emit_all(maker *m, const family *f, uint32_t depth) {
    outcome result = MADE;
    uint64_t messages;
    for (size_t at = 0, size; at < f->concrete && result == MADE; at += size) {
        size = run_of(f, at, &messages);
        result = emit_concrete(m, f, at, size, depth);
    }
    return result;
}

static outcome emit_children(maker *m, const node_ref *group, size_t size, uint32_t depth) {
    family f;
    if (!gather(m, group, size, &f)) return NO_MEMORY;
    bool varies = f.count > f.concrete || different_levels(&f, depth) > m->max_children;
    outcome result = varies ? emit_varying(m, &f, depth) : emit_all(m, &f, depth);
    m->allocator->release(f.nodes);
    return result;
}

/* Emits the patterns of a group of nodes; the path has its levels. */
static outcome emit(maker *m, const node_ref *group, size_t size, uint32_t depth) {
    uint64_t ends = 0, beyond = 0;
    for (size_t i = 0; i < size; i++) {
        ends += group[i]->ends;
        beyond += group[i]->beyond;
    }
    bool tail = depth == 0 || (beyond && beyond * 1000 >= m->learner->root->messages * TAIL_PERMILLE);
    outcome result = ends ? append_line(m, "") : MADE;
    if (result == MADE && tail) result = append_line(m, depth ? "/#" : "#");
    return result == MADE ? emit_children(m, group, size, depth) : result;
}

static outcome write_set(maker *m) {
    char head[48];
    int len = snprintf(head, sizeof head, "holdmq-patterns 1 levels=%u\n", (unsigned)m->learner->options.levels);
    if (!append(m, head, (size_t)len)) return NO_MEMORY;
    node_ref root = m->learner->root;
    return emit(m, &root, 1, 0);
}

bool hmq_learner_patterns(const hmq_learner *learner, uint32_t max_children, hmq_patterns **set) {
    const hmq_allocator *allocator = learner->memory.allocator;
    *set = NULL;
    maker *m = allocator->alloc(sizeof *m); /* too large for a stack */
    if (!m) return false;
    m->learner = learner;
    m->allocator = allocator;
    m->max_children = max_children < learner->max_children ? max_children : learner->max_children;
    m->len = m->path_len = 0;
    m->lines = 0;
    m->capacity = FIRST_TEXT_BYTES;
    m->text = allocator->alloc(m->capacity);
    outcome result = m->text ? write_set(m) : NO_MEMORY;
    if (result == MADE) *set = hmq_patterns_parse(allocator, m->text, m->len, NULL, 0);
    if (m->text) allocator->release(m->text);
    allocator->release(m);
    return result == TOO_MANY || *set;
}

/* ---- the best one ---- */

typedef struct search {
    const hmq_learner *learner;
    const hmq_filter_use *filters;
    size_t count;
    hmq_patterns *best;
    hmq_patterns_cost cost;
} search;

/* Keeps the set of a threshold if it is cheaper than the best so far. */
static bool consider(search *s, uint32_t max_children) {
    hmq_patterns *set;
    hmq_patterns_cost cost;
    if (!hmq_learner_patterns(s->learner, max_children, &set)) return false;
    if (!set) return true;
    bool ok = hmq_learner_cost(s->learner, set, s->filters, s->count, &cost);
    bool better = ok && (!s->best || cost.cost < s->cost.cost);
    hmq_patterns_free(better ? s->best : set);
    if (better) {
        s->best = set;
        s->cost = cost;
    }
    return ok;
}

static bool same_text(const hmq_patterns *a, const hmq_patterns *b) {
    hmq_slice x = hmq_patterns_text(a), y = hmq_patterns_text(b);
    return hmq_slice_equal(x, y);
}

hmq_proposal hmq_learner_propose(const hmq_learner *learner, const hmq_patterns *present, const hmq_filter_use *filters,
                                 size_t count, uint32_t margin_percent, hmq_patterns **set, hmq_patterns_cost *costs) {
    search s = {.learner = learner, .filters = filters, .count = count};
    *set = NULL;
    if (learner->sample_count == 0) return HMQ_PROPOSAL_NOTHING_OBSERVED;
    bool ok = hmq_learner_cost(learner, present, filters, count, &costs[0]);
    uint32_t threshold = learner->options.max_children;
    for (; ok && threshold > 0; threshold /= 4) ok = consider(&s, threshold);
    ok = ok && consider(&s, 0);
    if (!ok) {
        hmq_patterns_free(s.best);
        return HMQ_PROPOSAL_NO_MEMORY;
    }
    costs[1] = s.best ? s.cost : costs[0];
    bool worth = s.best && !same_text(s.best, present) && s.cost.cost * 100 <= costs[0].cost * (100 - margin_percent);
    if (worth)
        *set = s.best;
    else
        hmq_patterns_free(s.best);
    return worth ? HMQ_PROPOSAL_NEW : HMQ_PROPOSAL_KEEP;
}
