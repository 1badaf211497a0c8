/* trie.c - the subscription trie that topic/trie.h describes.
 *
 *      node  "devices"
 *        children  ── concrete levels: a chain while they are few, buckets (base/buckets.h) when they are many
 *        plus      ── the child "+", NULL if there is none
 *        hash      ── the pairs of ".../#" below this node, NULL if there are none (nothing can follow a '#', so
 *                     it needs no node of its own)
 *        pairs     ── the pairs of the filter that ends here
 *
 * A match visits at most three things per node: `hash`, `plus`, and the one concrete child, found by the hash of the
 * level.  The hash of a level is computed once per match, and only if it is needed.
 *
 * Setting a new filter: 1. Descend as far as nodes exist.  2. Build the missing nodes separately, with the pair; if memory
 * runs out, free them: the trie is unchanged.  3. Attach them, which needs no memory.  4. Turn a long chain into buckets,
 * or add a bucket: optional, without memory the chain is longer.
 *
 * Recursion goes down one level at a time, and no valid filter has more than HMQ_TOPIC_MAX_LEVELS.
 * Not O(levels): free, walk, match_filter, and the visits themselves. */
#include "topic/trie.h"

#include <string.h>

#include "base/assert.h"
#include "base/buckets.h"
#include "base/hash.h"
#include "topic/pairs.h"
#include "topic/topic.h"

#define CHAIN_MAX 8U      /* children in a chain; above, buckets */
#define BACK_TO_CHAIN 4U  /* well below CHAIN_MAX, so that a node does not alternate */

typedef struct node {
    void *next; /* node: the next in the same chain */
    union {
        void *chain;          /* node */
        hmq_buckets *buckets; /* each holds a chain of children */
    } children;
    struct node *plus;
    hmq_pairs *hash;
    hmq_pairs pairs;
    uint32_t level_hash;
    uint32_t child_count : 31; /* concrete ones */
    uint32_t bucketed : 1;
    uint16_t level_len;
    char level[];
} node;

struct hmq_trie {
    hmq_memory memory;
    hmq_hash_seed seed;
    size_t pair_count;
    size_t node_count;
    node *root;     /* NULL: it is being freed in steps */
    node *leftover; /* then: a list of nodes that are to be freed, each with all that is still below it */
};

/* ---- levels ---- */

typedef struct level {
    const char *text;
    uint16_t len;
    uint32_t hash; /* if its index is below levels.hashed */
} level;

typedef struct levels {
    const hmq_hash_seed *seed;
    size_t count;
    size_t hashed;
    level at[HMQ_TOPIC_MAX_LEVELS];
} levels;

/* False if there are more levels than a valid topic has, or one is too long. */
static bool split(levels *out, const hmq_hash_seed *seed, const char *text, size_t len) {
    out->seed = seed;
    out->hashed = 0;
    out->count = 0;
    if (len > HMQ_TOPIC_MAX_BYTES) return false;
    const char *end = text + len;
    for (const char *begin = text;;) {
        const char *slash = begin;
        while (slash < end && *slash != '/') slash++;
        if (out->count == HMQ_TOPIC_MAX_LEVELS) return false;
        out->at[out->count++] = (level){.text = begin, .len = (uint16_t)(slash - begin)};
        if (slash == end) return true;
        begin = slash + 1;
    }
}

static uint32_t hash_of(levels *l, size_t depth) {
    for (; l->hashed <= depth; l->hashed++) {
        level *next = &l->at[l->hashed];
        next->hash = (uint32_t)hmq_hash_text(l->seed, next->text, next->len);
    }
    return l->at[depth].hash;
}

static bool is_plus(const level *l) {
    return l->len == 1 && l->text[0] == '+';
}

static bool is_hash(const level *l) {
    return l->len == 1 && l->text[0] == '#';
}

/* ---- nodes ---- */

/* The level begins in the padding of the structure.  A whole node is written at once, so it is never smaller than that. */
static size_t node_bytes(size_t level_len) {
    size_t size = offsetof(node, level) + level_len;
    return size < sizeof(node) ? sizeof(node) : size;
}

static node *node_new(hmq_trie *trie, const level *l, uint32_t level_hash) {
    node *n = hmq_memory_take(&trie->memory, node_bytes(l->len));
    if (!n) return NULL;
    *n = (node){.level_hash = level_hash, .level_len = l->len};
    if (l->len) memcpy(n->level, l->text, l->len);
    trie->node_count++;
    return n;
}

