/* session.c - SESSION.OPEN, TOUCH, CLOSE, DROP.  session/life.c has what they share with other files. */
#include "session/session.h"

#include <string.h>

#include "topic/packet_id.h"
#include "topic/session_key.h"
#include "server/args.h"
#include "server/command_slot.h"
#include "server/errors.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "index/index.h"
#include "index/overflow.h"
#include "index/session_fence.h"
#include "index/session_state.h"
#include "index/sessions.h"
#include "index/usage.h"
#include "queue/attempt.h"
#include "queue/queue.h"
#include "routing/quota.h"
#include "routing/share.h"
#include "session/identity.h"
#include "session/life.h"
#include "session/member.h"
#include "session/owner.h"
#include "session/presence.h"
#include "session/will.h"

#define DEFAULT_LEASE_S 3600

/* ---- OPEN -------------------------------------------------------------------------------------------------- */

typedef struct open_options {
    server_string *owner;
    bool clean;
    long long expiry_s;
    long long lease_s;
    long long owner_lease_s; /* 0: the owner has no heartbeat, or its key cannot be read now */
    bool owner_is_readable;
    long long claim; /* session/member.h; 0: none */
    hmq_slice attempt;       /* len 0: none */
    long long max_bytes;     /* of its queue, 0: not given */
    long long window;        /* see session_presume_sent; 0: not given */
    server_string *overflow; /* NULL: not given */
    long long user_sessions, user_bytes, user_retained; /* maxima of its user: 0: none, -1: not given */
    identity_claim identity;
    will last_will;
} open_options;

static bool parse_attempt(args *a, open_options *options) {
    server_string *token;
    if (!args_string(a, "ATTEMPT", &token)) return false;
    options->attempt = slice_of(token);
    if (options->attempt.len >= 1 && options->attempt.len <= ATTEMPT_MAX_BYTES) return true;
    reply_error(a->ctx, ERROR_ATTEMPT_LENGTH, options->attempt.len, ATTEMPT_MAX_BYTES);
    return false;
}

static bool parse_overflow(args *a, open_options *options) {
    overflow policy;
    if (!args_string(a, "OVERFLOW", &options->overflow)) return false;
    if (overflow_of(slice_of(options->overflow), &policy)) return true;
    reply_error(a->ctx, ERROR_OVERFLOW_INVALID, shown(options->overflow), OVERFLOW_EXPECTED);
    return false;
}

static bool parse_open(args *a, open_options *options) {
    bool taken;
    *options = (open_options){.lease_s = DEFAULT_LEASE_S, .user_sessions = -1, .user_bytes = -1, .user_retained = -1};
    while (args_left(a)) {
        if (args_take_word(a, "OWNER")) {
            if (!args_string(a, "OWNER", &options->owner)) return false;
        } else if (args_take_word(a, "CLEAN")) {
            options->clean = true;
        } else if (args_take_word(a, "EXPIRY")) {
            if (!args_number(a, "EXPIRY", 0, MAX_EXPIRY_S, &options->expiry_s)) return false;
        } else if (args_take_word(a, "CLAIM")) {
            if (!args_number(a, "CLAIM", 1, MAX_EPOCH, &options->claim)) return false;
        } else if (args_take_word(a, "LEASE")) {
            if (!args_number(a, "LEASE", 1, MAX_EXPIRY_S, &options->lease_s)) return false;
        } else if (args_take_word(a, "MAXBYTES")) {
            if (!args_number(a, "MAXBYTES", 1, OVERFLOW_MAX_BYTES, &options->max_bytes)) return false;
        } else if (args_take_word(a, "WINDOW")) {
            if (!args_number(a, "WINDOW", 1, HMQ_PACKET_ID_MAX, &options->window)) return false;
        } else if (args_take_word(a, "USERSESSIONS")) {
            if (!args_number(a, "USERSESSIONS", 0, QUOTA_MAX, &options->user_sessions)) return false;
        } else if (args_take_word(a, "USERBYTES")) {
            if (!args_number(a, "USERBYTES", 0, QUOTA_MAX, &options->user_bytes)) return false;
        } else if (args_take_word(a, "USERRETAINED")) {
            if (!args_number(a, "USERRETAINED", 0, QUOTA_MAX, &options->user_retained)) return false;
        } else if (args_take_word(a, "OVERFLOW")) {
            if (!parse_overflow(a, options)) return false;
        } else if (args_take_word(a, "ATTEMPT")) {
            if (!parse_attempt(a, options)) return false;
        } else if (!identity_parse(a, &options->identity, &taken)) {
            return false;
        } else if (!taken && !will_parse(a, &options->last_will, &taken)) {
            return false;
        } else if (!taken) {
            return args_end(a);
        }
    }
    if (!identity_check(a->ctx, &options->identity) || !will_check(a->ctx, &options->last_will)) return false;
    if (options->owner != NULL) return true;
    reply_error(a->ctx, ERROR_OWNER_MISSING);
    return false;
}

