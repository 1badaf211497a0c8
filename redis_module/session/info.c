/* info.c - SESSION.INFO: what a session has and who owns it. */
#include "topic/session_key.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/session_keys.h"
#include "index/session_hash.h"
#include "index/session_state.h"
#include "queue/bytes.h"
#include "queue/full.h"
#include "session/session.h"

static void reply_field(server_ctx *ctx, const char *name, long long value) {
    sv.ReplyWithCString(ctx, name);
    sv.ReplyWithLongLong(ctx, value);
}

static void reply_text(server_ctx *ctx, const char *name, server_string *text) {
    sv.ReplyWithCString(ctx, name);
    if (text != NULL)
        sv.ReplyWithString(ctx, text);
    else
        sv.ReplyWithNull(ctx);
}

static long long subscriptions_of(server_ctx *ctx, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SUBSCRIPTIONS);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    long long count = sv.KeyType(key) == SERVER_HASH ? (long long)sv.ValueLength(key) : 0;
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return count;
}

static void reply_info(server_ctx *ctx, hmq_slice session, const session_state *state, queue *q) {
    session_facts facts = session_facts_read(ctx, session);
    bool over = state->over; /* the session is over, although its keys still exist */
    long long ends_ms = state->ends_ms > 0 ? state->ends_ms : state->expire_ms;
    sv.ReplyWithMap(ctx, 15);
    reply_field(ctx, "exists", state->exists);
    reply_text(ctx, "owner", over ? NULL : state->owner);
    reply_text(ctx, "identity", over ? NULL : state->identity);
    reply_field(ctx, "epoch", over ? 0 : state->epoch);
    reply_field(ctx, "connected", state->connected && !over);
    reply_field(ctx, "expiry", over ? 0 : state->expiry_s);
    reply_field(ctx, "messages", over ? 0 : (long long)queue_length(q));
    reply_field(ctx, "bytes", over ? 0 : (long long)queue_bytes(q));
    reply_field(ctx, "dropped", over ? 0 : overflow_dropped(q, &facts));
    sv.ReplyWithCString(ctx, "overflow");
    sv.ReplyWithCString(ctx, overflow_name(overflow_of_session(&facts)));
    reply_field(ctx, "first_serial", over ? 0 : (long long)queue_first_serial(q));
    reply_field(ctx, "last_serial", over ? 0 : (long long)queue_last_serial(q));
    reply_field(ctx, "last_packet_id", over ? 0 : queue_last_packet_id(q));
    reply_field(ctx, "subscriptions", over ? 0 : subscriptions_of(ctx, session));
    reply_field(ctx, "ttl_ms", over || ends_ms == SERVER_NO_EXPIRE ? -1 : ends_ms - sv.Milliseconds());
}

int session_info_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    session_state state;
    queue q;
    if (!args_session_key(&a, &key) || !args_end(&a)) return SERVER_OK;
    hmq_slice session = slice_of(key);
    if (!session_check_types(ctx, session) || !session_state_read(ctx, session, &state)) return SERVER_OK;
    if (!queue_open(&q, ctx, session, SERVER_READ))
        queue_reply_wrong_type(&q);
    else if (queue_last_packet_id(&q) < 0)
        queue_reply_wrong_counter(&q);
    else
        reply_info(ctx, session, &state, &q);
    queue_close(&q);
    session_state_free(&state);
    return SERVER_OK;
}
