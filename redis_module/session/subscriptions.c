/* subscriptions.c - SESSION.SUBSCRIPTIONS: lists the subscriptions of a session.
 *
 *     without CURSOR   all of them, if one step of the server can list them; otherwise an error
 *     with CURSOR      a page
 *
 * A page is made of short HSCANs of {c}_subscriptions, so it keeps the promise of SCAN: a filter that is there during the
 * whole walk is listed at least once.  It ends by count, bytes or time, between two scans.
 *
 * Another process hashes the filters in another order, so a cursor of HSCAN means nothing there.  It is sealed: a server
 * refuses the cursors of others, and its own of before a restart. */
#include "session/subscriptions.h"

#include "topic/session_key.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/numbers.h"
#include "server/sealed.h"
#include "server/session_keys.h"

#define DEFAULT_COUNT 1000
#define MAX_COUNT 10000
#define SCANNED_AT_ONCE 32 /* by one HSCAN: the least that a page looks at */
#define PAGE_BYTES ((size_t)256 << 10) /* of filters and options; a page may exceed it by one scan */
#define PAGE_US 500U /* the reply takes about as long again */
/* What is listed without a cursor.  A client of the bridge may have 1,000 filters of 256 bytes. */
#define WHOLE_COUNT 2000
#define WHOLE_BYTES ((size_t)512 << 10)
#define BEGIN "0"
#define SCANS_MOST (MAX_COUNT / SCANNED_AT_ONCE + 1)

typedef struct listing {
    server_ctx *ctx;
    bool has_cursor;
    long long most;
    server_string *cursor; /* of HSCAN */
    server_reply *scans[SCANS_MOST];
    size_t scan_count;
    size_t found, bytes;
} listing;

/* ---- scanning ---------------------------------------------------------------------------------------------- */

static server_reply *entries_of(server_reply *scan) {
    return sv.CallReplyArrayElement(scan, 1);
}

static hmq_slice text_at(server_reply *entries, size_t place) {
    hmq_slice text = {0};
    text.data = (const uint8_t *)sv.CallReplyStringPtr(sv.CallReplyArrayElement(entries, place), &text.len);
    return text;
}

static server_string *cursor_after(server_reply *scan) {
    size_t len = 0;
    const char *text = sv.CallReplyStringPtr(sv.CallReplyArrayElement(scan, 0), &len);
    return sv.CreateString(NULL, text, len);
}

static bool is_at_end(const listing *list) {
    return list->scan_count > 0 && slice_is(slice_of(list->cursor), BEGIN);
}

/* False if the key is no hash. */
static bool scan(listing *list, server_string *name) {
    server_reply *reply = sv.Call(list->ctx, "HSCAN", "sscl", name, list->cursor, "COUNT", (long long)SCANNED_AT_ONCE);
    if (reply == NULL) return false;
    list->scans[list->scan_count++] = reply;
    sv.FreeString(NULL, list->cursor);
    list->cursor = cursor_after(reply);
    server_reply *entries = entries_of(reply);
    size_t words = sv.CallReplyLength(entries);
    list->found += words / 2;
    for (size_t i = 0; i < words; i++) list->bytes += text_at(entries, i).len;
    return true;
}

/* With a cursor: a page.  Without: until it is clear that they are too many. */
static bool is_used_up(const listing *list, uint64_t until_us) {
    if (is_at_end(list) || list->scan_count == SCANS_MOST) return true;
    if (!list->has_cursor) return list->found > WHOLE_COUNT || list->bytes > WHOLE_BYTES;
    return list->found >= (size_t)list->most || list->bytes >= PAGE_BYTES || monotonic_us() >= until_us;
}

static bool take(listing *list, server_string *name) {
    uint64_t until_us = monotonic_us() + PAGE_US;
    do {
        if (!scan(list, name)) return false;
    } while (!is_used_up(list, until_us));
    return true;
}

/* ---- the command ------------------------------------------------------------------------------------------- */

/* The cursor of HSCAN in a cursor of this command; NULL: it has none.  Other commands seal cursors, too, but no numbers. */
static server_string *open_cursor(hmq_slice text) {
    long long place;
    server_string *opened = sealed_open(text);
    if (opened == NULL || (sv.StringToLongLong(opened, &place) == SERVER_OK && place > 0)) return opened;
    sv.FreeString(NULL, opened);
    return NULL;
}

static bool read_cursor(args *a, listing *list) {
    server_string *text;
    if (!args_string(a, "CURSOR", &text)) return false;
    if (slice_is(slice_of(text), BEGIN)) return true;
    server_string *place = open_cursor(slice_of(text));
    if (place == NULL) {
        reply_error(a->ctx, ERROR_SUBSCRIPTIONS_CURSOR_OVER, shown(text));
        return false;
    }
    sv.FreeString(NULL, list->cursor);
    list->cursor = place;
    return true;
}

/* COUNT follows CURSOR: without one there are no pages.  False after replying an error. */
static bool parse(args *a, listing *list) {
    list->has_cursor = args_take_word(a, "CURSOR");
    if (!list->has_cursor) return args_end(a);
    if (!read_cursor(a, list)) return false;
    if (args_take_word(a, "COUNT") && !args_number(a, "COUNT", 1, MAX_COUNT, &list->most)) return false;
    return args_end(a) && sealed_begin(a->ctx);
}

static void reply_entries(const listing *list) {
    sv.ReplyWithMap(list->ctx, (long)list->found);
    for (size_t i = 0; i < list->scan_count; i++) {
        server_reply *entries = entries_of(list->scans[i]);
        for (size_t at = 0; at < sv.CallReplyLength(entries); at++) {
            hmq_slice text = text_at(entries, at);
            sv.ReplyWithStringBuffer(list->ctx, (const char *)text.data, text.len);
        }
    }
}

static void reply_cursor(const listing *list) {
    if (is_at_end(list)) {
        sv.ReplyWithStringBuffer(list->ctx, BEGIN, sizeof BEGIN - 1);
        return;
    }
    server_string *cursor = sealed_close(slice_of(list->cursor));
    sv.ReplyWithString(list->ctx, cursor);
    sv.FreeString(NULL, cursor);
}

static void reply_page(const listing *list) {
    sv.ReplyWithArray(list->ctx, 2);
    reply_cursor(list);
    reply_entries(list);
}

static void reply_list(const listing *list) {
    if (list->has_cursor)
        reply_page(list);
    else if (is_at_end(list))
        reply_entries(list);
    else
        reply_error(list->ctx, ERROR_SUBSCRIPTIONS_TOO_MANY, list->found);
}

static void list_all(listing *list, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SUBSCRIPTIONS);
    if (take(list, name))
        reply_list(list);
    else
        reply_wrong_type(list->ctx, name, "a hash");
    for (size_t i = 0; i < list->scan_count; i++) sv.FreeCallReply(list->scans[i]);
    sv.FreeString(NULL, name);
}

int session_subscriptions_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    if (!args_session_key(&a, &key)) return SERVER_OK;
    listing list = {.ctx = ctx, .most = DEFAULT_COUNT, .cursor = sv.CreateString(NULL, BEGIN, sizeof BEGIN - 1)};
    if (parse(&a, &list) && session_check_types(ctx, slice_of(key))) list_all(&list, slice_of(key));
    sv.FreeString(NULL, list.cursor);
    return SERVER_OK;
}