/* Sets the field, or removes it if there is no value.  Frees the value. */
static void write_or_remove(server_ctx *ctx, server_key *key, server_string *name, const char *field,
                            server_string *value) {
    int stands = 0;
    sv.HashGet(key, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, field, &stands, NULL);
    if (value != NULL) {
        sv.HashSet(key, SERVER_HASH_CFIELDS, field, value, NULL);
        replicate(ctx, "HSET", "scs", name, field, value);
        sv.FreeString(NULL, value);
    } else if (stands) {
        sv.HashSet(key, SERVER_HASH_CFIELDS, field, SERVER_HASH_DELETE, NULL);
        replicate(ctx, "HDEL", "sc", name, field);
    }
}

/* The owner has a heartbeat, or not. */
static void write_lease(server_ctx *ctx, server_key *key, server_string *name, long long lease_s) {
    write_or_remove(ctx, key, name, "owner_lease", lease_s > 0 ? sv.CreateStringFromLongLong(NULL, lease_s) : NULL);
}

static server_string *text_of_bound(long long bound) {
    return bound >= 0 ? sv.CreateStringFromLongLong(NULL, bound) : NULL;
}

/* Maxima and policy of the queue, maxima of its user, and the window of its client: each OPEN sets them again. */
static void write_bounds(server_ctx *ctx, server_key *key, server_string *name, const open_options *options) {
    server_string *bytes = options->max_bytes > 0 ? sv.CreateStringFromLongLong(NULL, options->max_bytes) : NULL;
    overflow policy;
    server_string *text = NULL;
    if (options->overflow != NULL && overflow_of(slice_of(options->overflow), &policy))
        text = sv.CreateString(NULL, overflow_name(policy), strlen(overflow_name(policy)));
    write_or_remove(ctx, key, name, "max_bytes", bytes);
    write_or_remove(ctx, key, name, "overflow", text);
    write_or_remove(ctx, key, name, "user_bytes", text_of_bound(options->user_bytes));
    write_or_remove(ctx, key, name, "user_retained", text_of_bound(options->user_retained));
    write_or_remove(ctx, key, name, "most_sent", text_of_bound(options->window > 0 ? options->window : -1));
}

static void write_state(server_ctx *ctx, hmq_slice session, const session_state *before, const open_options *options,
                        long long epoch) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_WRITE);
    server_string *epoch_text = sv.CreateStringFromLongLong(NULL, epoch);
    server_string *one = sv.CreateStringFromLongLong(NULL, 1);
    server_string *expiry = sv.CreateStringFromLongLong(NULL, options->expiry_s);
    server_string *lease = sv.CreateStringFromLongLong(NULL, options->lease_s);
    sv.HashSet(key, SERVER_HASH_CFIELDS, "owner", options->owner, "epoch", epoch_text, "connected", one, "expiry",
               expiry, "lease", lease, NULL);
    replicate(ctx, "HSET", "scscscscscs", name, "owner", options->owner, "epoch", epoch_text, "connected", one,
              "expiry", expiry, "lease", lease);
    write_lease(ctx, key, name, options->owner_lease_s);
    write_bounds(ctx, key, name, options);
    if (options->claim > 0) write_or_remove(ctx, key, name, "claim", sv.CreateStringFromLongLong(NULL, options->claim));
    identity_write(ctx, key, name, before, &options->identity, options->clean);
    will_write(ctx, key, name, &options->last_will);
    sv.CloseKey(key);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, epoch_text);
    sv.FreeString(NULL, one);
    sv.FreeString(NULL, expiry);
    sv.FreeString(NULL, lease);
    sv.FreeString(NULL, name);
}

