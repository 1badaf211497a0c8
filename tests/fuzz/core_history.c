/* core_history.c - the index of history on bytes from anybody: pattern sets, posting lists and scans, the learner. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "history/cursor.h"
#include "history/ids.h"
#include "history/index.h"
#include "history/learner.h"
#include "history/patterns.h"
#include "history/plan.h"
#include "topic/topic.h"
#include "core_targets.h"

#define HOLDS(law)                                                                                                     \
    do {                                                                                                               \
        if (!(law)) {                                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #law);                                   \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

static const hmq_hash_seed seed = {1, 2};

static void *copied(const void *data, size_t len) {
    void *copy = malloc(len);
    HOLDS(copy != NULL || len == 0);
    if (len > 0) memcpy(copy, data, len);
    return copy;
}

/* The next part of the input, up to a byte 0xFE, in a block of its own. */
static char *next_part(const uint8_t **data, size_t *len, size_t *part_len) {
    const uint8_t *end = *len ? memchr(*data, 0xFE, *len) : NULL;
    *part_len = end ? (size_t)(end - *data) : *len;
    char *part = copied(*data, *part_len);
    size_t used = *part_len + (end != NULL);
    *data += used, *len -= used;
    return part;
}

/* ---- pattern sets: a text, then topics and filters ---------------------------------------------------------- */

static void same_set(const hmq_patterns *set) {
    hmq_slice text = hmq_patterns_text(set);
    hmq_patterns *again = hmq_patterns_parse(&hmq_libc_allocator, (const char *)text.data, text.len, NULL, 0);
    HOLDS(again != NULL);
    hmq_slice other = hmq_patterns_text(again);
    HOLDS(other.len == text.len && memcmp(other.data, text.data, text.len) == 0);
    hmq_patterns_free(again);
}

static void restored(const hmq_patterns *set, uint32_t pattern, const char *name, size_t len) {
    char *out = copied(name, len), *again = copied(name, len);
    size_t size = hmq_patterns_shorten(set, name, len, out, len);
    HOLDS(size <= len);
    HOLDS(hmq_patterns_restore(set, pattern, out, size, again, len) == (int64_t)len && memcmp(again, name, len) == 0);
    free(out);
    free(again);
}

/* Is the topic where a reader of the filter looks for it? */
static void planned(const hmq_patterns *set, const hmq_topic_place *place, const char *filter, size_t len) {
    static hmq_plan_pattern plan[HMQ_PATTERNS_MAX];
    size_t count = hmq_plan_collect(set, &seed, filter, len, plan, HMQ_PATTERNS_MAX);
    HOLDS(count <= hmq_patterns_count(set));
    size_t at = 0;
    while (at < count && plan[at].pattern != place->pattern) at++;
    HOLDS(at < count);
    const hmq_pattern *pattern = hmq_patterns_at(set, place->pattern);
    for (uint32_t i = 0; i < plan[at].fixed; i++) {
        const hmq_plan_slot *slot = &plan[at].slots[i];
        HOLDS(slot->slot < place->slots && slot->bits == pattern->bits[slot->slot]);
        HOLDS(slot->hash == hmq_index_hash(&seed, place->levels[slot->slot], slot->bits));
    }
}

static void ask_set(const hmq_patterns *set, const char *name, size_t name_len, const char *filter, size_t filter_len) {
    hmq_topic_place place;
    hmq_patterns_find(set, name, name_len, &place);
    const hmq_pattern *pattern = hmq_patterns_at(set, place.pattern);
    HOLDS(pattern != NULL && place.slots <= pattern->slots);
    for (uint32_t p = 0; p < hmq_patterns_count(set); p++) hmq_patterns_restore(set, p, name, name_len, NULL, 0);
    hmq_plan_collect(set, &seed, filter, filter_len, NULL, 0);
    if (hmq_topic_check_name(name, name_len) != HMQ_TOPIC_OK) return;
    restored(set, place.pattern, name, name_len);
    hmq_slice group, inner;
    if (hmq_topic_check_filter(filter, filter_len) || hmq_topic_split_share(filter, filter_len, &group, &inner)) return;
    if (hmq_topic_matches(filter, filter_len, name, name_len)) planned(set, &place, filter, filter_len);
}

void fuzz_history_patterns(const uint8_t *data, size_t len) {
    size_t text_len, name_len, filter_len;
    char error[64], *text = next_part(&data, &len, &text_len);
    hmq_patterns *set = hmq_patterns_parse(&hmq_libc_allocator, text, text_len, error, sizeof error);
    HOLDS(set != NULL || strncmp(error, "line ", 5) == 0);
    if (set) same_set(set);
    while (set && len > 0) {
        char *name = next_part(&data, &len, &name_len), *filter = next_part(&data, &len, &filter_len);
        ask_set(set, name, name_len, filter, filter_len);
        free(name);
        free(filter);
    }
    hmq_patterns_free(set);
    free(text);
}

/* ---- posting lists: fragment bits, budget, then lists -------------------------------------------------------- */

