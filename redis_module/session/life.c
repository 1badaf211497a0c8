/* life.c - what happens to a session until its end. */
#include "session/life.h"

#include <string.h>

#include "topic/packet_id.h"
#include "topic/record.h"
#include "topic/session_key.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/session_state.h"
#include "index/sessions.h"
#include "queue/queue.h"
#include "routing/retained_cursors.h"
#include "routing/share.h"
#include "routing/share_leave.h"
#include "session/member_notes.h"
#include "session/presence.h"
#include "session/will.h"

#define RETRY_MS 1000       /* no memory now */
#define WRONG_TYPE_MS 60000 /* keys of another program have the session's names */

static bool is_out_of_memory(server_ctx *ctx) {
    return (sv.GetContextFlags(ctx) & SERVER_CTX_OOM) != 0;
}

/* ---- the end of the keys ----------------------------------------------------------------------------------- */

static void forget_end(server_ctx *ctx, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    int stands = 0;
    if (sv.KeyType(key) == SERVER_HASH)
        sv.HashGet(key, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, "ends", &stands, NULL);
    if (stands) {
        sv.HashSet(key, SERVER_HASH_CFIELDS, "ends", SERVER_HASH_DELETE, NULL);
        replicate(ctx, "HDEL", "sc", name, "ends");
        index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

void session_set_end(server_ctx *ctx, hmq_slice session, long long end_ms, bool kept, bool only_later) {
    if (kept && end_ms != SERVER_NO_EXPIRE) {
        session_state state;
        session_state_peek(ctx, session, &state);
        session_state_free(&state);
        if (!only_later || end_ms > state.ends_ms)
            session_fact_write(ctx, session, "ends", (uint64_t)end_ms, SERVER_NO_EXPIRE);
        session_keys_expire(ctx, session, end_ms + KEPT_GRACE_MS, only_later);
    } else {
        forget_end(ctx, session);
        session_keys_expire(ctx, session, end_ms, only_later);
    }
}

void session_mark_shares(server_ctx *ctx, hmq_slice session, const session_state *state) {
    long long end_ms = state->ends_ms > 0 ? state->ends_ms : state->expire_ms;
    session_fact_write(ctx, session, "shares", 1, SERVER_NO_EXPIRE);
    session_set_end(ctx, session, end_ms, true, false);
    session_index_refresh(ctx, index_of(ctx)->opened, session);
}

void session_note_sent(server_ctx *ctx, hmq_slice session, uint64_t sent) {
    queue q;
    if (queue_open(&q, ctx, session, SERVER_READ | SERVER_WRITE)) queue_set_sent(&q, sent);
    queue_close(&q);
}

bool session_set_most_sent(server_ctx *ctx, hmq_slice session, long long window) {
    session_state state;
    session_state_peek(ctx, session, &state);
    bool is_open = state.connected;
    session_state_free(&state);
    return !is_open || session_fact_write(ctx, session, "most_sent", (uint64_t)window, SERVER_NO_EXPIRE);
}

/* WINDOW of the session's OPEN or SENT; 0: it had none. */
static size_t window_of(server_ctx *ctx, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    long long window = sv.KeyType(key) == SERVER_HASH ? number_in_field(key, "most_sent", HMQ_PACKET_ID_MAX, 0) : 0;
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return (size_t)window;
}

void session_presume_sent(server_ctx *ctx, hmq_slice session, hmq_slice owner) {
    queue q;
    long long deaf_ms = owner_disconnected_since(index_of(ctx)->opened, owner);
    size_t window = window_of(ctx, session);
    if (queue_open(&q, ctx, session, SERVER_READ | SERVER_WRITE)) {
        uint64_t stored = deaf_ms == 0 ? UINT64_MAX : queue_serial_stored_by(&q, deaf_ms);
        uint64_t had_place = window == 0 ? UINT64_MAX : queue_serial_at(&q, window);
        queue_set_sent(&q, stored < had_place ? stored : had_place);
    }
    queue_close(&q);
}

/* ---- removing ---------------------------------------------------------------------------------------------- */

/* All but the queue and the hash. */
static void drop_rest(server_ctx *ctx, hmq_slice session) {
    session_delete_key(ctx, session, HMQ_SUFFIX_SUBSCRIPTIONS);
    session_delete_key(ctx, session, HMQ_SUFFIX_RECEIVED);
    session_delete_key(ctx, session, HMQ_SUFFIX_PRODUCERS);
    session_delete_key(ctx, session, HMQ_SUFFIX_REPLAYS);
    session_delete_key(ctx, session, HMQ_SUFFIX_PLACES);
    retained_cursors_drop(ctx, session);
    index_remove_session(index_of(ctx), session);
}

size_t session_drop_data(server_ctx *ctx, hmq_slice session, bool whole) {
    queue q;
    size_t messages = 0;
    session_state state;
    share_names shares = share_names_of(ctx, session);
    session_state_peek(ctx, session, &state);
    session_state_free(&state);
    member_notes_end(ctx, session, state.epoch);
    if (state.shares) {
        index_remove_session(index_of(ctx), session); /* messages that are given back must not return to it */
        share_give_back(ctx, session);
    }
    if (queue_open(&q, ctx, session, SERVER_READ | SERVER_WRITE)) messages = queue_drop(&q);
    queue_close(&q);
    drop_rest(ctx, session);
    if (whole) session_delete_key(ctx, session, HMQ_SUFFIX_SESSION);
    session_index_refresh(ctx, index_of(ctx)->opened, session);
    share_names_end(ctx, &shares);
    return messages;
}

bool session_ends_at_once(server_ctx *ctx, hmq_slice session, const session_state *state) {
    return !state->ending && (state->epoch == 0 || !state->shares || share_ends_at_once(ctx, session));
}

static void mark_ending(server_ctx *ctx, hmq_slice session, long long epoch) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    server_string *zero = sv.CreateStringFromLongLong(NULL, 0), *one = sv.CreateStringFromLongLong(NULL, 1);
    server_string *text = sv.CreateStringFromLongLong(NULL, epoch);
    sv.HashSet(key, SERVER_HASH_CFIELDS, "connected", zero, "ending", one, "gives", one, "epoch", text, NULL);
    replicate(ctx, "HSET", "scscscscs", name, "connected", zero, "ending", one, "gives", one, "epoch", text);
    sv.CloseKey(key);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, text);
    sv.FreeString(NULL, one);
    sv.FreeString(NULL, zero);
    sv.FreeString(NULL, name);
}

