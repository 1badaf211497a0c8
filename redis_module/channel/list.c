/* list.c - CHANNEL.LIST: pages through the channels that have kept messages, in the order of their names. */
#include "channel/list.h"

#include "server/access.h"
#include "server/channel_keys.h"
#include "server/page.h"
#include "index/channels.h"
#include "index/index.h"

/* A user who may read only some keys sees a channel if the user may read a key of the channel's name. */
typedef struct reader {
    bool is_restricted;
    server_string *user;
} reader;

static long long length_of(server_ctx *ctx, hmq_slice channel, hmq_channel_key_kind kind) {
    server_string *name = channel_key(channel, kind);
    server_key *key = key_open_unseen(ctx, name, false);
    long long length = sv.KeyType(key) == SERVER_LIST ? (long long)sv.ValueLength(key) : 0;
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return length;
}

/* False if the channel no longer keeps anything, or the user may not see it. */
static bool reply_channel(server_ctx *ctx, server_string *channel, const reader *by) {
    if (by->is_restricted && !access_user_may_use_key(by->user, channel, SERVER_KEY_ACCESS)) return false;
    hmq_slice name = slice_of(channel);
    long long held = length_of(ctx, name, HMQ_CHANNEL_HELD);
    bool keeps_last = length_of(ctx, name, HMQ_CHANNEL_LAST) > 0;
    if (held == 0 && !keeps_last) return false;
    sv.ReplyWithArray(ctx, 3);
    sv.ReplyWithString(ctx, channel);
    sv.ReplyWithLongLong(ctx, held);
    sv.ReplyWithLongLong(ctx, keeps_last);
    return true;
}

int channel_list_command(server_ctx *ctx, server_string **argv, int argc) {
    static page p;
    args a = args_begin(ctx, argv, argc);
    if (!page_parse(&a, &p)) return SERVER_OK;
    reader by;
    by.is_restricted = access_is_restricted(ctx, false, &by.user);
    page_take(&p, index_of(ctx)->held);
    sv.ReplyWithArray(ctx, 2);
    page_reply_cursor(ctx, &p);
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    long listed = 0;
    for (size_t i = 0; i < p.found; i++) listed += reply_channel(ctx, p.names[i], &by);
    sv.ReplySetArrayLength(ctx, listed);
    page_end(&p);
    if (by.user != NULL) sv.FreeString(NULL, by.user);
    return SERVER_OK;
}
