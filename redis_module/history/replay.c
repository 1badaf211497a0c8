/* replay.c - HISTORY.REPLAY: replies the messages of a filter, in the order of each shard, page by page.
 *
 * A reader's position is one cursor per shard (history/cursor.h), joined by commas.  Shards are read in the order of the
 * cursors.  Those that a page did not reach come first in the next page, so none waits forever.
 *
 * A page is collected before the reply begins.  Reading opens keys (of the next epoch, of other shards); opening an expired
 * key causes an event, and a server before 7.2 may push it to this client in the middle of a reply.  A page exceeds COUNT
 * and BYTES by one message at most. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/errors.h"
#include "server/memory.h"
#include "server/numbers.h"
#include "index/index.h"
#include "index/subscription.h"
#include "history/filters.h"
#include "history/history.h"
#include "history/live.h"
#include "history/page.h"
#include "history/runs.h"
#include "history/slots.h"

#define DEFAULT_COUNT 1000
#define MAX_COUNT 100000
#define DEFAULT_BYTES (8 << 20)
#define MAX_BYTES (256 << 20)
#define MAX_VISITS 10000000
#define MAX_MS 9007199254740991LL
#define PAGE_KEPT_BYTES (4 << 20)

typedef struct replay {
    history_page page;
    long long from_sequence; /* 0: not given */
    long long count, bytes;  /* remaining */
    hmq_cursor cursors[HISTORY_SHARDS_MAX]; /* sequence 0: not begun */
    uint64_t unnamed;                       /* bit n: cursors[n] was given, and does not name its store */
    size_t shards;
    long returned;
} replay;

#define FIRST_RECORD_BYTES 4096

/* One message of the page; its record follows that of the previous one. */
typedef struct gathered {
    uint32_t shard;
    uint64_t sequence, time_us;
    size_t size;
} gathered;

/* The page; its memory is kept for the next command if it is small. */
static struct {
    gathered *entries;
    size_t entry_room;
    uint8_t *records;
    size_t used, record_room;
} page;

/* ---- what is returned -------------------------------------------------------------------------------------- */

static void gather(replay *r, unsigned shard, const history_entry *entry, size_t size) {
    page.entries = array_reserve(page.entries, &page.entry_room, (size_t)r->returned, 1, 64, sizeof *page.entries);
    page.records = array_reserve(page.records, &page.record_room, page.used, size, FIRST_RECORD_BYTES, 1);
    hmq_record_encode(&entry->record, page.records + page.used, size);
    page.used += size;
    page.entries[r->returned++] = (gathered){shard, entry->sequence, entry->time_us, size};
    r->page.reply = false; /* the next page reports later errors */
    r->count--;
    r->bytes -= (long long)size;
}

static void reply_entries(const replay *r) {
    const uint8_t *record = page.records;
    sv.ReplyWithArray(r->page.ctx, r->returned);
    for (long i = 0; i < r->returned; i++) {
        const gathered *one = &page.entries[i];
        sv.ReplyWithArray(r->page.ctx, 4);
        sv.ReplyWithLongLong(r->page.ctx, one->shard);
        sv.ReplyWithLongLong(r->page.ctx, (long long)one->sequence);
        sv.ReplyWithLongLong(r->page.ctx, (long long)one->time_us);
        sv.ReplyWithStringBuffer(r->page.ctx, (const char *)record, one->size);
        record += one->size;
    }
}

static void forget_entries(void) {
    page.used = 0;
    if (page.entry_room * sizeof *page.entries + page.record_room <= PAGE_KEPT_BYTES) return;
    sv.Free(page.entries);
    sv.Free(page.records);
    memset(&page, 0, sizeof page);
}

/* May one more entry be visited?  With an entry: takes it, if there is room. */
static bool take_entry(void *context, unsigned shard, const history_entry *entry) {
    replay *r = context;
    size_t size = entry == NULL ? 0 : hmq_record_size(&entry->record);
    bool room = r->count > 0 && r->bytes > 0 && (r->returned == 0 || (long long)size <= r->bytes);
    if (room && entry != NULL) gather(r, shard, entry, size);
    return room;
}

static void reply_corrupt(const replay *r, const hmq_cursor *cursor) {
    reply_error(r->page.ctx, ERROR_HISTORY_FOREIGN_AT, shown_slice(r->page.store->name), cursor->shard,
                cursor->sequence);
}

/* ---- reading the command ----------------------------------------------------------------------------------- */

static bool take_from(args *a, replay *r, bool *has_start) {
    long long ms;
    *has_start = true;
    if (args_take_word(a, "SEQ")) return args_number(a, "SEQ", 1, INT64_MAX, &r->from_sequence);
    if (args_take_word(a, "EARLIEST")) return true;
    if (!args_number(a, "FROM", 0, MAX_MS, &ms)) return false;
    r->page.from_us = (uint64_t)ms * 1000;
    return true;
}

/* In a cluster no node has all shards: a command for one shard is redirected to its node. */
static bool check_shard(args *a, const replay *r, long long shard) {
    if (!can.cluster) return true;
    if (shard >= 0) return history_check_here(a->ctx, r->page.store, (unsigned)shard);
    reply_error(a->ctx, ERROR_SHARD_MISSING, shown_slice(r->page.store->name), r->page.store->shards - 1);
    return false;
}