static void node_free(hmq_trie *trie, node *n) {
    hmq_pairs_clear(&trie->memory, &n->pairs);
    if (n->bucketed) hmq_buckets_free(&trie->memory, n->children.buckets);
    hmq_memory_give(&trie->memory, n, node_bytes(n->level_len));
    trie->node_count--;
}

static bool node_is_empty(const node *n) {
    return !n->pairs.count && !n->child_count && !n->plus && !n->hash;
}

static bool hash_new(hmq_trie *trie, node *n) {
    n->hash = hmq_memory_take(&trie->memory, sizeof *n->hash);
    if (!n->hash) return false;
    *n->hash = (hmq_pairs){.count = 0};
    trie->node_count++;
    return true;
}

static void hash_free(hmq_trie *trie, node *n) {
    if (!n->hash) return;
    hmq_pairs_clear(&trie->memory, n->hash);
    hmq_memory_give(&trie->memory, n->hash, sizeof *n->hash);
    n->hash = NULL;
    trie->node_count--;
}

/* ---- concrete children ---- */

/* The chain for a child with this hash. */
static void **chain_of(node *parent, uint32_t hash) {
    if (!parent->bucketed) return &parent->children.chain;
    return hmq_buckets_at(parent->children.buckets, hmq_buckets_index(parent->children.buckets, hash));
}

static node *chain_find(node *n, const level *l, uint32_t hash) {
    while (n && !(n->level_hash == hash && n->level_len == l->len && memcmp(n->level, l->text, l->len) == 0))
        n = n->next;
    return n;
}

static node *find_child(node *parent, levels *l, size_t depth) {
    if (parent->child_count == 0) return NULL;
    uint32_t hash = hash_of(l, depth);
    return chain_find(*chain_of(parent, hash), &l->at[depth], hash);
}

static void push(void **chain, node *n) {
    n->next = *chain;
    *chain = n;
}

/* Moves every node of a chain to its current chain. */
static void distribute(node *parent, node *n) {
    while (n) {
        node *next = n->next;
        push(chain_of(parent, n->level_hash), n);
        n = next;
    }
}

static void chain_to_buckets(hmq_trie *trie, node *parent) {
    hmq_buckets *buckets = hmq_buckets_new(&trie->memory);
    if (!buckets) return;
    node *chain = parent->children.chain;
    parent->children.buckets = buckets;
    parent->bucketed = 1;
    distribute(parent, chain);
}

static void buckets_to_chain(hmq_trie *trie, node *parent) {
    hmq_buckets *buckets = parent->children.buckets;
    parent->children.chain = NULL;
    parent->bucketed = 0;
    for (uint32_t i = 0; i < buckets->count; i++) distribute(parent, *hmq_buckets_at(buckets, i));
    hmq_buckets_free(&trie->memory, buckets);
}

static void redistribute(node *parent, uint32_t index) {
    void **bucket = hmq_buckets_at(parent->children.buckets, index);
    node *chain = *bucket;
    *bucket = NULL;
    distribute(parent, chain);
}

/* Steps 3 and 4 of setting. */
static void add_child(hmq_trie *trie, node *parent, node *child) {
    push(chain_of(parent, child->level_hash), child);
    parent->child_count++;
    if (!parent->bucketed) {
        if (parent->child_count > CHAIN_MAX) chain_to_buckets(trie, parent);
    } else if (parent->child_count > parent->children.buckets->count) {
        uint32_t index = parent->children.buckets->count;
        if (hmq_buckets_grow(&trie->memory, &parent->children.buckets)) redistribute(parent, hmq_buckets_buddy(index));
    }
}

static void remove_child(hmq_trie *trie, node *parent, node *child) {
    void **link = chain_of(parent, child->level_hash);
    while (*link != child) link = &((node *)*link)->next;
    *link = child->next;
    parent->child_count--;
    if (!parent->bucketed) return;
    hmq_buckets *buckets = parent->children.buckets;
    if (parent->child_count <= BACK_TO_CHAIN) {
        buckets_to_chain(trie, parent);
    } else if (buckets->count > HMQ_BUCKETS_MIN && parent->child_count < buckets->count / 2) {
        node *chain = *hmq_buckets_at(buckets, buckets->count - 1);
        hmq_buckets_shrink(&trie->memory, &parent->children.buckets);
        distribute(parent, chain);
    }
}

