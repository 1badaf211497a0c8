/* read.c - reads an epoch. */
#include "history/read.h"

#include <inttypes.h>
#include <string.h>

#include "topic/topic.h"
#include "server/memory.h"
#include "history/index.h"
#include "history/merge.h"
#include "history/plan.h"
#include "history/epoch.h"
#include "history/live.h"

#define NEVER UINT64_MAX
#define STEPS_MAX 4 /* entries that an iterator skips instead of starting again */
#define POSTINGS_OF_A_SCAN 64 /* per opened list, regardless of the budget: opening costs more */
#define PARTS_OF_A_BUDGET 4   /* one of several scans gets the remaining budget in this many parts */

/* One pattern of the plan. */
typedef struct source {
    uint32_t pattern;
    server_key *log;
    bool scans;
    bool iterates;   /* the log has an iterator */
    uint64_t at;     /* the number of the last entry that it read, if the source scans */
    bool is_bound;    /* `next` is only a bound: the scan must continue there */
    hmq_plan_slot fixed[HMQ_PATTERNS_MAX_SLOTS];
    uint64_t *tail;  /* numbers in the epoch that are in the tail, in order */
    size_t tail_count, tail_room, tail_at;
    uint32_t fixed_count;
    hmq_scan scan;
    hmq_scan_list *lists;
    server_key **keys;
    uint32_t list_count;
    uint64_t next;   /* sequence number; NEVER: no more */
    uint64_t time_us; /* of it, if it comes from the iterator */
    server_string *value;
} source;

struct history_reader {
    server_ctx *ctx;
    const history_shard *state;
    history_epoch epoch;
    uint64_t end; /* first sequence number after the epoch */
    const hmq_patterns *set;
    source *sources;
    size_t count, room;
    size_t scans; /* sources that scan */
    bool has_begun;   /* the budget has its minimum */
    hmq_merge *order; /* of the sources, by their next numbers */
    uint32_t *of_pattern; /* while the tail is collected: place in `sources` plus 1 */
    uint64_t from;
    uint64_t position;
    bool corrupt;
    char *topic;
};

/* ---- logs -------------------------------------------------------------------------------------------------- */

/* Advances the log's iterator; false at its end. */
static bool take_entry(source *s, uint64_t *sequence) {
    server_stream_id id;
    long fields;
    if (sv.StreamIteratorNextID(s->log, &id, &fields) != SERVER_OK) return false;
    server_string *field, *value;
    for (long i = 0; sv.StreamIteratorNextField(s->log, &field, &value) == SERVER_OK; i++) {
        sv.FreeString(NULL, field);
        if (i == 0)
            s->value = value;
        else
            sv.FreeString(NULL, value);
    }
    *sequence = id.first;
    s->time_us = id.second;
    return true;
}

static void forget_value(source *s) {
    if (s->value != NULL) sv.FreeString(NULL, s->value);
    s->value = NULL;
}

static void seek_log(source *s, uint64_t from) {
    server_stream_id first = {from, 0}, last = {UINT64_MAX, UINT64_MAX};
    s->iterates = sv.StreamIteratorStart(s->log, 0, &first, &last) == SERVER_OK;
    if (!s->iterates || !take_entry(s, &s->next)) s->next = NEVER;
}

/* Reads the message with this number; false if the log has none.  Close to the last read message the iterator advances,
 * which is cheaper than a new search. */
static bool read_one(source *s, uint64_t sequence) {
    bool steps = s->iterates && sequence > s->at && sequence - s->at <= STEPS_MAX;
    if (!steps) {
        server_stream_id first = {sequence, 0}, last = {UINT64_MAX, UINT64_MAX};
        if (s->iterates) sv.StreamIteratorStop(s->log);
        s->iterates = sv.StreamIteratorStart(s->log, 0, &first, &last) == SERVER_OK;
        s->at = 0;
    }
    while (s->iterates && s->at < sequence) {
        forget_value(s);
        if (!take_entry(s, &s->at)) s->at = NEVER;
    }
    return s->at == sequence && s->value != NULL;
}

/* ---- scans ------------------------------------------------------------------------------------------------- */

