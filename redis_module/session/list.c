/* list.c - SESSION.LIST: pages through the opened sessions of a database, in the order of their keys.
 *
 * The cursor is the key of the last session looked at.  So the cost of a page depends only on its length, whatever changes
 * between two pages, and a session that exists all the time is listed once. */
#include "session/list.h"

#include "topic/session_key.h"
#include "server/access.h"
#include "server/args.h"
#include "server/errors.h"
#include "index/index.h"
#include "index/session_state.h"
#include "index/sessions.h"
#include "queue/queue.h"

#define DEFAULT_COUNT 100
#define MAX_COUNT 10000
#define LOOKS_MOST 500 /* in one page, whatever COUNT says: some 2 ms */
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

/* False if the session is over by now. */
static bool reply_session(server_ctx *ctx, hmq_slice session) {
    session_state state;
    queue q;
    session_state_peek(ctx, session, &state);
    if (state.exists) {
        bool usable = queue_open(&q, ctx, session, SERVER_READ);
        sv.ReplyWithArray(ctx, 6);
        reply_client(ctx, session);
        sv.ReplyWithLongLong(ctx, state.connected);
        reply_text(ctx, state.owner);
        sv.ReplyWithLongLong(ctx, usable ? (long long)queue_length(&q) : 0);
        sv.ReplyWithStringBuffer(ctx, (const char *)session.data, session.len);
        reply_text(ctx, state.identity);
        queue_close(&q);
    }
    session_state_free(&state);
    return state.exists;
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
    args a = args_begin(ctx, argv, argc);
    hmq_slice after = {0};
    long long count = DEFAULT_COUNT, listed = 0;
    bool connected = false;
    if (!parse_list(&a, &after, &count, &connected)) return SERVER_OK;
    reader by;
    by.is_restricted = access_is_restricted(ctx, false, &by.user);
    index_t *index = index_of(ctx);
    const session_index *sessions = index->opened;
    index_pin(index, INDEX_SESSIONS);
    const session_entry *entry = session_index_next(sessions, after);
    const session_entry *end = entry;
    server_string *cursor = NULL;
    for (long long i = 0; i < count && i < LOOKS_MOST && end != NULL; i++) {
        cursor = end->key;
        end = session_index_next(sessions, slice_of(end->key));
    }
    sv.ReplyWithArray(ctx, 2);
    if (end != NULL && cursor != NULL)
        sv.ReplyWithString(ctx, cursor);
    else
        sv.ReplyWithStringBuffer(ctx, BEGIN, sizeof BEGIN - 1);
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    for (; entry != end; entry = session_index_next(sessions, slice_of(entry->key)))
        if ((!connected || entry->connected) && may_see(&by, entry->key))
            listed += reply_session(ctx, slice_of(entry->key));
    index_unpin(index, INDEX_SESSIONS);
    sv.ReplySetArrayLength(ctx, (long)listed);
    if (by.user != NULL) sv.FreeString(NULL, by.user);
    return SERVER_OK;
}