/* Visits the concrete children, in no particular order, while the callback returns true. */
typedef bool (*visit_child)(void *context, node *child, size_t depth);

static bool each_in_chain(node *n, visit_child visit, void *context, size_t depth) {
    for (; n; n = n->next)
        if (!visit(context, n, depth)) return false;
    return true;
}

static bool each_child(node *parent, visit_child visit, void *context, size_t depth) {
    if (!parent->bucketed) return each_in_chain(parent->children.chain, visit, context, depth);
    const hmq_buckets *buckets = parent->children.buckets;
    for (uint32_t i = 0; i < buckets->count; i++)
        if (!each_in_chain(*hmq_buckets_at(buckets, i), visit, context, depth)) return false;
    return true;
}

/* ---- subtrees ---- */

static void free_subtree(hmq_trie *trie, node *n);

static void free_chain(hmq_trie *trie, node *n) {
    while (n) {
        node *next = n->next;
        free_subtree(trie, n);
        n = next;
    }
}

static void free_subtree(hmq_trie *trie, node *n) {
    if (n->plus) free_subtree(trie, n->plus);
    hash_free(trie, n);
    if (!n->bucketed)
        free_chain(trie, n->children.chain);
    else
        for (uint32_t i = 0; i < n->children.buckets->count; i++)
            free_chain(trie, *hmq_buckets_at(n->children.buckets, i));
    node_free(trie, n);
}

hmq_trie *hmq_trie_new(const hmq_allocator *allocator) {
    hmq_memory memory = {.allocator = allocator};
    hmq_trie *trie = hmq_memory_take(&memory, sizeof *trie);
    if (!trie) return NULL;
    *trie = (hmq_trie){.memory = memory};
    trie->root = node_new(trie, &(level){.text = "", .len = 0}, 0);
    if (trie->root) return trie;
    allocator->release(trie);
    return NULL;
}

void hmq_trie_free(hmq_trie *trie) {
    if (!trie) return;
    if (trie->root) {
        free_subtree(trie, trie->root);
        trie->memory.allocator->release(trie);
    } else {
        while (!hmq_trie_free_some(trie, SIZE_MAX)) continue;
    }
}

/* ---- freeing in steps ---- */

/* The level's hash is no longer needed: it counts the buckets whose children were taken. */
static void leave(hmq_trie *trie, node *n) {
    n->level_hash = 0;
    n->next = trie->leftover;
    trie->leftover = n;
}

static void leave_chain(hmq_trie *trie, node *n) {
    while (n) {
        node *next = n->next;
        leave(trie, n);
        n = next;
    }
}

/* Takes the first node of the list apart; one with buckets, one bucket at a time.  Returns what that cost, in nodes. */
static size_t free_first(hmq_trie *trie) {
    node *n = trie->leftover;
    if (n->bucketed && n->level_hash < n->children.buckets->count) {
        void **bucket = hmq_buckets_at(n->children.buckets, n->level_hash++);
        node *chain = *bucket;
        *bucket = NULL;
        leave_chain(trie, chain); /* before it: it is looked at again when these are gone */
        return 1;
    }
    size_t cost = 1 + n->pairs.count / 16U + (n->hash ? n->hash->count / 16U : 0U);
    node *chain = n->bucketed ? NULL : n->children.chain, *plus = n->plus;
    trie->leftover = n->next;
    hash_free(trie, n);
    node_free(trie, n);
    leave_chain(trie, chain);
    if (plus) leave(trie, plus);
    return cost;
}

bool hmq_trie_free_some(hmq_trie *trie, size_t work) {
    if (trie->root) {
        leave(trie, trie->root);
        trie->root = NULL;
    }
    for (size_t done = 0; trie->leftover && done < work;) done += free_first(trie);
    if (trie->leftover) return false;
    hmq_assert(trie->node_count == 0);
    trie->memory.allocator->release(trie);
    return true;
}

bool hmq_trie_seed(hmq_trie *trie, uint64_t low, uint64_t high) {
    if (!node_is_empty(trie->root)) return false;
    trie->seed = (hmq_hash_seed){low, high};
    return true;
}

/* ---- set and remove ---- */

static bool split_filter(const hmq_trie *trie, levels *l, const char *filter, size_t len) {
    hmq_slice group, inner;
    return hmq_topic_check_filter(filter, len) == HMQ_TOPIC_OK && !hmq_topic_split_share(filter, len, &group, &inner) &&
           split(l, &trie->seed, filter, len);
}