/* Does it have messages or subscriptions, although it was not opened?  (TBMQ's keyspace, or SESSION.ADD before OPEN.) */
static bool holds_data(server_ctx *ctx, hmq_slice session) {
    static const hmq_suffix suffixes[] = {HMQ_SUFFIX_MESSAGES, HMQ_SUFFIX_SUBSCRIPTIONS};
    bool found = false;
    for (size_t i = 0; !found && i < sizeof suffixes / sizeof suffixes[0]; i++) {
        server_string *name = session_key_name(session, suffixes[i]);
        found = sv.KeyExists(ctx, name);
        sv.FreeString(NULL, name);
    }
    return found;
}

/* A clean session begins without the counts of the former one. */
static void forget_counts(server_ctx *ctx, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(key) == SERVER_HASH) {
        int removed = sv.HashSet(key, SERVER_HASH_CFIELDS | SERVER_HASH_COUNT_ALL, "sent", SERVER_HASH_DELETE, "round",
                                 SERVER_HASH_DELETE, "expiring", SERVER_HASH_DELETE, "shares", SERVER_HASH_DELETE,
                                 "window", SERVER_HASH_DELETE, "dropped", SERVER_HASH_DELETE, "qos0_until",
                                 SERVER_HASH_DELETE, "gives", SERVER_HASH_DELETE, NULL);
        if (removed > 0)
            replicate(ctx, "HDEL", "scccccccc", name, "sent", "round", "expiring", "shares", "window", "dropped",
                      "qos0_until", "gives");
        if (removed > 0) index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
        if (removed > 0 && sv.KeyType(key) == SERVER_EMPTY) index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

/* The session's former connection is over, without having been closed. */
static void end_former(server_ctx *ctx, hmq_slice session, const session_state *before, bool clean) {
    will w;
    bool given = will_read(ctx, session, &w);
    bool publish = given && (clean || (before->connected && w.delay_s == 0));
    if (before->connected && !clean)
        session_presume_sent(ctx, session, before->owner == NULL ? (hmq_slice){0} : slice_of(before->owner));
    if (clean) session_drop_data(ctx, session, false);
    if (publish) will_publish(ctx, session, &w);
    will_end(&w);
}

/* A session whose owner's key the command may not open. */
typedef struct leased {
    server_string *session, *owner;
    long long epoch;
} leased;

static void release_leased(void *data) {
    leased *l = data;
    sv.FreeString(NULL, l->session);
    sv.FreeString(NULL, l->owner);
    sv.Free(l);
}

/* If its owner has a heartbeat, the session depends on it from now on. */
static void take_lease(server_ctx *ctx, void *data) {
    const leased *l = data;
    hmq_slice session = slice_of(l->session);
    long long lease_s = owner_lease(ctx, slice_of(l->owner));
    session_state state;
    session_state_peek(ctx, session, &state);
    session_state_free(&state);
    if (lease_s == 0 || !state.connected || state.epoch != l->epoch) return;
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_WRITE);
    write_lease(ctx, key, name, lease_s);
    sv.CloseKey(key);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    session_set_end(ctx, session, SERVER_NO_EXPIRE, false, false);
    session_index_refresh(ctx, index_of(ctx)->opened, session);
    sv.FreeString(NULL, name);
}

static void take_lease_after(server_ctx *ctx, hmq_slice session, server_string *owner, long long epoch) {
    leased *l = sv.Alloc(sizeof *l);
    *l = (leased){sv.CreateString(NULL, (const char *)session.data, session.len), sv.HoldString(NULL, owner), epoch};
    command_slot_after(ctx, take_lease, l, release_leased);
}