static bool choose_store(args *a, replay *r, int store_at, int shard_at) {
    const history_stores *stores = index_of(a->ctx)->histories;
    if (store_at > 0) {
        args of = *a;
        of.at = store_at;
        r->page.store = history_take_store(&of, shard_at);
        return r->page.store != NULL;
    }
    size_t count = history_stores_of_filter(stores, r->page.filter, &r->page.store);
    if (count == 0) reply_error(a->ctx, ERROR_STORE_UNKNOWN_OF_FILTER, shown_slice(r->page.filter));
    if (count > 1) reply_error(a->ctx, ERROR_STORE_AMBIGUOUS, count, shown_slice(r->page.filter));
    return count == 1;
}

/* Skips an argument that is read later. */
static bool take_place(args *a, const char *name, int *at) {
    server_string *text;
    *at = a->at;
    return args_string(a, name, &text);
}

static bool bad_cursor(args *a, const char *why) {
    reply_error(a->ctx, ERROR_CURSOR_INVALID, why);
    return false;
}

static bool is_of_other_store(const replay *r, const hmq_cursor_store *of) {
    if (of->name_len == 0 || history_store_is_of(r->page.store, of)) return false;
    hmq_slice name = {(const uint8_t *)of->name, of->name_len}, own = r->page.store->name;
    bool was_created_again = hmq_slice_equal(name, own);
    uint32_t own_id = history_store_identity(r->page.store).id;
    reply_error(r->page.ctx, ERROR_CURSOR_OF_OTHER_STORE, was_created_again ? "an earlier" : "the", shown_slice(name),
                of->id, shown_slice(own), own_id, was_created_again ? ", which was created since" : "");
    return true;
}

static bool are_first(const bool *seen, size_t count) {
    while (count > 0 && seen[count - 1]) count--;
    return count == 0;
}

/* Cursors from a time with fewer shards lack the new shards, which are read from their beginning. */
static bool take_cursors(args *a, replay *r, hmq_slice text, long long shard) {
    bool seen[HISTORY_SHARDS_MAX] = {false};
    size_t count = 0, at = 0;
    while (at <= text.len && count < r->shards) {
        const uint8_t *end = memchr(text.data + at, ',', text.len - at);
        size_t len = end == NULL ? text.len - at : (size_t)(end - text.data) - at;
        hmq_cursor *c = &r->cursors[count++];
        hmq_cursor_store of;
        if (hmq_cursor_decode((const char *)text.data + at, len, c, &of) != 0 || c->sequence == 0)
            return bad_cursor(a, "is invalid; expected the unchanged cursor of a HISTORY.REPLAY reply");
        if (is_of_other_store(r, &of)) return false;
        if (of.name_len == 0) r->unnamed |= 1ULL << (count - 1);
        if (c->shard >= r->page.store->shards || seen[c->shard] || (shard >= 0 && c->shard != shard))
            return bad_cursor(a, "is of other shards; expected a cursor of the shards that the command reads");
        seen[c->shard] = true;
        at += len + 1;
    }
    bool fewer = count < r->shards && (r->page.store->former_shards >> (count - 1) & 1) && are_first(seen, count);
    if (at <= text.len || (count < r->shards && !fewer))
        return bad_cursor(a, "is of other shards; expected a cursor of the shards that the command reads");
    for (; count < r->shards; count++) r->cursors[count] = (hmq_cursor){.shard = (uint16_t)count, .sequence = 1};
    return true;
}

static bool begin_cursors(args *a, replay *r, server_string *cursor, bool has_start, long long shard) {
    r->shards = shard >= 0 ? 1 : r->page.store->shards;
    if (cursor != NULL && has_start) return bad_cursor(a, "is given with FROM or SEQ; expected one of them");
    if (cursor != NULL) return take_cursors(a, r, slice_of(cursor), shard);
    if (r->from_sequence > 0 && r->shards > 1) {
        reply_error(a->ctx, ERROR_SEQ_NEEDS_SHARD, shown_slice(r->page.store->name), r->page.store->shards);
        return false;
    }
    for (size_t i = 0; i < r->shards; i++) {
        r->cursors[i] =
            (hmq_cursor){.shard = (uint16_t)(shard >= 0 ? (size_t)shard : i), .sequence = (uint64_t)r->from_sequence};
    }
    return true;
}