/* Follows the filter as far as there are nodes.  path[0] is the root, path[d] the node after d levels; returns the depth
 * reached.  A final '#' is not a node: the depth of its parent is the maximum. */
static size_t descend(const hmq_trie *trie, levels *l, node *path[HMQ_TOPIC_MAX_LEVELS + 1]) {
    node *n = path[0] = trie->root;
    size_t depth = 0;
    while (depth < l->count && !is_hash(&l->at[depth])) {
        n = is_plus(&l->at[depth]) ? n->plus : find_child(n, l, depth);
        if (!n) break;
        path[++depth] = n;
    }
    return depth;
}

/* The number of levels of the filter that are nodes. */
static size_t node_levels(const levels *l) {
    return l->count - is_hash(&l->at[l->count - 1]);
}

static void attach(hmq_trie *trie, node *parent, node *child, const level *l) {
    if (is_plus(l))
        parent->plus = child;
    else
        add_child(trie, parent, child);
}

/* Sets the pair at the node of the last level, or in its '#'.  A '#' that was created for it is never left empty: the first
 * pair needs no memory. */
static hmq_trie_result set_here(hmq_trie *trie, node *n, bool in_hash, uint64_t subscriber, uint32_t options) {
    if (in_hash && !n->hash && !hash_new(trie, n)) return HMQ_TRIE_NO_MEMORY;
    return hmq_pairs_set(&trie->memory, in_hash ? n->hash : &n->pairs, subscriber, options);
}

/* Step 2: builds the nodes after `depth` levels (at least one is missing), with the pair in the last one.  NULL when out of
 * memory: everything that was built has been freed. */
static node *build_rest(hmq_trie *trie, levels *l, size_t depth, uint64_t subscriber, uint32_t options) {
    node *first = NULL, *last = NULL;
    do {
        node *n = node_new(trie, &l->at[depth], is_plus(&l->at[depth]) ? 0 : hash_of(l, depth));
        if (!n) break;
        if (last)
            attach(trie, last, n, &l->at[depth]);
        else
            first = n;
        last = n;
    } while (++depth < node_levels(l));
    bool complete = last && depth == node_levels(l);
    if (complete && set_here(trie, last, depth < l->count, subscriber, options) == HMQ_TRIE_ADDED) return first;
    if (first) free_subtree(trie, first);
    return NULL;
}

hmq_trie_result hmq_trie_set(hmq_trie *trie, const char *filter, size_t len, uint64_t subscriber, uint32_t options) {
    levels l;
    if (!split_filter(trie, &l, filter, len)) return HMQ_TRIE_BAD_FILTER;
    node *path[HMQ_TOPIC_MAX_LEVELS + 1];
    size_t depth = descend(trie, &l, path);
    hmq_trie_result result = HMQ_TRIE_ADDED;
    if (depth == node_levels(&l)) {
        result = set_here(trie, path[depth], depth < l.count, subscriber, options);
    } else {
        node *rest = build_rest(trie, &l, depth, subscriber, options);
        if (!rest) return HMQ_TRIE_NO_MEMORY;
        attach(trie, path[depth], rest, &l.at[depth]);
    }
    trie->pair_count += result == HMQ_TRIE_ADDED;
    return result;
}

/* Invariant 1: removes nodes that have become empty, from the end of the path upwards. */
static void prune(hmq_trie *trie, const levels *l, node **path, size_t depth) {
    for (; depth > 0 && node_is_empty(path[depth]); depth--) {
        if (is_plus(&l->at[depth - 1]))
            path[depth - 1]->plus = NULL;
        else
            remove_child(trie, path[depth - 1], path[depth]);
        node_free(trie, path[depth]);
    }
}

hmq_trie_result hmq_trie_remove(hmq_trie *trie, const char *filter, size_t len, uint64_t subscriber) {
    levels l;
    if (!split_filter(trie, &l, filter, len)) return HMQ_TRIE_BAD_FILTER;
    node *path[HMQ_TOPIC_MAX_LEVELS + 1];
    size_t depth = descend(trie, &l, path);
    if (depth < node_levels(&l)) return HMQ_TRIE_UNCHANGED;
    node *n = path[depth];
    bool in_hash = depth < l.count;
    hmq_pairs *pairs = in_hash ? n->hash : &n->pairs;
    if (!pairs || hmq_pairs_remove(&trie->memory, pairs, subscriber) != HMQ_TRIE_REMOVED) return HMQ_TRIE_UNCHANGED;
    hmq_assert(trie->pair_count > 0);
    trie->pair_count--;
    if (in_hash && pairs->count == 0) hash_free(trie, n);
    prune(trie, &l, path, depth);
    return HMQ_TRIE_REMOVED;
}

