/* history_replay.c - HISTORY.REPLAY: what a filter matches, in the order of each shard, page by page.
 *
 * A reader's place is a cursor for each shard (history_cursor.h), joined by commas.  They are read in the order in which
 * they stand; those that a page did not come to stand first in the next one, so none waits for ever. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../src/history_cursor.h"
#include "../src/topic.h"
#include "errors.h"
#include "history.h"
#include "history_read.h"
#include "index.h"

#define DEFAULT_COUNT 1000
#define MAX_COUNT 100000
#define DEFAULT_BYTES (8 << 20)
#define MAX_BYTES (256 << 20)
#define VISITS_OF_A_MESSAGE 10 /* by default, so many are visited for each that may be returned */
#define MAX_VISITS 10000000
#define POSTINGS_OF_A_VISIT 4 /* entries of posting lists that cost about what reading a message does */
#define MAX_MS 9007199254740991LL

typedef struct replay {
    server_ctx *ctx;
    const history_store *store;
    hmq_slice filter;
    uint64_t from_us, to_us, now_us; /* from 0: the earliest */
    long long from_sequence;         /* 0: not said */
    long long count, bytes, visits;  /* that are left */
    uint64_t budget;
    hmq_cursor cursors[HISTORY_SHARDS_MAX]; /* sequence 0: not begun */
    size_t shards;
    bool replied;                    /* the head of the reply */
    long returned;
    uint64_t visited, missed;
    uint8_t *buffer;
    size_t room;
} replay;

typedef enum page { PAGE_END, PAGE_LIMIT, PAGE_ERROR } page;

/* ---- what is returned -------------------------------------------------------------------------------------- */

static void begin_reply(replay *r) {
    if (r->replied) return;
    sv.ReplyWithArray(r->ctx, 5);
    sv.ReplyWithArray(r->ctx, SERVER_POSTPONED_LEN);
    r->replied = true;
}

static void reply_entry(replay *r, unsigned shard, const history_entry *entry, size_t size) {
    if (size > r->room) {
        r->buffer = sv.Realloc(r->buffer, size);
        r->room = size;
    }
    hmq_record_encode(&entry->record, r->buffer, size);
    begin_reply(r);
    sv.ReplyWithArray(r->ctx, 4);
    sv.ReplyWithLongLong(r->ctx, shard);
    sv.ReplyWithLongLong(r->ctx, (long long)entry->sequence);
    sv.ReplyWithLongLong(r->ctx, (long long)entry->time_us);
    sv.ReplyWithStringBuffer(r->ctx, (const char *)r->buffer, size);
    r->returned++;
    r->count--;
    r->bytes -= (long long)size;
}

static bool is_wanted(const replay *r, const history_entry *entry) {
    const hmq_record *record = &entry->record;
    if (record->expires_ms > 0 && (uint64_t)record->expires_ms <= r->now_us / 1000) return false;
    return hmq_topic_matches((const char *)r->filter.data, r->filter.len, (const char *)record->topic.data,
                             record->topic.len);
}

/* May this entry still be looked at, and, if it has so many bytes, returned? */
static bool has_room(const replay *r, size_t size) {
    return r->count > 0 && r->visits > 0 && r->bytes > 0 && (r->returned == 0 || (long long)size <= r->bytes);
}

/* ---- one shard --------------------------------------------------------------------------------------------- */

static page reply_corrupt(replay *r, unsigned shard, uint64_t sequence) {
    if (r->replied) return PAGE_LIMIT; /* what comes before is given; the next page says it */
    reply_error(r->ctx, ERROR_WRONGTYPE,
                "history of store %s, shard %u: what is kept at sequence number %" PRIu64 " was changed by others",
                shown_slice(r->store->name), shard, sequence);
    return PAGE_ERROR;
}