/* The next number of the tail, after the lists have been read to their end. */
static void seek_tail(const history_reader *r, source *s, uint64_t sequence) {
    uint64_t number = sequence - r->epoch.first + 1;
    while (s->tail_at < s->tail_count && s->tail[s->tail_at] < number) s->tail_at++;
    s->next = s->tail_at < s->tail_count ? r->epoch.first + s->tail[s->tail_at] - 1 : NEVER;
}

static void seek_scan(history_reader *r, source *s, uint64_t sequence, uint64_t *budget) {
    uint64_t number;
    s->is_bound = false;
    switch (hmq_scan_next(&s->scan, sequence - r->epoch.first + 1, &number, budget)) {
    case HMQ_POSTINGS_FOUND: s->next = r->epoch.first + number - 1; break;
    case HMQ_POSTINGS_LIMIT:
        s->next = r->epoch.first + number - 1;
        s->is_bound = true;
        break;
    case HMQ_POSTINGS_END: seek_tail(r, s, sequence); break;
    case HMQ_POSTINGS_CORRUPT:
        r->corrupt = true;
        s->next = NEVER;
        break;
    }
}

/* The same with a part of the budget if there are other scans.  Otherwise the first scans would use it up, the others would
 * never advance, and the slowest scan determines the position of all. */
static void scan_from(history_reader *r, source *s, uint64_t sequence, uint64_t *budget) {
    uint64_t part = r->scans <= 1 ? *budget : *budget / (PARTS_OF_A_BUDGET * r->scans) + 1, left = part;
    seek_scan(r, s, sequence, &left);
    *budget -= part - left;
}

static bool open_lists(history_reader *r, source *s, const hmq_plan_pattern *plan) {
    unsigned pages = hmq_index_page(r->end - r->epoch.first) + 1;
    size_t most = (size_t)plan->fixed * pages;
    s->lists = sv.Calloc(most, sizeof *s->lists);
    s->keys = sv.Calloc(most, sizeof *s->keys);
    for (uint32_t i = 0; i < plan->fixed; i++) {
        for (unsigned page = 0; page < pages; page++) {
            const hmq_plan_slot *slot = &plan->slots[i];
            hmq_index_place at = hmq_index_place_of(slot->hash, slot->bits, page);
            server_string *name =
                history_key(r->state->store, r->state->shard, "_%" PRIu32 "_%" PRIu32 "_%u_%u_%" PRIu32, r->epoch.epoch,
                            plan->pattern, slot->slot, page, at.group);
            hmq_slice bytes;
            bool right = history_open_string(r->ctx, name, SERVER_READ, &s->keys[s->list_count], &bytes);
            sv.FreeString(NULL, name);
            if (!right) return false;
            hmq_scan_list_open(&s->lists[s->list_count++], slot, page, bytes.data, bytes.len);
        }
    }
    return hmq_scan_begin(&s->scan, s->lists, s->list_count);
}

/* ---- opening ----------------------------------------------------------------------------------------------- */

static bool take_pattern(void *context, const hmq_plan_pattern *plan) {
    history_reader *r = context;
    server_string *name =
        history_key(r->state->store, r->state->shard, "_%" PRIu32 "_%" PRIu32, r->epoch.epoch, plan->pattern);
    server_key *log = sv.OpenKey(r->ctx, name, SERVER_READ);
    sv.FreeString(NULL, name);
    if (log == NULL) return true; /* the log is empty */
    if (sv.KeyType(log) != SERVER_STREAM) {
        r->corrupt = true;
        sv.CloseKey(log);
        return false;
    }
    r->sources = array_reserve(r->sources, &r->room, r->count, 1, 8, sizeof *r->sources);
    source *s = &r->sources[r->count++];
    *s = (source){.pattern = plan->pattern, .log = log, .scans = plan->fixed > 0, .fixed_count = plan->fixed};
    memcpy(s->fixed, plan->slots, plan->fixed * sizeof *s->fixed);
    if (s->scans && !open_lists(r, s, plan)) r->corrupt = true;
    r->scans += s->scans;
    return !r->corrupt;
}

static void take_all(history_reader *r) {
    hmq_plan_pattern plan = {0};
    for (plan.pattern = 0; plan.pattern < hmq_patterns_count(r->set); plan.pattern++) {
        if (!take_pattern(r, &plan)) return;
    }
}