bool hmq_trie_get(const hmq_trie *trie, const char *filter, size_t len, uint64_t subscriber, uint32_t *options) {
    levels l;
    if (!split_filter(trie, &l, filter, len)) return false;
    node *path[HMQ_TOPIC_MAX_LEVELS + 1];
    size_t depth = descend(trie, &l, path);
    if (depth < node_levels(&l)) return false;
    const hmq_pairs *pairs = depth < l.count ? path[depth]->hash : &path[depth]->pairs;
    return pairs != NULL && hmq_pairs_get(pairs, subscriber, options);
}

/* ---- match: from a name to the filters ---- */

typedef struct match {
    levels *levels;
    hmq_trie_visit visit;
    void *context;
    bool dollar; /* the name or filter searched for begins with '$' */
} match;

static bool match_node(const match *m, node *n, size_t depth) {
    bool wildcards = depth > 0 || !m->dollar; /* [MQTT-4.7.2-1] */
    if (n->hash && wildcards && !hmq_pairs_visit(n->hash, m->visit, m->context)) return false;
    if (depth == m->levels->count) return hmq_pairs_visit(&n->pairs, m->visit, m->context);
    if (n->plus && wildcards && !match_node(m, n->plus, depth + 1)) return false;
    node *child = find_child(n, m->levels, depth);
    return !child || match_node(m, child, depth + 1);
}

bool hmq_trie_match(const hmq_trie *trie, const char *name, size_t len, hmq_trie_visit visit, void *context) {
    levels l;
    if (len == 0 || !split(&l, &trie->seed, name, len)) return true; /* not a valid name: nothing matches it */
    match m = {.levels = &l, .visit = visit, .context = context, .dollar = name[0] == '$'};
    return match_node(&m, trie->root, 0);
}

/* ---- match in steps ---- */

/* The order of a match: at each node first the pairs of its '#', then its own pairs or its children, '+' first.  A place is
 * made of texts and hashes, so that it stays valid when nodes and pairs come and go. */
typedef struct steps {
    levels *levels;
    hmq_trie_visit visit;
    void *context;
    hmq_trie_place *place;
    size_t *left;
    bool dollar;
} steps;

/* The match stops here; those of its callers that went through a '+' note it.  Returns false, as they do. */
static bool stop(const steps *s, size_t depth, bool in_own, uint64_t pair) {
    *s->place = (hmq_trie_place){.depth = (uint16_t)depth, .in_own = in_own, .pair = pair};
    return false;
}

static bool note_plus(const steps *s, size_t depth) {
    s->place->plus[depth / 64] |= UINT64_C(1) << depth % 64;
    return false;
}

static bool visit_list(const steps *s, const hmq_pairs *pairs, size_t depth, bool in_own, uint64_t pair) {
    return hmq_pairs_visit_some(pairs, &pair, s->left, s->visit, s->context) || stop(s, depth, in_own, pair);
}

static bool sees_wildcards(const steps *s, size_t depth) {
    return depth > 0 || !s->dollar; /* [MQTT-4.7.2-1] */
}

/* A node that this step reaches first, and its concrete children. */
static bool match_new(const steps *s, node *n, size_t depth) {
    for (; n; n = find_child(n, s->levels, depth++)) {
        size_t left = *s->left;
        if (left == 0) return stop(s, depth, false, 0);
        *s->left = left - 1;
        if (n->hash && sees_wildcards(s, depth) && !visit_list(s, n->hash, depth, false, 0)) return false;
        if (depth == s->levels->count) return visit_list(s, &n->pairs, depth, true, 0);
        if (n->plus && sees_wildcards(s, depth) && !match_new(s, n->plus, depth + 1)) return note_plus(s, depth);
    }
    return true;
}

