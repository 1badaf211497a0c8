/* learner.c - counts topics in a trie and merges levels that vary; history/learner.h draws it.
 *
 * A topic is counted level by level (step).  When a list becomes too long, the node '+' absorbs its nodes one after the
 * other: it adds their counts, and moves or absorbs their children.  Only the '+' itself needs memory; without it the list
 * stays, and the next child tries again.
 *
 * There is room for all levels of a topic before it is counted, so making room never frees a node on its path. */
#include "history/learner.h"

#include <string.h>

#include "history/counts.h"

#define MAX_DOLLARS 16U /* children of the root that begin with '$' */

static const hmq_hash_seed no_seed = {0, 0}; /* collisions cost accuracy, nothing else */

/* ---- nodes ---- */

static size_t node_bytes(size_t level_len) {
    size_t size = offsetof(hmq_count_node, level) + level_len;
    return size < sizeof(hmq_count_node) ? sizeof(hmq_count_node) : size;
}

static hmq_count_node *node_new(hmq_learner *l, hmq_slice level, uint64_t hash) {
    hmq_count_node *n = hmq_memory_take(&l->memory, node_bytes(level.len));
    if (!n) return NULL;
    *n = (hmq_count_node){.hash = hash, .level_len = (uint16_t)level.len};
    if (level.len) memcpy(n->level, level.data, level.len);
    l->node_count++;
    return n;
}

static hmq_count_node *plus_new(hmq_learner *l) {
    static const uint8_t empty[sizeof(hmq_sketch)] = {0};
    return node_new(l, (hmq_slice){empty, sizeof empty}, 0);
}

static void node_free(hmq_learner *l, hmq_count_node *n) {
    hmq_memory_give(&l->memory, n, node_bytes(n->level_len));
    l->node_count--;
}

static void free_subtree(hmq_learner *l, hmq_count_node *n) {
    if (n->plus) free_subtree(l, n->plus);
    for (hmq_count_node *child = n->children, *next; child; child = next) {
        next = child->next;
        free_subtree(l, child);
    }
    node_free(l, n);
}

/* Finds the child with this level, and moves it to the front of the list: topics come in runs, and some are frequent. */
static hmq_count_node *find_child(hmq_count_node *parent, uint64_t hash, hmq_slice level) {
    for (hmq_count_node **link = &parent->children; *link; link = &(*link)->next) {
        hmq_count_node *n = *link;
        if (n->hash != hash || n->level_len != level.len || (level.len && memcmp(n->level, level.data, level.len) != 0))
            continue;
        *link = n->next;
        n->next = parent->children;
        parent->children = n;
        return n;
    }
    return NULL;
}

static void push_child(hmq_count_node *parent, hmq_count_node *child) {
    child->next = parent->children;
    parent->children = child;
    parent->child_count++;
}

/* ---- merging ---- */

static void merge_children(hmq_learner *l, hmq_count_node *n, uint32_t depth);

static void absorb(hmq_learner *l, hmq_count_node *into, hmq_count_node *from, uint32_t depth);

static void absorb_child(hmq_learner *l, hmq_count_node *into, hmq_count_node *child, uint32_t depth) {
    hmq_count_node *same = find_child(into, child->hash, (hmq_slice){child->level, child->level_len});
    if (same) {
        absorb(l, same, child, depth + 1);
    } else if (into->plus) {
        hmq_sketch_add(hmq_count_sketch(into->plus), child->hash);
        absorb(l, into->plus, child, depth + 1);
    } else {
        push_child(into, child);
    }
}

/* Frees `from`.  `depth` levels lead to `into`. */
static void absorb(hmq_learner *l, hmq_count_node *into, hmq_count_node *from, uint32_t depth) {
    into->messages += from->messages;
    into->ends += from->ends;
    into->beyond += from->beyond;
    for (hmq_count_node *child = from->children, *next; child; child = next) {
        next = child->next;
        absorb_child(l, into, child, depth);
    }
    if (from->plus && into->plus) {
        hmq_sketch_merge(hmq_count_sketch(into->plus), hmq_count_sketch(from->plus));
        absorb(l, into->plus, from->plus, depth + 1);
    } else if (from->plus) {
        into->plus = from->plus;
    }
    node_free(l, from);
    if (into->child_count > l->max_children) merge_children(l, into, depth);
}