static long long take_session(server_ctx *ctx, hmq_slice session, const session_state *before,
                              const open_options *options) {
    long long epoch = session_next_epoch(before->epoch);
    if (options->clean) forget_counts(ctx, session);
    write_state(ctx, session, before, options, epoch);
    bool kept = options->last_will.given || (before->shares && !options->clean);
    long long end_ms = sv.Milliseconds() + (options->expiry_s + options->lease_s) * 1000;
    session_set_end(ctx, session, options->owner_lease_s > 0 ? SERVER_NO_EXPIRE : end_ms, kept, false);
    session_index_refresh(ctx, index_of(ctx)->opened, session);
    if (!before->exists) queue_note_new_session(ctx, session);
    if (before->exists) session_notify_takeover(ctx, session, epoch);
    if (!options->owner_is_readable) take_lease_after(ctx, session, options->owner, epoch);
    return epoch;
}

static int reply_opened(server_ctx *ctx, long long epoch, bool present) {
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithLongLong(ctx, epoch);
    return sv.ReplyWithLongLong(ctx, present);
}

/* The former connection, if there was one, is no longer connected; the new one is. */
static void announce_presence(server_ctx *ctx, hmq_slice session, const session_state *before,
                              const open_options *options, long long epoch, bool present) {
    presence what = {.session = session, .owner = before->owner, .epoch = before->epoch, .reason = "taken over"};
    if (before->exists && before->connected) presence_announce(ctx, &what);
    what = (presence){.session = session,
                      .owner = options->owner,
                      .epoch = epoch,
                      .connected = true,
                      .reason = present ? "resumed" : "new"};
    presence_announce(ctx, &what);
}

/* Its connection is over by this OPEN, and with it the session [MQTT 3.1.1, 3.1.2-6; MQTT 5.0, 3.1.2.11.2]. */
static bool ends_with_connection(const session_state *before) {
    return before->connected && before->expiry_s == 0;
}

/* The former session ends, and with it its connection; the new one is opened when that is done. */
static int end_before(server_ctx *ctx, hmq_slice session, const session_state *before) {
    will w;
    bool given = will_read(ctx, session, &w);
    long long epoch = session_next_epoch(before->epoch);
    session_begin_end(ctx, session, before, epoch);
    if (given) will_publish(ctx, session, &w);
    will_end(&w);
    presence what = {.session = session, .owner = before->owner, .epoch = before->epoch, .reason = "taken over"};
    if (before->connected) presence_announce(ctx, &what);
    if (before->connected) session_notify_takeover(ctx, session, epoch);
    return session_reply_leaving(ctx, session);
}

static int open_session(server_ctx *ctx, hmq_slice session, session_state *before, open_options *options) {
    if (before->ending || (before->gives_back && !before->connected)) return session_reply_leaving(ctx, session);
    if (before->over) {
        bool at_once = session_ends_at_once(ctx, session, before);
        session_finish(ctx, session, before);
        if (!at_once) return session_reply_leaving(ctx, session);
        session_state_free(before);
        *before = (session_state){.epoch = before->epoch};
    }
    bool belongs_to_other = identity_differs(before, &options->identity);
    if (belongs_to_other && !options->identity.replaces)
        return identity_refuse(ctx, session, before, &options->identity);
    options->clean |= belongs_to_other;
    quota_claim by = {options->identity.name, options->user_sessions};
    if (!quota_allows_session(ctx, session, before->exists, &by)) return SERVER_OK;
    bool present = !options->clean && (before->exists || holds_data(ctx, session));
    if (before->connected && options->attempt.len > 0 &&
        attempt_is_repeated(ctx, session, options->attempt, before->epoch, &present))
        return reply_opened(ctx, before->epoch, present);
    if (ends_with_connection(before)) {
        options->clean = true;
        present = false;
    }
    if (before->exists && options->clean && !session_ends_at_once(ctx, session, before))
        return end_before(ctx, session, before);
    if (before->exists)
        end_former(ctx, session, before, options->clean);
    else if (options->clean)
        session_drop_data(ctx, session, false);
    long long epoch = take_session(ctx, session, before, options);
    if (options->attempt.len > 0) attempt_note(ctx, session, options->attempt, epoch, present);
    reply_opened(ctx, epoch, present);
    announce_presence(ctx, session, before, options, epoch, present);
    if (before->shares && !options->clean) share_member_joined(ctx, session, (hmq_slice){0});
    return SERVER_OK;
}