/* The node at which the last step stopped.  It costs nothing: so each step makes progress, however short it is. */
static bool continue_here(const steps *s, node *n, size_t depth) {
    bool was_in_own = s->place->in_own;
    uint64_t pair = s->place->pair;
    if (n->hash && sees_wildcards(s, depth) && !was_in_own && !visit_list(s, n->hash, depth, false, pair)) return false;
    if (depth == s->levels->count) return visit_list(s, &n->pairs, depth, true, was_in_own ? pair : 0);
    if (n->plus && sees_wildcards(s, depth) && !match_new(s, n->plus, depth + 1)) return note_plus(s, depth);
    return match_new(s, find_child(n, s->levels, depth), depth + 1);
}

/* A node on the way to that one, which may be gone: then the match continues after it. */
static bool continue_below(const steps *s, node *n, size_t depth) {
    if (depth == s->place->depth) return continue_here(s, n, depth);
    bool was_plus = (s->place->plus[depth / 64] >> depth % 64 & 1) != 0;
    if (was_plus && n->plus && !continue_below(s, n->plus, depth + 1)) return note_plus(s, depth);
    node *child = find_child(n, s->levels, depth);
    return !child || (was_plus ? match_new(s, child, depth + 1) : continue_below(s, child, depth + 1));
}

bool hmq_trie_match_some(const hmq_trie *trie, const char *name, size_t len, hmq_trie_place *place, size_t *left,
                         hmq_trie_visit visit, void *context) {
    levels l;
    if (len == 0 || !split(&l, &trie->seed, name, len)) return true;
    const steps s = {&l, visit, context, place, left, name[0] == '$'};
    bool is_first = place->depth == 0 && !place->in_own && place->pair == 0;
    if (!is_first) return continue_below(&s, trie->root, 0);
    if (*left < SIZE_MAX) ++*left; /* the root costs nothing, as in continue_here */
    return match_new(&s, trie->root, 0);
}

/* ---- match_filter: from a filter to the names ---- */

/* A wildcard in the first level does not see names with '$' [MQTT-4.7.2-1]. */
static bool is_hidden_from_wildcards(const node *child, size_t depth) {
    return depth == 1 && child->level_len > 0 && child->level[0] == '$';
}

static bool whole_subtree(void *context, node *n, size_t depth) {
    match *m = context;
    return is_hidden_from_wildcards(n, depth) ||
           (hmq_pairs_visit(&n->pairs, m->visit, m->context) && each_child(n, whole_subtree, m, depth + 1));
}

static bool filter_node(match *m, node *n, size_t depth);

static bool filter_child(void *context, node *n, size_t depth) {
    return is_hidden_from_wildcards(n, depth) || filter_node(context, n, depth);
}

/* n is the node after `depth` levels of the filter. */
static bool filter_node(match *m, node *n, size_t depth) {
    if (depth == m->levels->count) return hmq_pairs_visit(&n->pairs, m->visit, m->context);
    const level *l = &m->levels->at[depth];
    if (is_hash(l)) /* "a/#" matches "a" */
        return hmq_pairs_visit(&n->pairs, m->visit, m->context) && each_child(n, whole_subtree, m, depth + 1);
    if (is_plus(l)) return each_child(n, filter_child, m, depth + 1);
    node *child = find_child(n, m->levels, depth);
    return !child || filter_node(m, child, depth + 1);
}

bool hmq_trie_match_filter(const hmq_trie *trie, const char *filter, size_t len, hmq_trie_visit visit, void *context) {
    levels l;
    if (len == 0 || !split(&l, &trie->seed, filter, len)) return true; /* not a valid filter: it matches nothing */
    match m = {.levels = &l, .visit = visit, .context = context};
    return filter_node(&m, trie->root, 0);
}

/* ---- collect: matches without a call back ---- */

typedef struct collection {
    hmq_trie_entry *entries;
    size_t capacity;
    size_t count;
} collection;

static bool collect(void *context, uint64_t subscriber, uint32_t options) {
    collection *c = context;
    if (c->count < c->capacity) c->entries[c->count] = (hmq_trie_entry){subscriber, options};
    c->count++;
    return true;
}

size_t hmq_trie_collect(const hmq_trie *trie, const char *name, size_t len, hmq_trie_entry *entries, size_t capacity) {
    collection c = {.entries = entries, .capacity = capacity};
    (void)hmq_trie_match(trie, name, len, collect, &c); /* collect() never ends it */
    return c.count;
}