/* From cursor->sequence to the end of its epoch. */
static page read_epoch(replay *r, const history_shard *state, hmq_cursor *cursor, bool *behind) {
    history_epoch epoch;
    if (!history_epoch_of_sequence(r->ctx, state, cursor->sequence, &epoch))
        return reply_corrupt(r, cursor->shard, cursor->sequence);
    cursor->epoch = epoch.epoch;
    cursor->generation = epoch.generation;
    history_reader *reader = history_reader_open(r->ctx, state, &epoch, r->filter, cursor->sequence);
    if (reader == NULL) return reply_corrupt(r, cursor->shard, cursor->sequence);
    page result = PAGE_END;
    history_step step = HISTORY_END;
    history_entry entry;
    while (result == PAGE_END && (step = history_reader_next(reader, &entry, &r->budget)) == HISTORY_FOUND) {
        *behind = entry.time_us > r->to_us;
        if (*behind) break;
        bool wanted = is_wanted(r, &entry);
        size_t size = wanted ? hmq_record_size(&entry.record) : 0;
        if (!has_room(r, size)) {
            result = PAGE_LIMIT;
            break;
        }
        r->visits--;
        r->visited++;
        if (wanted) reply_entry(r, cursor->shard, &entry, size);
        cursor->sequence = entry.sequence + 1;
        cursor->time_us = entry.time_us;
    }
    if (step == HISTORY_END || step == HISTORY_LIMIT) {
        cursor->sequence = history_reader_position(reader);
        if (step == HISTORY_LIMIT) result = PAGE_LIMIT;
    }
    history_reader_close(reader);
    return step == HISTORY_CORRUPT ? reply_corrupt(r, cursor->shard, cursor->sequence) : result;
}

/* Where the shard is read from: past what retention has taken or hides. */
static bool find_start(replay *r, const history_shard *state, hmq_cursor *cursor) {
    history_epoch oldest;
    if (!history_epoch_read(r->ctx, state, state->oldest, &oldest)) return false;
    uint64_t visible = oldest.first, age_us = (uint64_t)r->store->age_s * 1000000, at;
    if (age_us > 0 && age_us < r->now_us) {
        if (!history_sequence_at(r->ctx, state, r->now_us - age_us, &at)) return false;
        if (at > visible) visible = at;
    }
    if (cursor->sequence == 0) {
        cursor->sequence = visible;
        if (r->from_us > 0 && !history_sequence_at(r->ctx, state, r->from_us, &cursor->sequence)) return false;
        if (cursor->sequence < visible) cursor->sequence = visible;
    } else if (cursor->sequence > state->last.sequence + 1 && cursor->time_us > 0) {
        /* The numbers behind were lost with a primary: others have or will have them, at later times. */
        if (!history_sequence_at(r->ctx, state, cursor->time_us + 1, &cursor->sequence)) return false;
    }
    if (cursor->sequence < visible) {
        r->missed += visible - cursor->sequence;
        cursor->sequence = visible;
    }
    return true;
}

static page read_shard(replay *r, hmq_cursor *cursor) {
    history_shard state;
    if (!history_shard_read(r->ctx, r->store, cursor->shard, &state, !r->replied))
        return r->replied ? PAGE_LIMIT : PAGE_ERROR;
    if (!state.exists) {
        if (cursor->sequence == 0) cursor->sequence = 1;
        return PAGE_END;
    }
    if (!find_start(r, &state, cursor)) return reply_corrupt(r, cursor->shard, cursor->sequence);
    page result = PAGE_END;
    bool behind = false;
    while (result == PAGE_END && !behind && cursor->sequence <= state.last.sequence) {
        if (!has_room(r, 0) || r->budget == 0) return PAGE_LIMIT;
        result = read_epoch(r, &state, cursor, &behind);
    }
    return result;
}

/* ---- reading the command ----------------------------------------------------------------------------------- */

static bool take_from(args *a, replay *r, bool *said) {
    long long ms;
    *said = true;
    if (args_take_word(a, "SEQ")) return args_number(a, "SEQ", 1, INT64_MAX, &r->from_sequence);
    if (args_take_word(a, "EARLIEST")) return true;
    if (!args_number(a, "FROM", 0, MAX_MS, &ms)) return false;
    r->from_us = (uint64_t)ms * 1000;
    return true;
}