size_t session_begin_end(server_ctx *ctx, hmq_slice session, const session_state *state, long long epoch) {
    queue q;
    size_t messages = 0;
    share_names shares = share_names_of(ctx, session);
    if (queue_open(&q, ctx, session, SERVER_READ)) messages = queue_length(&q);
    queue_close(&q);
    drop_rest(ctx, session);
    member_notes_end(ctx, session, state->epoch);
    if (state->has_will) will_forget(ctx, session);
    mark_ending(ctx, session, epoch);
    session_set_end(ctx, session, sv.Milliseconds(), true, false);
    session_index_refresh(ctx, index_of(ctx)->opened, session);
    share_names_end(ctx, &shares);
    return messages;
}

/* At once, or in portions. */
static size_t end_data(server_ctx *ctx, hmq_slice session, const session_state *state) {
    if (session_ends_at_once(ctx, session, state)) return session_drop_data(ctx, session, true);
    return state->ending ? 0 : session_begin_end(ctx, session, state, state->epoch);
}

/* The owner and epoch are those of the connection. */
static void announce_gone(server_ctx *ctx, hmq_slice session, const session_state *state, const char *reason) {
    presence what = {.session = session, .owner = state->owner, .epoch = state->epoch, .reason = reason};
    if (state->connected) presence_announce(ctx, &what);
}