/* The first sequence number after the epoch; false if the next epoch is unknown. */
static bool find_end(server_ctx *ctx, const history_shard *state, const history_epoch *epoch, uint64_t *end) {
    history_epoch after;
    *end = state->last.sequence + 1;
    if (epoch->epoch >= state->epoch) return true;
    bool found = history_epoch_read(ctx, state, epoch->epoch + 1, &after);
    if (found) *end = after.first;
    return found;
}

/* Keeps the number of a message that is in all fixed slots of its pattern's plan. */
static void take_tail(void *context, uint32_t pattern, uint64_t number, const history_posting *postings, size_t count) {
    history_reader *r = context;
    if (r->of_pattern[pattern] == 0) return;
    source *s = &r->sources[r->of_pattern[pattern] - 1];
    for (uint32_t i = 0; i < s->fixed_count; i++) {
        if (!history_tail_has(postings, count, &s->fixed[i])) return;
    }
    s->tail = array_reserve(s->tail, &s->tail_room, s->tail_count, 1, 16, sizeof *s->tail);
    s->tail[s->tail_count++] = number;
}

/* The remembered state, if it is the one that the reader's state came from: nobody has written in between. */
static const history_live *live_of(const history_reader *r) {
    const history_shard *state = r->state;
    const history_live *live = state->store->live[state->shard];
    if (live != NULL && live->state.last.sequence == state->last.sequence &&
        live->state.indexed.sequence == state->indexed.sequence)
        return live;
    return history_live_of(r->ctx, state->store, state->shard, false);
}

static void gather_tail(history_reader *r) {
    const history_live *live = live_of(r);
    if (live == NULL || live->tail.count == 0) return;
    bool scans = false;
    r->of_pattern = sv.Calloc(hmq_patterns_count(r->set), sizeof *r->of_pattern);
    for (size_t i = 0; i < r->count; i++) {
        if (r->sources[i].scans) r->of_pattern[r->sources[i].pattern] = (uint32_t)i + 1;
        scans = scans || r->sources[i].scans;
    }
    if (scans) history_tail_each(&live->tail, take_tail, r);
    sv.Free(r->of_pattern);
}

static void put_in_order(history_reader *r) {
    r->order = sv.Alloc((r->count + 1) * sizeof *r->order);
    for (size_t i = 0; i < r->count; i++) r->order[i] = (hmq_merge){r->sources[i].next, (uint32_t)i};
    hmq_merge_begin(r->order, r->count);
}

history_reader *history_reader_open(server_ctx *ctx, const history_shard *state, const history_epoch *epoch,
                                    hmq_slice filter, uint64_t from) {
    const hmq_patterns *set = history_patterns(ctx, state->store, state->shard, epoch->generation);
    uint64_t end;
    if (set == NULL || !find_end(ctx, state, epoch, &end)) return NULL;
    history_reader *r = sv.Calloc(1, sizeof *r);
    *r = (history_reader){.ctx = ctx, .state = state, .epoch = *epoch, .set = set, .end = end};
    r->from = r->position = from < epoch->first ? epoch->first : from;
    r->topic = sv.Alloc(HMQ_TOPIC_MAX_BYTES);
    if (filter.len == 0)
        take_all(r);
    else
        hmq_plan_each(set, &state->store->seed, (const char *)filter.data, filter.len, take_pattern, r);
    if (epoch->epoch == state->epoch) gather_tail(r);
    for (size_t i = 0; i < r->count && !r->corrupt; i++) {
        source *s = &r->sources[i];
        s->next = r->from;
        s->is_bound = s->scans; /* the first step has a budget and finds the position */
        if (!s->scans) seek_log(s, r->from);
    }
    put_in_order(r);
    return r;
}

void history_reader_close(history_reader *r) {
    for (size_t i = 0; i < r->count; i++) {
        source *s = &r->sources[i];
        forget_value(s);
        if (s->iterates) sv.StreamIteratorStop(s->log);
        for (uint32_t k = 0; k < s->list_count; k++) {
            if (s->keys[k] != NULL) sv.CloseKey(s->keys[k]);
        }
        sv.Free(s->tail);
        sv.Free(s->keys);
        sv.Free(s->lists);
        sv.CloseKey(s->log);
    }
    sv.Free(r->sources);
    sv.Free(r->order);
    sv.Free(r->topic);
    sv.Free(r);
}

/* ---- going through ----------------------------------------------------------------------------------------- */

