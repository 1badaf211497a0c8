/* match.c - TOPIC.MATCH: which subscriptions would get a message of a topic.  Reads, and delivers nothing.
 *
 * A page is a walk over all matching pairs of the trie that skips those of earlier pages.  MOST_VISITED and MOST_UNITS bound
 * it: what is beyond is on no page.
 * Between two pages subscriptions may come and go: then one may be listed twice, or left out. */
#include "routing/match.h"

#include "topic/session_key.h"
#include "topic/topic.h"
#include "server/access.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/page.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/shares.h"
#include "index/subscription.h"

#define DEFAULT_COUNT 100
#define MAX_COUNT 1000
#define MOST_VISITED 100000 /* of which earlier pages are skipped by whole lists */
#define MOST_UNITS 32768U /* filters and levels that are searched (topic/trie.h): 2 ms */
#define BEGIN "0"

typedef struct found {
    uint64_t subscriber;
    uint32_t options;
    server_string *filter; /* without the group */
} found;

typedef struct match_page {
    long long skip, most; /* pairs of earlier pages; pairs of this one */
    long long visited; /* with those that were skipped */
    found *rows;
    size_t count, bytes;
    bool has_more;
    bool is_cut; /* ... which are on no further page */
} match_page;

/* The session, or the queue of a group. */
static server_string *key_of(uint64_t subscriber) {
    if (share_is_tagged(subscriber)) return share_of(subscriber)->key;
    return ((const indexed_session *)(uintptr_t)subscriber)->key;
}

static bool visit(void *context, const char *filter, size_t len, uint64_t subscriber, uint32_t options) {
    match_page *p = context;
    if (p->visited == p->skip + p->most || p->bytes >= PAGE_NAME_BYTES) {
        p->has_more = true;
        return false;
    }
    p->visited++;
    p->rows[p->count++] = (found){subscriber, options, sv.CreateString(NULL, filter, len)};
    p->bytes += len + 2 * slice_of(key_of(subscriber)).len;
    return true;
}

static void reply_client(server_ctx *ctx, hmq_slice session) {
    char *id = sv.Alloc(session.len);
    int64_t len = hmq_session_key_decode((const char *)session.data, session.len, id, session.len);
    sv.ReplyWithStringBuffer(ctx, id, len > 0 ? (size_t)len : 0);
    sv.Free(id);
}

static void reply_row(server_ctx *ctx, server_string *filter, server_string *key) {
    sv.ReplyWithArray(ctx, 5);
    sv.ReplyWithString(ctx, filter);
    sv.ReplyWithString(ctx, key);
    reply_client(ctx, slice_of(key));
}

/* Who asks.  A user who may read some keys only sees the sessions and groups whose keys are among them. */
typedef struct reader {
    bool is_restricted;
    server_string *user; /* NULL: not known, may see nothing */
} reader;

/* False if it is over by now, or the user may not see it. */
static bool reply_found(server_ctx *ctx, index_t *index, const found *f, const reader *by) {
    bool is_share = share_is_tagged(f->subscriber);
    const share *group = is_share ? share_of(f->subscriber) : NULL;
    const indexed_session *session = is_share ? NULL : (const indexed_session *)(uintptr_t)f->subscriber;
    server_string *key = key_of(f->subscriber);
    if (by->is_restricted && !access_user_may_use_key(by->user, key, SERVER_KEY_ACCESS)) return false;
    if (!is_share && (session->is_gone || !index_session_is_valid(ctx, index, session))) return false;
    reply_row(ctx, is_share ? group->filter : f->filter, key);
    if (is_share) {
        sv.ReplyWithNull(ctx);
        sv.ReplyWithLongLong(ctx, (long long)sv.DictSize(group->members));
    } else {
        sv.ReplyWithLongLong(ctx, f->options & SUBSCRIPTION_QOS);
        sv.ReplyWithNull(ctx);
    }
    return true;
}

static bool parse(args *a, server_string **topic, match_page *p) {
    if (!args_string(a, "topic", topic)) return false;
    hmq_slice text = slice_of(*topic);
    hmq_topic_error error = hmq_topic_check_name((const char *)text.data, text.len);
    if (error != HMQ_TOPIC_OK) {
        reply_invalid_topic(a->ctx, "the topic", *topic, error);
        return false;
    }
    while (args_left(a)) {
        if (args_take_word(a, "CURSOR")) {
            if (!args_number(a, "CURSOR", 0, MOST_VISITED, &p->skip)) return false;
        } else if (args_take_word(a, "COUNT")) {
            if (!args_number(a, "COUNT", 1, MAX_COUNT, &p->most)) return false;
        } else {
            return args_end(a);
        }
    }
    return true;
}

static void reply_page(server_ctx *ctx, index_t *index, const match_page *p, const reader *by) {
    long listed = 0;
    sv.ReplyWithArray(ctx, 3);
    if (p->has_more && !p->is_cut && p->visited < MOST_VISITED) {
        server_string *cursor = sv.CreateStringFromLongLong(NULL, p->visited);
        sv.ReplyWithString(ctx, cursor);
        sv.FreeString(NULL, cursor);
    } else {
        sv.ReplyWithStringBuffer(ctx, BEGIN, sizeof BEGIN - 1);
    }
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    for (size_t i = 0; i < p->count; i++) listed += reply_found(ctx, index, &p->rows[i], by);
    sv.ReplySetArrayLength(ctx, listed);
    sv.ReplyWithLongLong(ctx, !p->has_more);
}

int topic_match_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *topic;
    reader by;
    match_page p = {.most = DEFAULT_COUNT};
    if (!parse(&a, &topic, &p)) return SERVER_OK;
    by.is_restricted = access_is_restricted(ctx, false, &by.user);
    index_t *index = index_of(ctx);
    hmq_slice name = slice_of(topic);
    p.rows = sv.Calloc((size_t)p.most, sizeof *p.rows);
    index_pin(index, INDEX_SESSIONS);
    p.visited = p.skip;
    size_t left = MOST_UNITS;
    bool is_whole =
        hmq_trie_match_walk(index->filters, (const char *)name.data, name.len, (size_t)p.skip, &left, visit, &p);
    p.is_cut = !is_whole && !p.has_more;
    p.has_more = !is_whole;
    reply_page(ctx, index, &p, &by);
    index_unpin(index, INDEX_SESSIONS);
    for (size_t i = 0; i < p.count; i++) sv.FreeString(NULL, p.rows[i].filter);
    sv.Free(p.rows);
    if (by.user != NULL) sv.FreeString(NULL, by.user);
    return SERVER_OK;
}