static void whole_list(const uint8_t *list, size_t len, unsigned bits) {
    uint64_t entries, last = 0, number, budget = UINT64_MAX;
    hmq_postings_result checked = hmq_postings_check(list, len, bits, &entries);
    HOLDS((checked == HMQ_POSTINGS_END) == (len == 0) && entries <= len);
    if (checked != HMQ_POSTINGS_FOUND) return;
    HOLDS(hmq_postings_last(list, len, bits, &last) == HMQ_POSTINGS_FOUND);
    uint8_t *longer = malloc(len + HMQ_POSTINGS_APPEND_BYTES);
    HOLDS(longer != NULL);
    memcpy(longer, list, len);
    size_t size = hmq_postings_append(len, last, bits, last + 7, 0, longer + len);
    HOLDS((size == 0) == (last + 7 > HMQ_POSTINGS_MAX_NUMBER));
    if (size) {
        hmq_postings p;
        HOLDS(hmq_postings_check(longer, len + size, bits, &number) == HMQ_POSTINGS_FOUND && number == entries + 1);
        HOLDS(hmq_postings_open(&p, longer, len + size, bits, 0));
        HOLDS(hmq_postings_seek(&p, last + 1, &number, &budget) == HMQ_POSTINGS_FOUND && number == last + 7);
    }
    free(longer);
}

static void scanned(hmq_scan_list *lists, uint32_t count, uint64_t budget_each) {
    hmq_scan scan;
    uint64_t position = 1, number = 0;
    if (!hmq_scan_begin(&scan, lists, count)) return;
    for (unsigned calls = 0; calls < 10000; calls++) {
        uint64_t budget = budget_each;
        hmq_postings_result result = hmq_scan_next(&scan, position, &number, &budget);
        HOLDS(budget <= budget_each);
        if (result == HMQ_POSTINGS_END || result == HMQ_POSTINGS_CORRUPT) return;
        HOLDS(result == HMQ_POSTINGS_FOUND ? number >= position : number > position);
        position = result == HMQ_POSTINGS_FOUND ? number + 1 : number;
    }
    HOLDS(false); /* an input has not so many entries */
}

void fuzz_history_lists(const uint8_t *data, size_t len) {
    enum { MOST = 6 };
    hmq_scan_list lists[MOST];
    char *parts[MOST];
    uint32_t count = 0;
    if (len < 3) return;
    unsigned bits = 1 + data[0] % HMQ_INDEX_MAX_BITS, hash = data[1];
    uint64_t budget = data[2];
    data += 3, len -= 3;
    for (; count < MOST && len > 0; count++) {
        size_t part_len;
        parts[count] = next_part(&data, &len, &part_len);
        hmq_plan_slot slot = {.hash = hash & ((1U << bits) - 1), .slot = (uint8_t)(count / 2), .bits = (uint8_t)bits};
        hmq_index_place place = hmq_index_place_of(slot.hash, bits, count % 2);
        whole_list((uint8_t *)parts[count], part_len, place.fragment_bits);
        hmq_scan_list_open(&lists[count], &slot, count % 2, (uint8_t *)parts[count], part_len);
    }
    scanned(lists, count, budget);
    for (uint32_t i = 0; i < count; i++) free(parts[i]);
}

/* ---- small texts: cursors and marks ------------------------------------------------------------------------- */

void fuzz_history_texts(const uint8_t *data, size_t len) {
    hmq_cursor cursor;
    hmq_cursor_store store;
    char again[HMQ_CURSOR_STORE_MAX_BYTES];
    if (hmq_cursor_decode((const char *)data, len, &cursor, &store) == 0)
        HOLDS(hmq_cursor_encode(&cursor, &store, again) == len && memcmp(again, data, len) == 0);
    if (len < 8) return;
    uint64_t time = 0, from, to;
    for (size_t i = 0; i < 8; i++) time = time << 8 | data[i];
    HOLDS(hmq_marks_find(data + 8, len - 8, time, &from, &to) <= 8);
    hmq_message_id last = {time, time >> 3}, next;
    if (hmq_message_id_next(last, from, &next))
        HOLDS(next.time_us > last.time_us && next.time_us >= from && next.sequence == last.sequence + 1);
}

/* ---- the learner: options, then topics ----------------------------------------------------------------------- */

void fuzz_history_learner(const uint8_t *data, size_t len) {
    if (len < 4) return;
    hmq_learner_options options = hmq_learner_defaults();
    options.levels = 1 + data[0] % 5;
    options.max_children = 1 + data[1] % 6;
    options.hot_percent = 1 + data[2] % 101;
    options.sample = 1 + data[3] % 8;
    options.max_nodes = 1000;
    hmq_learner *learner = hmq_learner_new(&hmq_libc_allocator, &options);
    HOLDS(learner != NULL);
    uint64_t messages = 0;
    for (data += 4, len -= 4; len > 0;) {
        size_t name_len;
        char *name = next_part(&data, &len, &name_len);
        if (hmq_topic_check_name(name, name_len) == HMQ_TOPIC_OK) {
            HOLDS(hmq_learner_observe(learner, name, name_len, 1 + name_len % 3));
            messages += 1 + name_len % 3;
        }
        free(name);
    }
    HOLDS(hmq_learner_messages(learner) == messages && hmq_learner_nodes(learner) <= options.max_nodes);
    hmq_patterns *set;
    for (uint32_t most = 0; most <= options.max_children; most++) {
        HOLDS(hmq_learner_patterns(learner, most, &set));
        if (set) same_set(set);
        hmq_patterns_free(set);
    }
    hmq_learner_free(learner);
}
