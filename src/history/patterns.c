/* patterns.c - reads a pattern set from its text and lays it out as history/nodes.h draws it.
 *
 * 1. Check the head and each line.  2. Sort the lines: equal ones are an error, and the first must be "#".  3. Allocate the
 * one block.  4. Write each line canonically and add it to the trie: the lines are sorted, so a line shares nodes only with
 * the line before it.  5. Give each node the list of its children.
 *
 * Before step 3 only the table of lines is allocated. */
#include "history/patterns.h"

#include <stdio.h>
#include <string.h>

#include "base/sort.h"
#include "base/utf8.h"
#include "topic/topic.h"
#include "history/index.h"
#include "history/nodes.h"

#define QUOTED_BYTES 40 /* of the user's text in an error */

static const char head_start[] = "holdmq-patterns 1 levels=";
#define HEAD_START_LEN (sizeof head_start - 1)

typedef struct line {
    hmq_slice text;
    size_t number; /* from 1: the head */
} line;

typedef struct parser {
    const uint8_t *text;
    size_t len;
    size_t at;
    size_t number; /* of the current line */
    uint32_t levels;
    size_t tokens; /* of all lines */
    line *lines;
    size_t count;
    char *error;
    size_t capacity;
} parser;

/* ---- errors ---- */

static bool mistake(const parser *in, size_t number, hmq_slice what, const char *fault) {
    char shown[QUOTED_BYTES + 4];
    size_t len = what.len < QUOTED_BYTES ? what.len : QUOTED_BYTES;
    for (size_t i = 0; i < len; i++) shown[i] = what.data[i] >= 0x20 && what.data[i] < 0x7F ? (char)what.data[i] : '?';
    memcpy(shown + len, len < what.len ? "..." : "", len < what.len ? 4 : 1);
    if (in->capacity) (void)snprintf(in->error, in->capacity, "line %zu: '%s' %s", number, shown, fault);
    return false;
}

static bool no_memory(const parser *in) {
    if (in->capacity) (void)snprintf(in->error, in->capacity, "out of memory for a pattern set of %zu bytes", in->len);
    return false;
}

/* ---- tokens ---- */

typedef enum token_kind { TOKEN_TAIL, TOKEN_PLUS, TOKEN_CONCRETE } token_kind; /* in the order of sorting */

typedef struct token {
    token_kind kind;
    hmq_slice level;
    uint8_t bits;
} token;

/* Reads a decimal number from..to without a leading zero. */
static bool number_of(hmq_slice text, uint32_t from, uint32_t to, uint32_t *number) {
    *number = 0;
    if (text.len == 0 || text.len > 4 || text.data[0] == '0') return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        *number = *number * 10 + (uint32_t)(text.data[i] - '0');
    }
    return *number >= from && *number <= to;
}

/* Takes the first level from `rest`; false when none is left (rest->data is NULL then). */
static bool next_level(hmq_slice *rest, hmq_slice *level) {
    if (!rest->data) return false;
    const uint8_t *slash = rest->len ? memchr(rest->data, '/', rest->len) : NULL;
    *level = (hmq_slice){rest->data, slash ? (size_t)(slash - rest->data) : rest->len};
    *rest = slash ? (hmq_slice){slash + 1, rest->len - level->len - 1} : (hmq_slice){NULL, 0};
    return true;
}

/* False if the level is invalid: a wildcard is followed by something other than bits, or it has a control character. */
static bool token_of(hmq_slice level, token *out) {
    uint32_t bits = HMQ_PATTERNS_DEFAULT_BITS;
    bool wild = level.len && (level.data[0] == '+' || level.data[0] == '#');
    hmq_slice rest = {level.data + wild, level.len - wild};
    if (wild && rest.len && !number_of(rest, 1, HMQ_INDEX_MAX_BITS, &bits)) return false;
    for (size_t i = 0; !wild && i < level.len; i++)
        if (level.data[i] == '+' || level.data[i] == '#' || level.data[i] < 0x20 || level.data[i] == 0x7F) return false;
    *out = (token){!wild ? TOKEN_CONCRETE : level.data[0] == '+' ? TOKEN_PLUS : TOKEN_TAIL, level, (uint8_t)bits};
    return true;
}

/* The next token of a checked line. */
static bool next_token(hmq_slice *rest, token *out) {
    hmq_slice level;
    return next_level(rest, &level) && token_of(level, out);
}

/* ---- lines ---- */

static hmq_slice take_line(parser *in) {
    const uint8_t *from = in->text + in->at, *feed = memchr(from, '\n', in->len - in->at);
    size_t len = feed ? (size_t)(feed - from) : in->len - in->at;
    in->at += len + (feed != NULL);
    in->number++;
    return (hmq_slice){from, len};
}

