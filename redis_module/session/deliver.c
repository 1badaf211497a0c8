/* deliver.c - SESSION.DELIVER: messages for one session, as if its subscriptions matched them. */
#include "session/deliver.h"

#include "topic/record.h"
#include "topic/topic.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/session_keys.h"
#include "index/filters.h"
#include "index/session_fence.h"
#include "routing/delivery.h"
#include "session/places.h"

static bool check_record(server_ctx *ctx, const server_string *argument) {
    hmq_record record;
    hmq_slice bytes = slice_of(argument);
    if (hmq_record_decode(bytes.data, bytes.len, &record) == 0 && record.type == HMQ_RECORD_PUBLISH &&
        hmq_topic_check_name((const char *)record.topic.data, record.topic.len) == HMQ_TOPIC_OK)
        return true;
    reply_error(ctx, ERROR_DELIVERED_INVALID, shown(argument));
    return false;
}

/* A message that has expired by now is no longer delivered. */
static bool deliver_record(server_ctx *ctx, const indexed_session *session, const server_string *argument) {
    hmq_record record;
    hmq_slice bytes = slice_of(argument);
    long long now_ms = sv.Milliseconds();
    hmq_record_decode(bytes.data, bytes.len, &record);
    if (record.expires_ms > 0 && record.expires_ms <= now_ms) return false;
    message m;
    message_begin(&m, &record, now_ms);
    delivery_how how = {.qos = record.qos, .retain = record.retain};
    bool delivered = deliver(ctx, session, &m, &how);
    message_end(&m);
    return delivered;
}

int session_deliver_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    place_move move;
    if (!place_move_parse(&a, &move)) return SERVER_OK;
    if (!args_left(&a) && move.filter == NULL) return reply_error(ctx, ERROR_DELIVERED_MISSING);
    for (int i = a.at; i < argc; i++) {
        if (!check_record(ctx, argv[i])) return SERVER_OK;
    }
    if (!session_check_ending(ctx, slice_of(key)) || !session_check_types(ctx, slice_of(key))) return SERVER_OK;
    if (!place_move_check(ctx, slice_of(key), &move)) return SERVER_OK;
    indexed_session session = {.key = key, .inbox = session_key_name(slice_of(key), HMQ_SUFFIX_INBOX)};
    long long delivered = 0;
    for (int i = a.at; i < argc; i++) delivered += deliver_record(ctx, &session, argv[i]);
    place_move_do(ctx, slice_of(key), &move);
    sv.FreeString(NULL, session.inbox);
    return sv.ReplyWithLongLong(ctx, delivered);
}