static bool choose_store(args *a, replay *r, server_string *name) {
    const history_stores *stores = index_of(a->ctx)->histories;
    if (name != NULL) {
        r->store = history_stores_find(stores, slice_of(name));
        if (r->store == NULL) reply_error(a->ctx, ERROR_SYNTAX, "there is no store %s", shown(name));
        return r->store != NULL;
    }
    size_t count = history_stores_of_filter(stores, r->filter, &r->store);
    if (count == 0) reply_error(a->ctx, ERROR_SYNTAX, "no store keeps topics of the filter %s", shown_slice(r->filter));
    if (count > 1)
        reply_error(a->ctx, ERROR_SYNTAX, "%zu stores keep topics of the filter %s: STORE with one of them expected",
                    count, shown_slice(r->filter));
    return count == 1;
}

static bool bad_cursor(args *a, const char *why) {
    reply_error(a->ctx, ERROR_SYNTAX, "CURSOR: %s", why);
    return false;
}

static bool take_cursors(args *a, replay *r, hmq_slice text, long long shard) {
    bool seen[HISTORY_SHARDS_MAX] = {false};
    size_t count = 0, at = 0;
    while (at <= text.len && count < r->shards) {
        const uint8_t *end = memchr(text.data + at, ',', text.len - at);
        size_t len = end == NULL ? text.len - at : (size_t)(end - text.data) - at;
        hmq_cursor *c = &r->cursors[count++];
        if (hmq_cursor_decode((const char *)text.data + at, len, c) != 0 || c->sequence == 0)
            return bad_cursor(a, "what HISTORY.REPLAY replied expected, unchanged");
        if (c->shard >= r->store->shards || seen[c->shard] || (shard >= 0 && c->shard != shard))
            return bad_cursor(a, "it is of other shards than are asked for");
        seen[c->shard] = true;
        at += len + 1;
    }
    return (at > text.len && count == r->shards) || bad_cursor(a, "it is of other shards than are asked for");
}

static bool begin_cursors(args *a, replay *r, server_string *cursor, bool from_said, long long shard) {
    r->shards = shard >= 0 ? 1 : r->store->shards;
    if (cursor != NULL && from_said) return bad_cursor(a, "not together with FROM or SEQ");
    if (cursor != NULL) return take_cursors(a, r, slice_of(cursor), shard);
    if (r->from_sequence > 0 && r->shards > 1) {
        reply_error(a->ctx, ERROR_SYNTAX, "SEQ: SHARD expected, since the store %s has %u shards",
                    shown_slice(r->store->name), r->store->shards);
        return false;
    }
    for (size_t i = 0; i < r->shards; i++) {
        r->cursors[i] =
            (hmq_cursor){.shard = (uint16_t)(shard >= 0 ? (size_t)shard : i), .sequence = (uint64_t)r->from_sequence};
    }
    return true;
}