static bool read_head(parser *in) {
    if (in->len > HMQ_PATTERNS_MAX_BYTES)
        return mistake(in, 1, (hmq_slice){in->text, QUOTED_BYTES},
                       "begins a text that is too long; expected at most 1048576 bytes");
    hmq_slice head = in->len ? take_line(in) : (hmq_slice){in->text, 0};
    if (head.len > HEAD_START_LEN && memcmp(head.data, head_start, HEAD_START_LEN) == 0) {
        hmq_slice levels = {head.data + HEAD_START_LEN, head.len - HEAD_START_LEN};
        if (number_of(levels, 1, HMQ_PATTERNS_MAX_LEVELS, &in->levels)) return true;
    }
    return mistake(in, 1, head, "is no head; expected 'holdmq-patterns 1 levels=<1 to 16>'");
}

static bool check_line(parser *in, hmq_slice text) {
    if (text.len == 0) return mistake(in, in->number, text, "is no pattern; expected at least one character");
    if (text.len > HMQ_TOPIC_MAX_BYTES)
        return mistake(in, in->number, text, "is too long; expected at most 65535 bytes");
    if (hmq_utf8_check(text.data, text.len) != HMQ_UTF8_OK)
        return mistake(in, in->number, text, "is invalid text; expected UTF-8 without U+0000");
    hmq_slice rest = text, level;
    token t;
    size_t depth = 0;
    for (; next_level(&rest, &level); in->tokens++) {
        if (!token_of(level, &t))
            return mistake(in, in->number, level,
                           "is not part of a pattern; expected a level, +, +<bits>, # or #<bits>, with 1 to 24 bits");
        if (t.kind == TOKEN_TAIL && rest.data)
            return mistake(in, in->number, text, "has a # before its last level; expected # only there");
        depth += t.kind != TOKEN_TAIL;
    }
    if (depth > in->levels)
        return mistake(in, in->number, text,
                       "has too many levels before its #; expected at most the levels= of the head");
    return true;
}

static bool read_lines(parser *in) {
    while (in->at < in->len) {
        hmq_slice text = take_line(in);
        if (in->count == HMQ_PATTERNS_MAX)
            return mistake(in, in->number, text, "is one pattern too many; expected at most 4096");
        if (!check_line(in, text)) return false;
        in->lines[in->count++] = (line){text, in->number};
    }
    return true;
}

/* ---- order ---- */

static int compare_tokens(const token *a, const token *b) {
    if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
    return a->kind == TOKEN_CONCRETE ? hmq_slice_order(a->level, b->level) : 0;
}

static int compare_lines(const void *a, const void *b) {
    hmq_slice rest_a = ((const line *)a)->text, rest_b = ((const line *)b)->text;
    token token_a, token_b;
    for (;;) {
        bool more_a = next_token(&rest_a, &token_a), more_b = next_token(&rest_b, &token_b);
        if (!more_a || !more_b) return (int)more_a - (int)more_b;
        int order = compare_tokens(&token_a, &token_b);
        if (order) return order;
    }
}

static bool sort_lines(parser *in) {
    hmq_sort(in->lines, in->count, sizeof(line), compare_lines);
    for (size_t i = 1; i < in->count; i++) {
        const line *a = &in->lines[i - 1], *b = &in->lines[i], *later = a->number > b->number ? a : b;
        if (compare_lines(a, b) == 0)
            return mistake(in, later->number, later->text, "is in the set already; expected each pattern once");
    }
    bool complete = in->count && in->lines[0].text.data[0] == '#';
    return complete || mistake(in, in->number, (hmq_slice){in->text, 0},
                               "is the end of the text; expected a line '#', so that every topic has a pattern");
}

/* ---- the block ---- */

static hmq_patterns *new_set(const hmq_allocator *allocator, const parser *in) {
    size_t nodes = in->tokens + 1, shapes_size = in->count * sizeof(hmq_pattern_shape);
    size_t nodes_size = nodes * sizeof(hmq_pattern_node), children_size = nodes * sizeof(uint32_t);
    uint8_t *block = allocator->alloc(sizeof(hmq_patterns) + shapes_size + nodes_size + children_size + in->len + 1);
    if (!block) return NULL;
    hmq_patterns *set = (hmq_patterns *)(void *)block;
    block += sizeof *set;
    *set = (hmq_patterns){.allocator = allocator, .levels = in->levels, .shapes = (void *)block};
    set->nodes = (void *)(block + shapes_size);
    set->children = (void *)(block + shapes_size + nodes_size);
    set->text.data = block + shapes_size + nodes_size + children_size;
    return set;
}

static uint32_t new_node(hmq_patterns *set, uint32_t parent, hmq_slice level) {
    set->nodes[set->node_count] =
        (hmq_pattern_node){.level = level, .parent = parent, .plus = HMQ_NONE, .end = HMQ_NONE, .tail = HMQ_NONE};
    return set->node_count++;
}

static uint8_t *text_end(const hmq_patterns *set) {
    return (uint8_t *)(uintptr_t)set->text.data + set->text.len;
}

/* Appends to the canonical text; returns the appended text. */
static hmq_slice write_text(hmq_patterns *set, hmq_slice text) {
    hmq_slice written = {text_end(set), text.len};
    if (text.len) memcpy(text_end(set), text.data, text.len);
    set->text.len += text.len;
    return written;
}

static hmq_slice write_token(hmq_patterns *set, const token *t) {
    bool plain = t->kind != TOKEN_CONCRETE && t->bits == HMQ_PATTERNS_DEFAULT_BITS;
    return write_text(set, plain ? (hmq_slice){t->level.data, 1} : t->level);
}

