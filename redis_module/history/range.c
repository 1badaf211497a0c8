/* range.c - HISTORY.RANGE: the messages between two sequence numbers of a shard, column by column.
 *
 * It serves readers of many messages: each value is copied once, into its column.  A page ends at a limit, at `to`, or
 * before an unreadable entry; all numbers below its `next` have been handled. */
#include <inttypes.h>
#include <string.h>

#include "topic/topic.h"
#include "server/errors.h"
#include "server/numbers.h"
#include "index/subscription.h"
#include "history/columns.h"
#include "history/epoch.h"
#include "history/history.h"
#include "history/page.h"
#include "history/uses.h"
#include "history/visible.h"

#define DEFAULT_COUNT 2000
#define MAX_COUNT 100000
#define DEFAULT_BYTES (8 << 20)
#define MAX_BYTES (256 << 20) /* and one message (at most 1 GiB, as an entry of a stream): below 2^31 */
#define MAX_VISITS 10000000

typedef struct range {
    server_ctx *ctx;
    history_shard state;
    uint64_t from, to, now_us;
    hmq_slice filter; /* empty: none */
    long long count, bytes, visits; /* remaining */
    uint64_t budget;
    bool packed, expired;
    uint64_t next, visited, missed;
    history_columns columns;
} range;

typedef enum page { PAGE_GOES_ON, PAGE_ENDS, PAGE_CORRUPT } page;

/* ---- reading the command ----------------------------------------------------------------------------------- */

static bool take_filter(args *a, range *r) {
    server_string *filter;
    if (!args_string(a, "FILTER", &filter)) return false;
    r->filter = slice_of(filter);
    return subscription_check_filter(a->ctx, filter, false);
}

static bool take_columns(args *a, range *r) {
    long long count;
    bool seen[HISTORY_COLUMN_COUNT] = {false};
    if (!args_number(a, "COLUMNS", 1, HISTORY_COLUMN_COUNT, &count)) return false;
    for (r->columns.count = 0; r->columns.count < (size_t)count; r->columns.count++) {
        server_string *name;
        history_column column;
        if (!args_string(a, "the column", &name)) return false;
        if (!history_column_named(slice_of(name), &column)) {
            reply_error(a->ctx, ERROR_COLUMN_UNKNOWN, shown(name));
            return false;
        }
        if (seen[column]) {
            reply_error(a->ctx, ERROR_COLUMN_REPEATED, shown(name));
            return false;
        }
        seen[column] = true;
        r->columns.wanted[r->columns.count] = column;
    }
    return true;
}

static bool take_option(args *a, range *r) {
    if (args_take_word(a, "FILTER")) return take_filter(a, r);
    if (args_take_word(a, "COLUMNS")) return take_columns(a, r);
    if (args_take_word(a, "COUNT")) return args_number(a, "COUNT", 1, MAX_COUNT, &r->count);
    if (args_take_word(a, "BYTES")) return args_number(a, "BYTES", 1, MAX_BYTES, &r->bytes);
    if (args_take_word(a, "VISIT")) return args_number(a, "VISIT", 1, MAX_VISITS, &r->visits);
    if (args_take_word(a, "PACKED")) return r->packed = true;
    if (args_take_word(a, "EXPIRED")) return r->expired = true;
    return args_end(a);
}