static bool parse_replay(args *a, replay *r) {
    server_string *filter, *cursor = NULL;
    int store_at = 0, shard_at = 0;
    long long to_ms = -1, visits = 0, shard = -1;
    bool has_start = false, right = true;
    if (!args_string(a, "the topic filter", &filter)) return false;
    r->page.filter = slice_of(filter);
    if (!subscription_check_filter(a->ctx, filter, false)) return false;
    while (right && args_left(a)) {
        if (args_take_word(a, "FROM"))
            right = take_from(a, r, &has_start);
        else if (args_take_word(a, "SEQ"))
            right = has_start = args_number(a, "SEQ", 1, INT64_MAX, &r->from_sequence);
        else if (args_take_word(a, "STORE"))
            right = take_place(a, "STORE", &store_at);
        else if (args_take_word(a, "TO"))
            right = args_number(a, "TO", 0, MAX_MS, &to_ms);
        else if (args_take_word(a, "COUNT"))
            right = args_number(a, "COUNT", 1, MAX_COUNT, &r->count);
        else if (args_take_word(a, "BYTES"))
            right = args_number(a, "BYTES", 1, MAX_BYTES, &r->bytes);
        else if (args_take_word(a, "VISIT"))
            right = args_number(a, "VISIT", 1, MAX_VISITS, &visits);
        else if (args_take_word(a, "SHARD") && (shard_at = a->at) > 0)
            right = args_number(a, "SHARD", 0, HISTORY_SHARDS_MAX - 1, &shard);
        else if (args_take_word(a, "CURSOR"))
            right = args_string(a, "CURSOR", &cursor);
        else
            right = args_end(a);
    }
    if (!right || !choose_store(a, r, store_at, shard_at)) return false;
    if (shard >= (long long)r->page.store->shards) {
        reply_error(a->ctx, ERROR_SHARD_INVALID, shard, r->page.store->shards - 1);
        return false;
    }
    if (!check_shard(a, r, shard)) return false;
    if (to_ms >= 0) r->page.to_us = (uint64_t)to_ms * 1000 + 999;
    history_page_allow(&r->page, visits, r->count);
    return begin_cursors(a, r, cursor, has_start, shard);
}

/* ---- the command ------------------------------------------------------------------------------------------- */

/* Replies the cursors from `first` on, then those before it. */
static void reply_cursors(const replay *r, size_t first) {
    char text[HISTORY_SHARDS_MAX * (HMQ_CURSOR_STORE_MAX_BYTES + 1)];
    hmq_cursor_store store = history_store_identity(r->page.store);
    size_t used = 0;
    for (size_t i = 0; i < r->shards; i++) {
        hmq_cursor cursor = r->cursors[(first + i) % r->shards];
        if (cursor.sequence == 0) cursor.sequence = 1; /* this page did not reach the shard */
        if (i > 0) text[used++] = ',';
        used += hmq_cursor_encode(&cursor, &store, text + used);
    }
    sv.ReplyWithStringBuffer(r->page.ctx, text, used);
}

/* A shard that was not reached must begin where this replay begins, not where the next page does. */
static bool begin_shards(replay *r) {
    for (size_t i = 0; i < r->shards; i++) {
        history_shard state;
        if (r->cursors[i].sequence > 0) continue;
        if (!history_shard_read(r->page.ctx, r->page.store, r->cursors[i].shard, &state, true)) return false;
        if (!state.exists)
            r->cursors[i].sequence = 1;
        else if (!history_page_start(&r->page, &state, &r->cursors[i])) {
            reply_corrupt(r, &r->cursors[i]);
            return false;
        }
    }
    return true;
}

/* A cursor of an earlier release does not name its store, but the writer of its last message, and stores have different
 * writers.  A cursor that has read nothing fits any store. */
static bool are_of_this_store(replay *r) {
    for (size_t i = 0; i < r->shards; i++) {
        hmq_cursor moved = r->cursors[i];
        history_shard state;
        if ((r->unnamed >> i & 1) == 0 || moved.sequence <= 1) continue;
        if (!history_shard_read(r->page.ctx, r->page.store, moved.shard, &state, true)) return false;
        if (state.exists && history_runs_find(&state, &moved)) continue;
        reply_error(r->page.ctx, ERROR_CURSOR_WITHOUT_STORE, moved.shard, shown_slice(r->page.store->name),
                    moved.time_us / 1000);
        return false;
    }
    return true;
}

static void run(replay *r) {
    size_t i = 0;
    history_page_end result = HISTORY_PAGE_END;
    if (!are_of_this_store(r) || !begin_shards(r)) return;
    result = history_page_read_all(&r->page, r->cursors, r->shards, &i);
    if (r->returned == 0 && result == HISTORY_PAGE_CORRUPT) reply_corrupt(r, &r->cursors[i]);
    if (r->returned == 0 && (result == HISTORY_PAGE_CORRUPT || result == HISTORY_PAGE_ERROR)) return;
    sv.ReplyWithArray(r->page.ctx, 5);
    reply_entries(r);
    reply_cursors(r, result == HISTORY_PAGE_END ? 0 : i + 1);
    sv.ReplyWithLongLong(r->page.ctx, result == HISTORY_PAGE_END);
    sv.ReplyWithLongLong(r->page.ctx, (long long)r->page.visited);
    sv.ReplyWithLongLong(r->page.ctx, (long long)r->page.missed);
}

int history_replay_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 2) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    replay r = {.count = DEFAULT_COUNT, .bytes = DEFAULT_BYTES};
    r.page = (history_page){
        .ctx = ctx, .to_us = UINT64_MAX, .now_us = clock_us(), .reply = true, .take = take_entry, .context = &r};
    if (parse_replay(&a, &r)) run(&r);
    forget_entries();
    return SERVER_OK;
}