size_t session_finish(server_ctx *ctx, hmq_slice session, const session_state *state) {
    will w;
    bool has_will = state->epoch > 0 && will_read(ctx, session, &w);
    size_t messages = end_data(ctx, session, state);
    if (has_will) will_publish(ctx, session, &w); /* after the drop: the session itself does not get it */
    if (has_will) will_end(&w);
    announce_gone(ctx, session, state, state->over ? "lost" : "dropped");
    if (state->connected) session_notify_dropped(ctx, session, state->epoch);
    return messages;
}

/* ---- the connection is gone -------------------------------------------------------------------------------- */

static void mark_closed(server_ctx *ctx, hmq_slice session, const disconnection *how) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_WRITE);
    server_string *zero = sv.CreateStringFromLongLong(NULL, 0);
    server_string *expiry = sv.CreateStringFromLongLong(NULL, how->expiry_s);
    server_string *epoch = sv.CreateStringFromLongLong(NULL, how->epoch);
    sv.HashSet(key, SERVER_HASH_CFIELDS, "connected", zero, "expiry", expiry, NULL);
    if (how->epoch > 0) sv.HashSet(key, SERVER_HASH_CFIELDS, "epoch", epoch, NULL);
    sv.CloseKey(key);
    if (how->epoch > 0)
        replicate(ctx, "HSET", "scscscs", name, "connected", zero, "expiry", expiry, "epoch", epoch);
    else
        replicate(ctx, "HSET", "scscs", name, "connected", zero, "expiry", expiry);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, zero);
    sv.FreeString(NULL, expiry);
    sv.FreeString(NULL, epoch);
    sv.FreeString(NULL, name);
}

/* What happens to the will: NOW publishes it in this step, LATER leaves it to the deadline. */
typedef enum will_fate { WILL_NONE, WILL_DISCARDED, WILL_NOW, WILL_LATER } will_fate;

static will_fate decide_will(server_ctx *ctx, const will *w, const disconnection *how) {
    if (!w->given) return WILL_NONE;
    if (!how->with_will) return WILL_DISCARDED;
    bool now = w->delay_s == 0 || how->expiry_s == 0;
    return now && !is_out_of_memory(ctx) ? WILL_NOW : WILL_LATER;
}

static void disconnect_for_good(server_ctx *ctx, hmq_slice session, const session_state *state,
                                const disconnection *how, const will *w, will_fate fate) {
    long long now_ms = sv.Milliseconds();
    mark_closed(ctx, session, how);
    if (fate == WILL_LATER)
        will_set_due(ctx, session, now_ms + w->delay_s * 1000);
    else if (fate != WILL_NONE)
        will_forget(ctx, session);
    session_set_end(ctx, session, now_ms + how->expiry_s * 1000, fate == WILL_LATER || state->shares, false);
    session_index_refresh(ctx, index_of(ctx)->opened, session);
}

void session_disconnect(server_ctx *ctx, hmq_slice session, const session_state *state, const disconnection *how) {
    will w;
    will_read(ctx, session, &w);
    will_fate fate = decide_will(ctx, &w, how);
    if (how->expiry_s == 0 && fate != WILL_LATER)
        end_data(ctx, session, state);
    else
        disconnect_for_good(ctx, session, state, how, &w, fate);
    if (state->shares && (how->expiry_s > 0 || fate == WILL_LATER)) share_member_left(ctx, session);
    if (fate == WILL_NOW) will_publish(ctx, session, &w);
    will_end(&w);
    announce_gone(ctx, session, state, how->with_will ? "lost" : "closed");
}

void session_mark_lost(server_ctx *ctx, hmq_slice session, const session_state *state) {
    disconnection how = {.expiry_s = state->expiry_s, .with_will = true, .epoch = session_next_epoch(state->epoch)};
    session_presume_sent(ctx, session, state->owner == NULL ? (hmq_slice){0} : slice_of(state->owner));
    session_disconnect(ctx, session, state, &how);
    session_notify_takeover(ctx, session, how.epoch);
    counters.sessions_lost++;
}