static bool parse_range(args *a, range *r) {
    const history_store *store = history_take_store(a, 2);
    long long from, to;
    if (store == NULL || !history_take_shard(a, store, &r->state) || !args_number(a, "from", 1, INT64_MAX, &from) ||
        !args_number(a, "to", from - 1, INT64_MAX - 1, &to))
        return false;
    r->from = (uint64_t)from;
    r->to = (uint64_t)to;
    while (args_left(a)) {
        if (!take_option(a, r)) return false;
    }
    if (r->columns.count == 0) {
        for (size_t i = 0; i < HISTORY_COLUMN_COUNT; i++) r->columns.wanted[i] = (history_column)i;
        r->columns.count = HISTORY_COLUMN_COUNT;
    }
    if (r->visits == 0) r->visits = r->count * HISTORY_VISITS_OF_A_MESSAGE;
    r->budget = (uint64_t)r->visits * HISTORY_POSTINGS_OF_A_VISIT;
    return true;
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

static bool is_wanted(const range *r, const history_entry *entry) {
    const hmq_record *record = &entry->record;
    if (!r->expired && record->expires_ms > 0 && (uint64_t)record->expires_ms <= r->now_us / 1000) return false;
    return r->filter.len == 0 || hmq_topic_matches((const char *)r->filter.data, r->filter.len,
                                                   (const char *)record->topic.data, record->topic.len);
}

/* Handles one message; false if the page has no room for it. */
static bool take_entry(range *r, const history_entry *entry, uint32_t generation) {
    if (r->count == 0 || r->visits == 0) return false;
    if (is_wanted(r, entry)) {
        size_t size = history_columns_size(&r->columns, entry);
        if (r->columns.rows > 0 && (long long)size > r->bytes) return false;
        history_columns_add(&r->columns, entry, generation);
        r->bytes -= (long long)size;
        r->count--;
    }
    r->visits--;
    r->visited++;
    r->next = entry->sequence + 1;
    return true;
}

static page read_entries(range *r, history_reader *reader, uint32_t generation) {
    history_entry entry;
    for (;;) {
        switch (history_reader_next(reader, &entry, &r->budget)) {
        case HISTORY_CORRUPT: return PAGE_CORRUPT;
        case HISTORY_END: r->next = history_reader_position(reader); return PAGE_GOES_ON;
        case HISTORY_LIMIT: r->next = history_reader_position(reader); return PAGE_ENDS;
        case HISTORY_FOUND:
            if (entry.sequence > r->to) {
                r->next = r->to + 1;
                return PAGE_ENDS;
            }
            if (!take_entry(r, &entry, generation)) return PAGE_ENDS;
        }
    }
}

/* Reads from r->next to the end of its epoch. */
static page read_epoch(range *r) {
    history_epoch epoch;
    if (!history_epoch_of_sequence(r->ctx, &r->state, r->next, &epoch)) return PAGE_CORRUPT;
    history_reader *reader = history_reader_open(r->ctx, &r->state, &epoch, r->filter, r->next);
    if (reader == NULL) return PAGE_CORRUPT;
    page result = read_entries(r, reader, epoch.generation);
    history_reader_close(reader);
    return result;
}

/* Reads everything within the limits; false if a corrupt key prevents reading the first entry. */
static bool read_range(range *r) {
    uint64_t visible, last = r->to < r->state.last.sequence ? r->to : r->state.last.sequence;
    r->next = r->from;
    bool right = r->expired ? history_first_kept(r->ctx, &r->state, &visible)
                            : history_visible(r->ctx, &r->state, r->now_us, r->from, &visible);
    if (!right) return false;
    if (visible > r->to + 1) visible = r->to + 1;
    if (visible > r->from) {
        r->missed = visible - r->from;
        r->next = visible;
    }
    if (r->filter.len > 0) history_uses_note(r->ctx, r->state.store, r->filter);
    uint64_t begun = r->next;
    page result = PAGE_GOES_ON;
    while (result == PAGE_GOES_ON && r->next <= last && r->count > 0 && r->visits > 0) result = read_epoch(r);
    if (r->next > r->to + 1) r->next = r->to + 1;
    return result != PAGE_CORRUPT || r->next > begun; /* earlier entries are replied; the next page reports the error */
}

/* ---- the command ------------------------------------------------------------------------------------------- */

static void reply_range(const range *r) {
    sv.ReplyWithArray(r->ctx, 5);
    sv.ReplyWithLongLong(r->ctx, (long long)r->next);
    sv.ReplyWithLongLong(r->ctx, (long long)r->visited);
    sv.ReplyWithLongLong(r->ctx, (long long)r->missed);
    sv.ReplyWithLongLong(r->ctx, (long long)r->columns.rows);
    history_columns_reply(r->ctx, &r->columns, r->packed);
}

int history_range_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 5) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    range r = {.ctx = ctx, .now_us = clock_us(), .count = DEFAULT_COUNT, .bytes = DEFAULT_BYTES};
    if (!parse_range(&a, &r)) return SERVER_OK;
    history_columns_begin(&r.columns);
    if (read_range(&r)) {
        reply_range(&r);
    } else {
        reply_error(ctx, ERROR_HISTORY_FOREIGN_AT, shown_slice(r.state.store->name), r.state.shard, r.next);
    }
    history_columns_end(&r.columns);
    return SERVER_OK;
}
