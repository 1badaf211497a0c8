/* patterns.h - the pattern set of a generation: the log of each topic, and which of its levels vary.
 *
 *      #                                  pattern 0
 *      devices ── + ── pressure           pattern 1
 *              │    └─ temperature        pattern 2
 *              └─ gateway ── #            pattern 3
 *
 * The edges of this trie are concrete levels, '+' (one level, any) and '#' (the tail: any number of further levels).
 * A topic descends level by level, by the concrete edge if there is one, else by '+', without backtracking.  Its pattern is
 * the one that ends where the topic ends.  If none ends there, or an edge is missing, its pattern is the deepest '#' on
 * its path.  The root always has one.
 *
 * Invariants:
 *  1. Every topic has exactly one pattern: the descent is deterministic, and '#' at the root takes all other topics.
 *  2. It depends on the topic and the set alone, so within a generation no topic ever changes its pattern.
 *  3. Equal sets have equal texts and equal numbers: patterns are numbered from 0 in the order of their text (level by
 *     level, '#' before '+' before concrete levels by their bytes), so that all shards, replicas and clients agree.
 *  4. At the first level '+' does not match a level that begins with '$', as in MQTT; '#' matches everything.
 *  5. A set is immutable.
 *
 * TEXT, which is also the stored form: a head, then one pattern per line
 *
 *      holdmq-patterns 1 levels=8
 *      #
 *      devices/+18/pressure
 *      devices/+/temperature
 *
 * `levels` is the number of indexed levels: no pattern has more before its '#', and all further levels of a topic are one
 * token.  A number after '+' or '#' is the number of bits that its levels are hashed to (1..24, HMQ_PATTERNS_DEFAULT_BITS
 * if it is missing).  The input may have any order and plain filters.  The canonical text is sorted, omits default bits,
 * and ends each line with a line feed.  A concrete level has no '+', '#' or control character, and is valid UTF-8; topics
 * with other levels have patterns with '+' or '#' there.
 *
 * SLOTS of a pattern are the levels that vary, in this order: each '+'; then, if it ends in '#', each level from there
 * to the last indexed one; then the token of all further levels.  In the slot after its last level, a topic has the level
 * HMQ_PATTERNS_MISSING, which no topic can contain ('/' would not do, because a token can contain it), and later slots are
 * empty.  So "a/b", "a/b/" and "a//b" differ, and there is a list of the topics that end.
 *
 * Memory: a set is one block.  Cost: parse O(text * log patterns); find O(levels * log children). */
#ifndef HMQ_HISTORY_PATTERNS_H
#define HMQ_HISTORY_PATTERNS_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_PATTERNS_MAX 4096
#define HMQ_PATTERNS_MAX_LEVELS 16
#define HMQ_PATTERNS_MAX_SLOTS 17
#define HMQ_PATTERNS_MAX_BYTES 1048576
#define HMQ_PATTERNS_DEFAULT_BITS 20

typedef struct hmq_patterns hmq_patterns;

typedef struct hmq_pattern {
    hmq_slice text;      /* its line, without the line feed */
    uint8_t slots;       /* 0 .. HMQ_PATTERNS_MAX_SLOTS */
    uint8_t bits[17];    /* of each slot */
} hmq_pattern;

/* NULL for an invalid text or out of memory; then error (if capacity is not 0) holds a NUL-terminated sentence that names
 * the line, the fault and what is accepted. */
hmq_patterns *hmq_patterns_parse(const hmq_allocator *allocator, const char *text, size_t len, char *error,
                                 size_t capacity);
void hmq_patterns_free(hmq_patterns *set);

/* The canonical text; lives as long as the set. */
hmq_slice hmq_patterns_text(const hmq_patterns *set);
uint32_t hmq_patterns_count(const hmq_patterns *set);
uint32_t hmq_patterns_levels(const hmq_patterns *set);
/* NULL if there is no such pattern. */
const hmq_pattern *hmq_patterns_at(const hmq_patterns *set, uint32_t pattern);

/* Where a topic belongs. */
typedef struct hmq_topic_place {
    uint32_t pattern;
    uint32_t slots;         /* slots that have a level: the rest of the pattern's have none */
    hmq_slice levels[17];   /* of each slot: parts of the name, or HMQ_PATTERNS_MISSING */
} hmq_topic_place;

/* `name` is a valid topic name; any bytes are safe. */
void hmq_patterns_find(const hmq_patterns *set, const char *name, size_t len, hmq_topic_place *place);

/* The level that stands for "no more levels": one NUL byte. */
hmq_slice hmq_patterns_missing(void);

/* What the pattern does not already say of a topic, to be stored instead of it: "42" of "devices/42/pressure".  The
 * levels of its '+' joined by '/', then for a '#' all that follows, with the '/' before it.  Returns the size (never
 * more than the topic's); writes nothing if that is more than capacity. */
size_t hmq_patterns_shorten(const hmq_patterns *set, const char *name, size_t len, char *out, size_t capacity);

/* The topic again.  Returns its size, writes nothing if that is more than capacity; -1 if there is no such pattern or it
 * has more or fewer levels than that. */
int64_t hmq_patterns_restore(const hmq_patterns *set, uint32_t pattern, const char *shortened, size_t len, char *out,
                             size_t capacity);
/* cffi-end */

#endif