long long session_next_epoch(long long last) {
    static long long newest; /* follows the clock only: the large epoch of one session must not raise that of others */
    long long now_ms = sv.Milliseconds();
    newest = newest >= now_ms ? newest + 1 : now_ms;
    return last >= newest ? last + 1 : newest;
}

static void notify(server_ctx *ctx, hmq_slice session, uint8_t kind, long long epoch) {
    uint8_t bytes[HMQ_DELIVERY_HEADER_BYTES];
    hmq_delivery notice = {.kind = kind, .serial = (uint64_t)epoch};
    size_t len = hmq_delivery_encode_header(&notice, bytes, sizeof bytes);
    server_string *inbox = session_key_name(session, HMQ_SUFFIX_INBOX);
    server_string *text = sv.CreateString(NULL, (const char *)bytes, len);
    sv.PublishMessage(ctx, inbox, text);
    sv.FreeString(NULL, text);
    sv.FreeString(NULL, inbox);
}

void session_notify_takeover(server_ctx *ctx, hmq_slice session, long long epoch) {
    notify(ctx, session, HMQ_DELIVERY_TAKEN_OVER, epoch);
}

void session_notify_dropped(server_ctx *ctx, hmq_slice session, long long epoch) {
    notify(ctx, session, HMQ_DELIVERY_DROPPED, epoch);
}

/* ---- what is due ------------------------------------------------------------------------------------------- */

/* The delay of the will is over, the session is not. */
static void publish_delayed(server_ctx *ctx, hmq_slice session, const session_state *state) {
    will w;
    bool given = will_read(ctx, session, &w);
    will_forget(ctx, session);
    session_set_end(ctx, session, state->ends_ms, state->shares, false);
    session_index_refresh(ctx, index_of(ctx)->opened, session);
    if (!given) return;
    will_publish(ctx, session, &w);
    will_end(&w);
}

/* The session has no more messages for others. */
static void clear_give_back_mark(server_ctx *ctx, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(key) == SERVER_HASH) {
        sv.HashSet(key, SERVER_HASH_CFIELDS, "gives", SERVER_HASH_DELETE, NULL);
        replicate(ctx, "HDEL", "sc", name, "gives");
        index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
    session_index_refresh(ctx, index_of(ctx)->opened, session);
}

/* When to continue (ms since 1970), 0: all is given. */
static long long continue_leaving(server_ctx *ctx, hmq_slice session, const session_state *state, long long until_ms) {
    if (is_out_of_memory(ctx)) return sv.Milliseconds() + RETRY_MS;
    if (share_leave_continue(ctx, session, state->ending, until_ms)) return sv.Milliseconds() + 1;
    if (state->ending)
        session_drop_data(ctx, session, true);
    else
        clear_give_back_mark(ctx, session);
    return 0;
}

long long session_do_due(server_ctx *ctx, hmq_slice session, long long until_ms) {
    session_state state;
    long long now_ms = sv.Milliseconds(), again_ms = 0;
    session_state_peek(ctx, session, &state);
    bool due = state.epoch > 0 && session_state_due(&state) > 0 && session_state_due(&state) <= now_ms;
    if (!due) {
        session_index_refresh(ctx, index_of(ctx)->opened, session);
    } else if (!session_types_are_valid(ctx, session)) {
        again_ms = now_ms + WRONG_TYPE_MS;
    } else if (state.ending || (state.gives_back && !state.over)) {
        again_ms = continue_leaving(ctx, session, &state, until_ms);
    } else if (state.has_will && is_out_of_memory(ctx)) {
        again_ms = now_ms + RETRY_MS;
    } else if (state.over) {
        session_finish(ctx, session, &state);
    } else if (state.connected) {
        session_mark_lost(ctx, session, &state);
    } else {
        publish_delayed(ctx, session, &state);
    }
    session_state_free(&state);
    return again_ms;
}
