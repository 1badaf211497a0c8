/* groups.c - TOPIC.GROUPS: pages through the groups of shared subscriptions, in the order of their filters. */
#include "routing/groups.h"

#include "server/access.h"
#include "server/page.h"
#include "index/index.h"
#include "index/shares.h"
#include "queue/queue.h"

/* For a user who may read some keys only, a group is listed if the key of its queue is one of them. */
typedef struct reader {
    bool is_restricted;
    server_string *user;
} reader;

/* False if it has ended, or the user may not see it. */
static bool reply_group(server_ctx *ctx, const index_t *index, const server_string *filter, const reader *by) {
    const share *group = share_find(index->shares, slice_of(filter));
    queue q;
    if (group == NULL) return false;
    if (by->is_restricted && !access_user_may_use_key(by->user, group->key, SERVER_KEY_ACCESS)) return false;
    bool usable = queue_open(&q, ctx, slice_of(group->key), SERVER_READ);
    sv.ReplyWithArray(ctx, 3);
    sv.ReplyWithString(ctx, group->filter);
    sv.ReplyWithLongLong(ctx, (long long)sv.DictSize(group->members));
    sv.ReplyWithLongLong(ctx, usable ? (long long)queue_length(&q) : 0);
    queue_close(&q);
    return true;
}

int topic_groups_command(server_ctx *ctx, server_string **argv, int argc) {
    static page p;
    args a = args_begin(ctx, argv, argc);
    if (!page_parse(&a, &p)) return SERVER_OK;
    reader by;
    by.is_restricted = access_is_restricted(ctx, false, &by.user);
    index_t *index = index_of(ctx);
    index_pin(index, INDEX_SESSIONS);
    page_take(&p, index->shares);
    sv.ReplyWithArray(ctx, 2);
    page_reply_cursor(ctx, &p);
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    long listed = 0;
    for (size_t i = 0; i < p.found; i++) listed += reply_group(ctx, index, p.names[i], &by);
    sv.ReplySetArrayLength(ctx, listed);
    index_unpin(index, INDEX_SESSIONS);
    page_end(&p);
    if (by.user != NULL) sv.FreeString(NULL, by.user);
    return SERVER_OK;
}