/* Merges all children into '+', except those that no wildcard may match. */
static void merge_children(hmq_learner *l, hmq_count_node *n, uint32_t depth) {
    if (!n->plus && !(n->plus = plus_new(l))) return;
    hmq_count_node *child = n->children;
    n->children = NULL;
    n->child_count = 0;
    for (hmq_count_node *next; child; child = next) {
        next = child->next;
        if (hmq_count_is_dollar(depth, child)) {
            push_child(n, child);
            continue;
        }
        hmq_sketch_add(hmq_count_sketch(n->plus), child->hash);
        absorb(l, n->plus, child, depth + 1);
    }
}

static uint32_t dollars_of(const hmq_count_node *root) {
    uint32_t count = 0;
    for (const hmq_count_node *child = root->children; child; child = child->next)
        count += hmq_count_is_dollar(0, child);
    return count;
}

static bool has_too_many(const hmq_learner *l, const hmq_count_node *n, uint32_t depth) {
    return n->child_count > l->max_children && n->child_count - (depth ? 0 : dollars_of(n)) > l->max_children;
}

static void merge_everywhere(hmq_learner *l, hmq_count_node *n, uint32_t depth) {
    if (has_too_many(l, n, depth)) merge_children(l, n, depth);
    for (hmq_count_node *child = n->children; child; child = child->next) merge_everywhere(l, child, depth + 1);
    if (n->plus) merge_everywhere(l, n->plus, depth + 1);
}

/* Makes room for a topic of any depth, with a '+' beside each level. */
static void make_room(hmq_learner *l) {
    if (l->node_count + 2 * HMQ_PATTERNS_MAX_LEVELS <= l->options.max_nodes) return;
    while (l->node_count > l->options.max_nodes / 2 && l->max_children > 0) {
        l->max_children /= 2;
        merge_everywhere(l, l->root, 0);
    }
}

/* ---- counting ---- */

/* Can it be a concrete level of a pattern?  The text of a pattern has no control characters. */
static bool can_be_concrete(hmq_slice level) {
    for (size_t i = 0; i < level.len; i++)
        if (level.data[i] < 0x20 || level.data[i] == 0x7F) return false;
    return true;
}

/* The node that a level leads to; NULL if it is not followed.  Sets *ok to false if memory was lacking. */
static hmq_count_node *step(hmq_learner *l, hmq_count_node *n, uint32_t depth, hmq_slice level, bool *ok) {
    uint64_t hash = hmq_hash_text(&no_seed, (const char *)level.data, level.len);
    hmq_count_node *child = find_child(n, hash, level);
    if (child) return child;
    bool dollar = depth == 0 && level.len && level.data[0] == '$';
    if (n->plus && !dollar) {
        hmq_sketch_add(hmq_count_sketch(n->plus), hash);
        return n->plus;
    }
    if (!can_be_concrete(level) || (dollar && dollars_of(n) == MAX_DOLLARS)) return NULL;
    child = l->node_count < l->options.max_nodes ? node_new(l, level, hash) : NULL;
    if (!(*ok = child != NULL)) return NULL;
    push_child(n, child);
    if (dollar || !has_too_many(l, n, depth)) return child;
    merge_children(l, n, depth);
    return n->plus ? n->plus : child;
}

static bool count_topic(hmq_learner *l, const char *name, size_t len, uint64_t messages) {
    const uint8_t *at = (const uint8_t *)name, *end = at + len;
    hmq_count_node *n = l->root;
    bool ok = true;
    n->messages += messages;
    for (uint32_t depth = 0;; depth++) {
        const uint8_t *slash = at < end ? memchr(at, '/', (size_t)(end - at)) : NULL;
        hmq_slice level = {at, (size_t)((slash ? slash : end) - at)};
        hmq_count_node *next = depth < l->options.levels ? step(l, n, depth, level, &ok) : NULL;
        if (!next) {
            n->beyond += messages;
            return ok;
        }
        n = next;
        n->messages += messages;
        if (!slash) break;
        at = slash + 1;
    }
    n->ends += messages;
    return true;
}