static source *smallest(const history_reader *r) {
    return r->count == 0 || r->order[0].next == NEVER ? NULL : &r->sources[r->order[0].source];
}

/* Restores the order after the smallest source has advanced. */
static void settle(history_reader *r, const source *s) {
    r->order[0].next = s->next;
    hmq_merge_restore_order(r->order, r->count);
}

/* Reads the message from the source's value; false if it is not a message. */
static bool take_record(history_reader *r, const source *s, history_entry *entry) {
    if (s->value == NULL) return false;
    hmq_slice value = slice_of(s->value);
    if (hmq_record_decode(value.data, value.len, &entry->record) != 0) return false;
    if (entry->record.type != HMQ_RECORD_PUBLISH) return false;
    int64_t len = hmq_patterns_restore(r->set, s->pattern, (const char *)entry->record.topic.data,
                                       entry->record.topic.len, r->topic, HMQ_TOPIC_MAX_BYTES);
    if (len <= 0 || len > HMQ_TOPIC_MAX_BYTES) return false;
    entry->record.topic = (hmq_slice){(const uint8_t *)r->topic, (size_t)len};
    return true;
}

/* Moves past the last yielded message. */
static void advance_source(history_reader *r, source *s, uint64_t *budget) {
    forget_value(s);
    if (s->scans)
        scan_from(r, s, s->next + 1, budget);
    else if (!take_entry(s, &s->next))
        s->next = NEVER;
}

history_step history_reader_next(history_reader *r, history_entry *entry, uint64_t *budget) {
    if (!r->has_begun && *budget < r->scans * POSTINGS_OF_A_SCAN) *budget = r->scans * POSTINGS_OF_A_SCAN;
    r->has_begun = true;
    for (;;) {
        source *s = r->corrupt ? NULL : smallest(r);
        if (r->corrupt) return HISTORY_CORRUPT;
        if (s == NULL || s->next >= r->end) {
            r->position = r->end;
            return HISTORY_END;
        }
        if (s->is_bound || s->next < r->position) { /* only a bound, or already yielded by the previous step */
            if (*budget == 0 && s->scans) {
                if (s->next >= r->position) r->position = s->next;
                return HISTORY_LIMIT;
            }
            if (s->is_bound)
                scan_from(r, s, s->next, budget);
            else
                advance_source(r, s, budget);
            settle(r, s);
            continue;
        }
        if (s->scans && !read_one(s, s->next)) { /* deleted by hand */
            r->position = s->next + 1;
            continue;
        }
        entry->sequence = s->next;
        entry->time_us = s->time_us;
        entry->pattern = s->pattern;
        r->position = s->next + 1;
        return take_record(r, s, entry) ? HISTORY_FOUND : HISTORY_CORRUPT;
    }
}

uint64_t history_reader_position(const history_reader *r) {
    return r->position;
}

/* ---- times ------------------------------------------------------------------------------------------------- */

static bool find_in_epoch(server_ctx *ctx, const history_shard *state, const history_epoch *epoch, uint64_t time_us,
                          uint64_t *sequence) {
    server_string *name = history_key(state->store, state->shard, "_%" PRIu32 "_marks", epoch->epoch);
    server_key *key;
    hmq_slice marks;
    uint64_t from = epoch->first, to, budget = 0;
    if (history_open_string(ctx, name, SERVER_READ, &key, &marks) && marks.len > 0)
        hmq_marks_find(marks.data, marks.len, time_us, &from, &to);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    history_reader *r = history_reader_open(ctx, state, epoch, (hmq_slice){NULL, 0}, from);
    if (r == NULL) return false;
    history_entry entry;
    history_step step;
    while ((step = history_reader_next(r, &entry, &budget)) == HISTORY_FOUND && entry.time_us < time_us) {}
    *sequence = step == HISTORY_FOUND ? entry.sequence : r->end;
    history_reader_close(r);
    return step == HISTORY_FOUND || step == HISTORY_END;
}

bool history_sequence_at(server_ctx *ctx, const history_shard *state, uint64_t time_us, uint64_t *sequence) {
    history_epoch epoch;
    *sequence = 1;
    if (!state->exists) return true;
    if (!history_epoch_of_time(ctx, state, time_us, &epoch)) return false;
    *sequence = epoch.first;
    return time_us <= epoch.begun_us || find_in_epoch(ctx, state, &epoch, time_us, sequence);
}
