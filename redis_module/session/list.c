/* list.c - SESSION.LIST: pages through the opened sessions of a database, in the order of their keys.
 *
 * The cursor is the key of the last session looked at.  So the cost of a page depends only on its length, whatever changes
 * between two pages, and a session that exists all the time is listed once. */
#include "session/list.h"

#include "topic/session_key.h"
#include "server/access.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/numbers.h"
#include "server/page.h"
#include "index/index.h"
#include "index/session_state.h"
#include "index/sessions.h"
#include "queue/queue.h"
#include "session/member.h"

#define DEFAULT_COUNT 100
#define MAX_COUNT 10000
/* Of one page, whatever COUNT says. */
#define LOOKS_MOST 250
#define PAGE_US 500 /* the page ends early; the reply takes half as long again */
#define LOOKS_BETWEEN 4 /* two looks at the clock */
#define BEGIN "0"

static void reply_client(server_ctx *ctx, hmq_slice session) {
    char *id = sv.Alloc(session.len);
    int64_t len = hmq_session_key_decode((const char *)session.data, session.len, id, session.len);
    sv.ReplyWithStringBuffer(ctx, id, len > 0 ? (size_t)len : 0);
    sv.Free(id);
}

static void reply_text(server_ctx *ctx, server_string *text) {
    if (text != NULL)
        sv.ReplyWithString(ctx, text);
    else
        sv.ReplyWithNull(ctx);
}

/* A user who may read only some keys sees a session if its key is one of them. */
typedef struct reader {
    bool is_restricted;
    server_string *user;
} reader;

static bool may_see(const reader *by, server_string *session) {
    return !by->is_restricted || access_user_may_use_key(by->user, session, SERVER_KEY_ACCESS);
}

/* A session of the page, as it is now. */
typedef struct row {
    hmq_slice session;
    session_state state;
    size_t messages;
} row;

typedef struct list {
    bool connected; /* lists connected sessions only */
    hmq_slice after;
    long long count;
    reader by;
    size_t found, bytes;
    server_string *cursor; /* NULL: this is the last page */
    row rows[LOOKS_MOST];
} list;

static size_t bytes_of(const server_string *text) {
    return text != NULL ? slice_of(text).len : 0;
}

/* Not if the session is over by now. */
static void take_session(server_ctx *ctx, list *l, hmq_slice session) {
    row *r = &l->rows[l->found];
    queue q;
    session_state_peek(ctx, session, &r->state);
    if (!r->state.exists) {
        session_state_free(&r->state);
        return;
    }
    r->session = session;
    r->messages = queue_open(&q, ctx, session, SERVER_READ) ? queue_length(&q) : 0;
    queue_close(&q);
    l->bytes += 2 * session.len + bytes_of(r->state.owner) + bytes_of(r->state.identity);
    l->found++;
}

/* The cursor, which is replied first, is known only after the sessions were looked at: how long that takes differs much. */
static void take_page(server_ctx *ctx, list *l, const session_index *sessions) {
    uint64_t until_us = monotonic_us() + PAGE_US;
    const session_entry *entry = session_index_next(sessions, l->after);
    server_string *last = NULL;
    for (long long looks = 0; entry != NULL; looks++) {
        bool is_late = looks > 0 && looks % LOOKS_BETWEEN == 0 && monotonic_us() >= until_us;
        if (looks == l->count || looks == LOOKS_MOST || l->bytes >= PAGE_NAME_BYTES || is_late) {
            l->cursor = last;
            return;
        }
        last = entry->key;
        bool is_client = !member_is(slice_of(last)); /* else the client is listed with its own session */
        if (is_client && (!l->connected || entry->connected) && may_see(&l->by, last))
            take_session(ctx, l, slice_of(last));
        entry = session_index_next(sessions, slice_of(last));
    }
}

static void reply_row(server_ctx *ctx, const row *r) {
    sv.ReplyWithArray(ctx, 6);
    reply_client(ctx, r->session);
    sv.ReplyWithLongLong(ctx, r->state.connected);
    reply_text(ctx, r->state.owner);
    sv.ReplyWithLongLong(ctx, (long long)r->messages);
    sv.ReplyWithStringBuffer(ctx, (const char *)r->session.data, r->session.len);
    reply_text(ctx, r->state.identity);
}

static bool parse_list(args *a, hmq_slice *after, long long *count, bool *connected) {
    server_string *cursor;
    while (args_left(a)) {
        if (args_take_word(a, "CURSOR")) {
            if (!args_string(a, "CURSOR", &cursor)) return false;
            *after = slice_of(cursor);
            if (slice_is(*after, BEGIN)) *after = (hmq_slice){0};
        } else if (args_take_word(a, "COUNT")) {
            if (!args_number(a, "COUNT", 1, MAX_COUNT, count)) return false;
        } else if (args_take_word(a, "CONNECTED")) {
            *connected = true;
        } else {
            return args_end(a);
        }
    }
    if (after->len == 0 || hmq_session_key_check((const char *)after->data, after->len)) return true;
    reply_error(a->ctx, ERROR_PAGE_CURSOR_INVALID, shown_slice(*after));
    return false;
}

int session_list_command(server_ctx *ctx, server_string **argv, int argc) {
    static list l;
    args a = args_begin(ctx, argv, argc);
    l.after = (hmq_slice){0};
    l.count = DEFAULT_COUNT;
    l.connected = false;
    l.cursor = NULL;
    l.found = l.bytes = 0;
    if (!parse_list(&a, &l.after, &l.count, &l.connected)) return SERVER_OK;
    l.by.is_restricted = access_is_restricted(ctx, false, &l.by.user);
    index_t *index = index_of(ctx);
    index_pin(index, INDEX_SESSIONS);
    take_page(ctx, &l, index->opened);
    sv.ReplyWithArray(ctx, 2);
    if (l.cursor != NULL)
        sv.ReplyWithString(ctx, l.cursor);
    else
        sv.ReplyWithStringBuffer(ctx, BEGIN, sizeof BEGIN - 1);
    sv.ReplyWithArray(ctx, (long)l.found);
    for (size_t i = 0; i < l.found; i++) {
        reply_row(ctx, &l.rows[i]);
        session_state_free(&l.rows[i].state);
    }
    index_unpin(index, INDEX_SESSIONS);
    if (l.by.user != NULL) sv.FreeString(NULL, l.by.user);
    return SERVER_OK;
}
