/* patterns_find.c - which pattern a topic has, what varies in it, and the topic again.  Reads a set, changes
 * nothing, takes no memory; every loop is bounded by the indexed levels or the length of the name. */
#include <string.h>

#include "history/nodes.h"

static const uint8_t missing_level[1] = {0};

hmq_slice hmq_patterns_missing(void) {
    return (hmq_slice){missing_level, sizeof missing_level};
}

hmq_slice hmq_patterns_text(const hmq_patterns *set) {
    return set->text;
}

uint32_t hmq_patterns_count(const hmq_patterns *set) {
    return set->count;
}

uint32_t hmq_patterns_levels(const hmq_patterns *set) {
    return set->levels;
}

const hmq_pattern *hmq_patterns_at(const hmq_patterns *set, uint32_t pattern) {
    return pattern < set->count ? &set->shapes[pattern].pattern : NULL;
}

/* ---- down the trie ---- */

static uint32_t concrete_child(const hmq_patterns *set, uint32_t node, hmq_slice level) {
    const uint32_t *children = set->children + set->nodes[node].first_child;
    for (uint32_t low = 0, high = set->nodes[node].child_count; low < high;) {
        uint32_t middle = low + (high - low) / 2;
        int order = hmq_slice_order(level, set->nodes[children[middle]].level);
        if (order == 0) return children[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return HMQ_NONE;
}

/* The indexed levels of a name, and the token of what is beyond. */
typedef struct split {
    hmq_slice levels[HMQ_PATTERNS_MAX_LEVELS];
    unsigned count;
    hmq_slice beyond; /* data is NULL if there is nothing */
} split;

static void split_name(split *s, const hmq_patterns *set, const char *name, size_t len) {
    const uint8_t *at = (const uint8_t *)name, *end = at + len;
    for (s->count = 0; s->count < set->levels;) {
        const uint8_t *slash = len ? memchr(at, '/', (size_t)(end - at)) : NULL;
        s->levels[s->count++] = (hmq_slice){at, (size_t)((slash ? slash : end) - at)};
        if (!slash) {
            s->beyond = (hmq_slice){NULL, 0};
            return;
        }
        at = slash + 1;
    }
    s->beyond = (hmq_slice){at, (size_t)(end - at)};
}

uint32_t hmq_pattern_next(const hmq_patterns *set, uint32_t node, unsigned depth, hmq_slice level) {
    uint32_t child = concrete_child(set, node, level);
    if (child != HMQ_NONE || (depth == 0 && level.len && level.data[0] == '$')) return child;
    return set->nodes[node].plus;
}

static uint32_t pattern_of(const hmq_patterns *set, const split *s) {
    uint32_t node = 0, tail = set->nodes[0].tail;
    for (unsigned depth = 0; depth < s->count; depth++) {
        node = hmq_pattern_next(set, node, depth, s->levels[depth]);
        if (node == HMQ_NONE) return tail;
        if (set->nodes[node].tail != HMQ_NONE) tail = set->nodes[node].tail;
    }
    return set->nodes[node].end != HMQ_NONE && !s->beyond.data ? set->nodes[node].end : tail;
}

/* ---- slots ---- */

static void fill_slots(const hmq_patterns *set, const split *s, hmq_topic_place *place) {
    const hmq_pattern_shape *shape = &set->shapes[place->pattern];
    place->slots = 0;
    for (unsigned i = 0; i < shape->depth; i++)
        if (shape->plus_mask >> i & 1) place->levels[place->slots++] = s->levels[i];
    if (!shape->tail) return;
    for (unsigned i = shape->depth; i < s->count; i++) place->levels[place->slots++] = s->levels[i];
    place->levels[place->slots++] = s->beyond.data ? s->beyond : hmq_patterns_missing();
}

void hmq_patterns_find(const hmq_patterns *set, const char *name, size_t len, hmq_topic_place *place) {
    split s;
    split_name(&s, set, name, len);
    place->pattern = pattern_of(set, &s);
    fill_slots(set, &s, place);
}

/* ---- the short form ---- */

typedef struct output {
    char *out; /* NULL: only the size is wanted */
    size_t size;
} output;

static void put(output *o, hmq_slice text) {
    if (o->out && text.len) memcpy(o->out + o->size, text.data, text.len);
    o->size += text.len;
}

static void put_slash(output *o) {
    put(o, (hmq_slice){(const uint8_t *)"/", 1});
}

/* From the level `depth` on, with the '/' before it; empty if the name has no such level. */
static hmq_slice tail_of(const split *s, unsigned depth, const char *name, size_t len) {
    const uint8_t *end = (const uint8_t *)name + len, *from = end;
    if (depth < s->count)
        from = s->levels[depth].data - (depth > 0);
    else if (s->beyond.data)
        from = s->beyond.data - 1;
    return (hmq_slice){from, (size_t)(end - from)};
}

static void shorten(output *o, const hmq_pattern_shape *shape, const split *s, hmq_slice tail) {
    bool first = true;
    for (unsigned i = 0; i < shape->depth && i < s->count; i++) { /* a topic has the levels of its pattern */
        if (!(shape->plus_mask >> i & 1)) continue;
        if (!first) put_slash(o);
        put(o, s->levels[i]);
        first = false;
    }
    if (shape->tail) put(o, tail);
}

size_t hmq_patterns_shorten(const hmq_patterns *set, const char *name, size_t len, char *out, size_t capacity) {
    split s;
    split_name(&s, set, name, len);
    const hmq_pattern_shape *shape = &set->shapes[pattern_of(set, &s)];
    hmq_slice tail = tail_of(&s, shape->depth, name, len);
    output measured = {.out = NULL}, written = {.out = out};
    shorten(&measured, shape, &s, tail);
    if (measured.size <= capacity) shorten(&written, shape, &s, tail);
    return measured.size;
}

/* The next level of a pattern's line. */
static hmq_slice cut_level(hmq_slice *rest) {
    const uint8_t *slash = rest->len ? memchr(rest->data, '/', rest->len) : NULL;
    hmq_slice level = {rest->data, slash ? (size_t)(slash - rest->data) : rest->len};
    size_t used = level.len + (slash != NULL);
    *rest = (hmq_slice){rest->data + used, rest->len - used};
    return level;
}

/* A '+' takes a level of the short form; `left` '+' follow it.  The '/' before a tail stays. */
static bool take_level(hmq_slice *shortened, unsigned left, bool tail, hmq_slice *level) {
    const uint8_t *slash = shortened->len ? memchr(shortened->data, '/', shortened->len) : NULL;
    if (left ? !slash : slash && !tail) return false;
    level->data = shortened->data;
    level->len = slash ? (size_t)(slash - shortened->data) : shortened->len;
    size_t used = level->len + (left > 0);
    *shortened = (hmq_slice){shortened->data + used, shortened->len - used};
    return true;
}

static bool restore(output *o, const hmq_pattern_shape *shape, hmq_slice shortened) {
    hmq_slice line = shape->pattern.text, level;
    unsigned left = 0;
    for (unsigned i = 0; i < shape->depth; i++) left += shape->plus_mask >> i & 1U;
    for (unsigned i = 0; i < shape->depth; i++) {
        level = cut_level(&line);
        if (i > 0) put_slash(o);
        if (shape->plus_mask >> i & 1 && !take_level(&shortened, --left, shape->tail, &level)) return false;
        put(o, level);
    }
    if (shortened.len && (!shape->tail || (shape->depth && shortened.data[0] != '/'))) return false;
    put(o, shortened);
    return true;
}

int64_t hmq_patterns_restore(const hmq_patterns *set, uint32_t pattern, const char *shortened, size_t len, char *out,
                             size_t capacity) {
    if (pattern >= set->count) return -1;
    const hmq_pattern_shape *shape = &set->shapes[pattern];
    hmq_slice given = {(const uint8_t *)shortened, len};
    output measured = {.out = NULL}, written = {.out = out};
    if (!restore(&measured, shape, given)) return -1;
    if (measured.size <= capacity) (void)restore(&written, shape, given);
    return (int64_t)measured.size;
}