static bool parse_replay(args *a, replay *r) {
    server_string *filter, *store = NULL, *cursor = NULL;
    long long to_ms = -1, visits = 0, shard = -1;
    bool from_said = false, right = true;
    if (!args_string(a, "the topic filter", &filter)) return false;
    r->filter = slice_of(filter);
    hmq_topic_error error = hmq_topic_check_filter((const char *)r->filter.data, r->filter.len);
    hmq_slice group, inner;
    if (error != HMQ_TOPIC_OK) {
        reply_invalid_topic(a->ctx, "the topic filter", filter, error);
        return false;
    }
    if (hmq_topic_split_share((const char *)r->filter.data, r->filter.len, &group, &inner)) {
        reply_error(a->ctx, ERROR_INVALIDTOPIC,
                    "the topic filter %s is that of a shared subscription: an ordinary one expected", shown(filter));
        return false;
    }
    while (right && args_left(a)) {
        if (args_take_word(a, "FROM"))
            right = take_from(a, r, &from_said);
        else if (args_take_word(a, "SEQ"))
            right = from_said = args_number(a, "SEQ", 1, INT64_MAX, &r->from_sequence);
        else if (args_take_word(a, "STORE"))
            right = args_string(a, "STORE", &store);
        else if (args_take_word(a, "TO"))
            right = args_number(a, "TO", 0, MAX_MS, &to_ms);
        else if (args_take_word(a, "COUNT"))
            right = args_number(a, "COUNT", 1, MAX_COUNT, &r->count);
        else if (args_take_word(a, "BYTES"))
            right = args_number(a, "BYTES", 1, MAX_BYTES, &r->bytes);
        else if (args_take_word(a, "VISIT"))
            right = args_number(a, "VISIT", 1, MAX_VISITS, &visits);
        else if (args_take_word(a, "SHARD"))
            right = args_number(a, "SHARD", 0, HISTORY_SHARDS_MAX - 1, &shard);
        else if (args_take_word(a, "CURSOR"))
            right = args_string(a, "CURSOR", &cursor);
        else
            right = args_end(a);
    }
    if (!right || !choose_store(a, r, store)) return false;
    if (shard >= (long long)r->store->shards) {
        reply_error(a->ctx, ERROR_SYNTAX, "SHARD is %lld: 0 to %u expected", shard, r->store->shards - 1);
        return false;
    }
    if (to_ms >= 0) r->to_us = (uint64_t)to_ms * 1000 + 999;
    r->visits = visits > 0 ? visits : r->count * VISITS_OF_A_MESSAGE;
    r->budget = (uint64_t)r->visits * POSTINGS_OF_A_VISIT;
    return begin_cursors(a, r, cursor, from_said, shard);
}

/* ---- the command ------------------------------------------------------------------------------------------- */

/* The cursors from `first` on, then those before it. */
static void reply_cursors(const replay *r, size_t first) {
    char text[HISTORY_SHARDS_MAX * (HMQ_CURSOR_MAX_BYTES + 1)];
    size_t used = 0;
    for (size_t i = 0; i < r->shards; i++) {
        hmq_cursor cursor = r->cursors[(first + i) % r->shards];
        if (cursor.sequence == 0) cursor.sequence = 1; /* a shard that this page did not come to */
        if (i > 0) text[used++] = ',';
        used += hmq_cursor_encode(&cursor, text + used);
    }
    sv.ReplyWithStringBuffer(r->ctx, text, used);
}

/* A shard that was not come to must begin where this replay does, not where the next page happens to. */
static bool begin_shards(replay *r) {
    for (size_t i = 0; i < r->shards; i++) {
        history_shard state;
        if (r->cursors[i].sequence > 0) continue;
        if (!history_shard_read(r->ctx, r->store, r->cursors[i].shard, &state, true)) return false;
        if (!state.exists)
            r->cursors[i].sequence = 1;
        else if (!find_start(r, &state, &r->cursors[i])) {
            reply_corrupt(r, r->cursors[i].shard, 0);
            return false;
        }
    }
    return true;
}

static void run(replay *r) {
    size_t i = 0;
    page result = PAGE_END;
    if (!begin_shards(r)) return;
    for (; i < r->shards; i++) {
        result = read_shard(r, &r->cursors[i]);
        if (result != PAGE_END) break;
    }
    if (result == PAGE_ERROR) return;
    begin_reply(r);
    sv.ReplySetArrayLength(r->ctx, r->returned);
    reply_cursors(r, result == PAGE_END ? 0 : i + 1);
    sv.ReplyWithLongLong(r->ctx, result == PAGE_END);
    sv.ReplyWithLongLong(r->ctx, (long long)r->visited);
    sv.ReplyWithLongLong(r->ctx, (long long)r->missed);
}

int history_replay_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 2) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    replay r = {
        .ctx = ctx, .to_us = UINT64_MAX, .now_us = history_now_us(), .count = DEFAULT_COUNT, .bytes = DEFAULT_BYTES};
    if (parse_replay(&a, &r)) run(&r);
    sv.Free(r.buffer);
    return SERVER_OK;
}