/* ---- the sample ---- */

static size_t sampled_bytes(size_t len) {
    size_t size = offsetof(hmq_sampled, name) + len;
    return size < sizeof(hmq_sampled) ? sizeof(hmq_sampled) : size;
}

static void drop_last_sampled(hmq_learner *l) {
    hmq_sampled *last = l->sample[--l->sample_count];
    hmq_memory_give(&l->memory, last, sampled_bytes(last->len));
}

/* Keeps the topics with the smallest hashes.  A dropped topic never returns, so a topic of the sample has been counted since
 * its first message. */
static bool sample_topic(hmq_learner *l, const char *name, size_t len, uint64_t messages) {
    uint64_t hash = hmq_hash_text(&no_seed, name, len);
    uint32_t low = 0, high = l->sample_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (l->sample[middle]->hash < hash)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < l->sample_count && l->sample[low]->hash == hash) {
        l->sample[low]->messages += messages;
        return true;
    }
    if (low == l->options.sample) return true;
    hmq_sampled *made = hmq_memory_take(&l->memory, sampled_bytes(len));
    if (!made) return false;
    *made = (hmq_sampled){.hash = hash, .messages = messages, .len = (uint16_t)len};
    if (len) memcpy(made->name, name, len);
    if (l->sample_count == l->options.sample) drop_last_sampled(l);
    memmove(&l->sample[low + 1], &l->sample[low], (l->sample_count - low) * sizeof(hmq_sampled *));
    l->sample[low] = made;
    l->sample_count++;
    return true;
}

/* ---- the learner ---- */

hmq_learner_options hmq_learner_defaults(void) {
    return (hmq_learner_options){
        .levels = 8, .max_children = 100, .max_nodes = 100000, .max_patterns = 256, .sample = 1024, .hot_percent = 20};
}

static bool within(uint32_t number, uint32_t from, uint32_t to) {
    return number >= from && number <= to;
}

bool hmq_learner_options_are_valid(const hmq_learner_options *o) {
    return within(o->levels, 1, HMQ_PATTERNS_MAX_LEVELS) && within(o->max_children, 1, 10000) &&
           within(o->max_nodes, 1000, 10000000) && within(o->max_patterns, 1, HMQ_PATTERNS_MAX) &&
           within(o->sample, 1, 100000) && within(o->hot_percent, 1, 101);
}

static size_t learner_bytes(const hmq_learner_options *options) {
    return sizeof(hmq_learner) + options->sample * sizeof(hmq_sampled *);
}

hmq_learner *hmq_learner_new(const hmq_allocator *allocator, const hmq_learner_options *options) {
    if (!hmq_learner_options_are_valid(options)) return NULL;
    hmq_memory memory = {.allocator = allocator};
    hmq_learner *l = hmq_memory_take(&memory, learner_bytes(options));
    if (!l) return NULL;
    *l = (hmq_learner){.memory = memory, .options = *options, .max_children = options->max_children};
    l->root = node_new(l, (hmq_slice){NULL, 0}, 0);
    if (l->root) return l;
    allocator->release(l);
    return NULL;
}

void hmq_learner_free(hmq_learner *l) {
    if (!l) return;
    while (l->sample_count) drop_last_sampled(l);
    free_subtree(l, l->root);
    l->memory.allocator->release(l);
}

bool hmq_learner_observe(hmq_learner *l, const char *name, size_t len, uint64_t messages) {
    make_room(l);
    bool sampled = sample_topic(l, name, len, messages);
    return count_topic(l, name, len, messages) && sampled;
}

void hmq_learner_is_sample_of(hmq_learner *l, uint64_t messages) {
    l->sample_of = messages;
}

uint64_t hmq_learner_messages(const hmq_learner *l) {
    return l->root->messages;
}

uint32_t hmq_learner_nodes(const hmq_learner *l) {
    return l->node_count;
}

size_t hmq_learner_bytes(const hmq_learner *l) {
    return l->memory.bytes;
}