static hmq_slice constant(const char *text) {
    return (hmq_slice){(const uint8_t *)text, strlen(text)};
}

static void write_head(hmq_patterns *set) {
    char head[HEAD_START_LEN + 16];
    (void)snprintf(head, sizeof head, "%s%u\n", head_start, (unsigned)set->levels);
    (void)write_text(set, constant(head));
}

/* ---- nodes ---- */

static void add_slots(hmq_pattern_shape *shape, unsigned count, uint8_t bits) {
    while (count-- > 0) shape->pattern.bits[shape->pattern.slots++] = bits;
}

/* The child that a token leads to.  `last` is the node of the previous line at this depth, if its earlier levels are the
 * same: no other concrete child can match. */
static uint32_t descend(hmq_patterns *set, uint32_t node, const token *t, hmq_slice level, uint32_t last) {
    if (t->kind == TOKEN_PLUS) {
        if (set->nodes[node].plus == HMQ_NONE) {
            uint32_t plus = new_node(set, node, level);
            set->nodes[node].plus = plus;
        }
        return set->nodes[node].plus;
    }
    if (last != HMQ_NONE && hmq_slice_order(set->nodes[last].level, level) == 0) return last;
    set->nodes[node].child_count++;
    return new_node(set, node, level);
}

/* Step 4 for one line.  path[d] is the node of the previous line at depth d, NONE beyond its end. */
static void add_line(hmq_patterns *set, hmq_slice rest, uint32_t path[HMQ_PATTERNS_MAX_LEVELS + 1]) {
    hmq_pattern_shape *shape = &set->shapes[set->count];
    *shape = (hmq_pattern_shape){.pattern.text = {text_end(set), 0}};
    uint32_t node = 0;
    bool same = true;
    for (token t; next_token(&rest, &t);) {
        hmq_slice level = write_token(set, &t);
        if (rest.data) (void)write_text(set, constant("/"));
        if (t.kind == TOKEN_TAIL) {
            shape->tail = true;
            add_slots(shape, set->levels - shape->depth + 1, t.bits);
            break;
        }
        if (t.kind == TOKEN_PLUS) {
            shape->plus_mask |= (uint16_t)(1U << shape->depth);
            add_slots(shape, 1, t.bits);
        }
        uint32_t *step = &path[++shape->depth];
        node = descend(set, node, &t, level, same ? *step : HMQ_NONE);
        same = same && *step == node;
        *step = node;
    }
    for (unsigned d = shape->depth + 1U; d <= HMQ_PATTERNS_MAX_LEVELS; d++) path[d] = HMQ_NONE;
    *(shape->tail ? &set->nodes[node].tail : &set->nodes[node].end) = set->count++;
    shape->pattern.text.len = (size_t)(text_end(set) - shape->pattern.text.data);
    (void)write_text(set, constant("\n"));
}

/* Step 5: nodes were created in the order of the text, so each list is sorted. */
static void list_children(hmq_patterns *set) {
    uint32_t next = 0;
    for (uint32_t i = 0; i < set->node_count; i++) {
        set->nodes[i].first_child = next;
        next += set->nodes[i].child_count;
        set->nodes[i].child_count = 0;
    }
    for (uint32_t i = 1; i < set->node_count; i++) {
        hmq_pattern_node *parent = &set->nodes[set->nodes[i].parent];
        if (parent->plus != i) set->children[parent->first_child + parent->child_count++] = i;
    }
}

static hmq_patterns *build(const hmq_allocator *allocator, const parser *in) {
    hmq_patterns *set = new_set(allocator, in);
    if (!set) return NULL;
    uint32_t path[HMQ_PATTERNS_MAX_LEVELS + 1];
    for (unsigned d = 0; d <= HMQ_PATTERNS_MAX_LEVELS; d++) path[d] = HMQ_NONE;
    (void)new_node(set, HMQ_NONE, (hmq_slice){NULL, 0});
    write_head(set);
    for (size_t i = 0; i < in->count; i++) add_line(set, in->lines[i].text, path);
    list_children(set);
    return set;
}

static size_t most_lines(const parser *in) {
    size_t count = 1;
    for (size_t i = in->at; i < in->len && count < HMQ_PATTERNS_MAX; i++) count += in->text[i] == '\n';
    return count;
}

hmq_patterns *hmq_patterns_parse(const hmq_allocator *allocator, const char *text, size_t len, char *error,
                                 size_t capacity) {
    parser in = {.text = (const uint8_t *)text, .len = len, .error = error, .capacity = capacity};
    if (!read_head(&in)) return NULL;
    hmq_patterns *set = NULL;
    in.lines = allocator->alloc(most_lines(&in) * sizeof(line));
    bool ok = in.lines ? read_lines(&in) && sort_lines(&in) : no_memory(&in);
    if (ok && !(set = build(allocator, &in))) (void)no_memory(&in);
    if (in.lines) allocator->release(in.lines);
    return set;
}

void hmq_patterns_free(hmq_patterns *set) {
    if (set) set->allocator->release(set);
}