size_t hmq_trie_collect_filter(const hmq_trie *trie, const char *filter, size_t len, hmq_trie_entry *entries,
                               size_t capacity) {
    collection c = {.entries = entries, .capacity = capacity};
    (void)hmq_trie_match_filter(trie, filter, len, collect, &c);
    return c.count;
}

/* ---- walk ---- */

typedef struct walk {
    hmq_trie_walk_visit visit;
    void *context;
    size_t skip;                              /* pairs that are not visited */
    size_t path_len;                          /* of the current filter */
    size_t len_at[HMQ_TOPIC_MAX_LEVELS + 1];  /* of the path down to each depth */
    char path[HMQ_TOPIC_MAX_BYTES];
} walk;

static bool walk_pair(void *context, uint64_t subscriber, uint32_t options) {
    const walk *w = context;
    return w->visit(w->context, w->path, w->path_len, subscriber, options);
}

static bool walk_pairs(walk *w, const hmq_pairs *pairs, size_t path_len) {
    size_t skip = w->skip < pairs->count ? w->skip : pairs->count;
    w->skip -= skip;
    w->path_len = path_len;
    return skip == pairs->count || hmq_pairs_visit_after(pairs, skip, walk_pair, w);
}

/* Appends a level to the path of the parent of `depth`; returns the new length. */
static size_t walk_append(walk *w, size_t depth, const char *text, size_t len) {
    size_t at = w->len_at[depth - 1];
    if (depth > 1) w->path[at++] = '/';
    if (len) memcpy(w->path + at, text, len);
    return at + len;
}

static bool walk_node(void *context, node *n, size_t depth) {
    walk *w = context;
    w->len_at[depth] = depth ? walk_append(w, depth, n->level, n->level_len) : 0;
    if (!walk_pairs(w, &n->pairs, w->len_at[depth])) return false;
    if (n->hash && !walk_pairs(w, n->hash, walk_append(w, depth + 1, "#", 1))) return false;
    if (n->plus && !walk_node(w, n->plus, depth + 1)) return false;
    return each_child(n, walk_node, w, depth + 1);
}

bool hmq_trie_walk(const hmq_trie *trie, hmq_trie_walk_visit visit, void *context) {
    walk w; /* 64 KiB, on the stack: a walk cannot report a failed allocation */
    w.visit = visit;
    w.context = context;
    w.skip = 0;
    return walk_node(&w, trie->root, 0);
}

/* A match that walks. */
typedef struct match_walk {
    walk *walk;
    match *match;
    size_t *left;
} match_walk;

#define BYTES_PER_UNIT 256 /* of a level, which is copied */

static bool match_walk_node(const match_walk *m, node *n, size_t depth) {
    walk *w = m->walk;
    bool wildcards = depth > 0 || !m->match->dollar;
    size_t units = 1 + n->level_len / BYTES_PER_UNIT;
    if (*m->left < units) return false;
    *m->left -= units;
    if (n->hash && wildcards && !walk_pairs(w, n->hash, walk_append(w, depth + 1, "#", 1))) return false;
    if (depth == m->match->levels->count) return walk_pairs(w, &n->pairs, w->len_at[depth]);
    if (n->plus && wildcards) {
        w->len_at[depth + 1] = walk_append(w, depth + 1, "+", 1);
        if (!match_walk_node(m, n->plus, depth + 1)) return false;
    }
    node *child = find_child(n, m->match->levels, depth);
    if (!child) return true;
    w->len_at[depth + 1] = walk_append(w, depth + 1, child->level, child->level_len);
    return match_walk_node(m, child, depth + 1);
}

bool hmq_trie_match_walk(const hmq_trie *trie, const char *name, size_t len, size_t skip, size_t *left,
                         hmq_trie_walk_visit visit, void *context) {
    levels l;
    if (len == 0 || !split(&l, &trie->seed, name, len)) return true;
    match m = {.levels = &l, .dollar = name[0] == '$'};
    walk w; /* as in hmq_trie_walk */
    const match_walk both = {&w, &m, left};
    w.visit = visit;
    w.context = context;
    w.skip = skip;
    w.len_at[0] = 0;
    return match_walk_node(&both, trie->root, 0);
}

/* ---- figures ---- */

size_t hmq_trie_pairs(const hmq_trie *trie) {
    return trie->pair_count;
}

size_t hmq_trie_nodes(const hmq_trie *trie) {
    return trie->node_count;
}

size_t hmq_trie_bytes(const hmq_trie *trie) {
    return trie->memory.bytes;
}