int session_open_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    open_options options;
    session_state before;
    if (!args_session_key(&a, &key) || !parse_open(&a, &options)) return SERVER_OK;
    hmq_slice session = slice_of(key);
    if (!member_check_open(ctx, session, options.claim)) return SERVER_OK;
    options.owner_is_readable = owner_is_readable(slice_of(options.owner));
    if (options.owner_is_readable) options.owner_lease_s = owner_lease(ctx, slice_of(options.owner));
    if (!session_check_types(ctx, session) || !session_state_read(ctx, session, &before)) return SERVER_OK;
    if (options.claim == 0 || member_check_claim(ctx, session, options.claim))
        open_session(ctx, session, &before, &options);
    session_state_free(&before);
    return SERVER_OK;
}

/* ---- TOUCH, CLOSE, DROP ------------------------------------------------------------------------------------ */

/* Key and the EPOCH that TOUCH and CLOSE require. */
static bool parse_owned(args *a, server_string **key) {
    if (!args_session_key(a, key)) return false;
    if (!args_take_word(a, "EPOCH")) {
        reply_error(a->ctx, ERROR_EPOCH_MISSING);
        return false;
    }
    long long epoch;
    return args_number(a, "EPOCH", 1, INT64_MAX, &epoch) && session_epoch_matches(a->ctx, slice_of(*key), epoch);
}

int session_touch_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    session_state state;
    if (argc != 4) return sv.WrongArity(ctx);
    if (!parse_owned(&a, &key) || !session_state_read(ctx, slice_of(key), &state)) return SERVER_OK;
    session_state_free(&state);
    long long end_ms = sv.Milliseconds() + (state.expiry_s + state.lease_s) * 1000;
    if (state.owner_lease_s == 0) /* else it depends on its owner's */
        session_set_end(ctx, slice_of(key), end_ms, state.has_will || state.shares, true);
    session_index_refresh(ctx, index_of(ctx)->opened, slice_of(key));
    return sv.ReplyWithSimpleString(ctx, "OK");
}

int session_close_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    session_state state;
    long long expiry_s = -1, sent = 0;
    bool with_will = false;
    if (!parse_owned(&a, &key)) return SERVER_OK;
    while (args_left(&a)) {
        if (args_take_word(&a, "EXPIRY")) {
            if (!args_number(&a, "EXPIRY", 0, MAX_EXPIRY_S, &expiry_s)) return SERVER_OK;
        } else if (args_take_word(&a, "SENT")) {
            if (!args_number(&a, "SENT", 0, 1LL << 53, &sent)) return SERVER_OK;
        } else if (args_take_word(&a, "WILL")) {
            with_will = true;
        } else if (!args_end(&a)) {
            return SERVER_OK;
        }
    }
    hmq_slice session = slice_of(key);
    if (!session_check_types(ctx, session) || !session_state_read(ctx, session, &state)) return SERVER_OK;
    disconnection how = {.expiry_s = expiry_s < 0 ? state.expiry_s : expiry_s, .with_will = with_will};
    if (sent > 0) session_note_sent(ctx, session, (uint64_t)sent);
    session_disconnect(ctx, session, &state, &how);
    session_state_free(&state);
    return sv.ReplyWithSimpleString(ctx, "OK");
}

/* CLAIM of a member; 0: it was not given. */
static bool parse_drop(args *a, hmq_slice session, long long *claim) {
    *claim = 0;
    if (!args_take_word(a, "CLAIM")) return args_end(a);
    return args_number(a, "CLAIM", 1, MAX_EPOCH, claim) && args_end(a) && member_check_drop(a->ctx, session, *claim);
}

int session_drop_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    session_state state;
    long long claim;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    hmq_slice session = slice_of(key);
    if (!parse_drop(&a, session, &claim) || !session_check_types(ctx, session)) return SERVER_OK;
    if (claim > 0 && !member_check_claim(ctx, session, claim)) return SERVER_OK;
    if (!session_state_read(ctx, session, &state)) return SERVER_OK;
    size_t messages = session_finish(ctx, session, &state);
    session_state_free(&state);
    return sv.ReplyWithLongLong(ctx, (long long)messages);
}
