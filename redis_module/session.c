/* session.c - the life of a session: OPEN, TOUCH, CLOSE, DROP, INFO. */
#include "session.h"

#include <string.h>

#include "../src/record.h"
#include "../src/session_key.h"
#include "args.h"
#include "errors.h"
#include "index.h"
#include "replication.h"
#include "session_hash.h"

#define DEFAULT_LEASE_S 3600
#define MAX_EXPIRY_S 4294967295LL
#define MAX_EPOCH ((1LL << 53) - 1)

/* ---- the hash ---------------------------------------------------------------------------------------------- */

/* 0 as well for what others wrote and nobody can mean. */
static long long number_or_zero(server_string *field, long long max) {
    long long number = 0;
    return field != NULL && number_of(field, 0, max, &number) ? number : 0;
}

bool session_state_read(server_ctx *ctx, hmq_slice session, session_state *state) {
    *state = (session_state){.expire_ms = SERVER_NO_EXPIRE};
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    int type = key == NULL ? SERVER_EMPTY : sv.KeyType(key);
    if (type == SERVER_HASH) {
        server_string *epoch = NULL, *connected = NULL, *expiry = NULL, *lease = NULL;
        sv.HashGet(key, SERVER_HASH_CFIELDS, "epoch", &epoch, "connected", &connected, "expiry", &expiry, "lease",
                   &lease, "owner", &state->owner, NULL);
        state->epoch = number_or_zero(epoch, MAX_EPOCH);
        state->exists = state->epoch > 0;
        state->connected = number_or_zero(connected, 1) == 1;
        state->expiry_s = number_or_zero(expiry, MAX_EXPIRY_S);
        state->lease_s = number_or_zero(lease, MAX_EXPIRY_S);
        state->expire_ms = sv.GetAbsExpire(key);
        server_string *fields[] = {epoch, connected, expiry, lease};
        for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
            if (fields[i] != NULL) sv.FreeString(NULL, fields[i]);
        }
    }
    if (key != NULL) sv.CloseKey(key);
    if (type != SERVER_HASH && type != SERVER_EMPTY) reply_wrong_type(ctx, name, "a hash");
    sv.FreeString(NULL, name);
    return type == SERVER_HASH || type == SERVER_EMPTY;
}

void session_state_free(session_state *state) {
    if (state->owner != NULL) sv.FreeString(NULL, state->owner);
    state->owner = NULL;
}

static bool epoch_matches(server_ctx *ctx, hmq_slice session, long long epoch) {
    session_state state;
    if (!session_state_read(ctx, session, &state)) return false;
    session_state_free(&state);
    if (!state.exists) {
        reply_error(ctx, ERROR_NOSESSION, "the session %s was not opened, or has expired", shown_slice(session));
        return false;
    }
    if (state.epoch == epoch) return true;
    counters.fenced++;
    reply_error(ctx, ERROR_FENCED, "EPOCH is %lld: the session %s has the newer owner of epoch %lld", epoch,
                shown_slice(session), state.epoch);
    return false;
}

bool session_require_epoch(server_ctx *ctx, hmq_slice session, long long epoch) {
    return epoch == 0 || epoch_matches(ctx, session, epoch);
}

bool session_check_epoch(args *a, hmq_slice session) {
    if (!args_take_word(a, "EPOCH")) return true;
    long long epoch;
    return args_number(a, "EPOCH", 0, INT64_MAX, &epoch) && session_require_epoch(a->ctx, session, epoch);
}

static void delete_key(server_ctx *ctx, hmq_slice session, hmq_suffix suffix) {
    server_string *name = session_key_name(session, suffix);
    server_key *key = sv.OpenKey(ctx, name, SERVER_WRITE);
    if (sv.KeyType(key) != SERVER_EMPTY) {
        sv.UnlinkKey(key);
        replicate(ctx, "UNLINK", "s", name);
        index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

/* Drops the session's data; the hash itself only if `whole`.  False after replying WRONGTYPE. */
static bool drop_data(server_ctx *ctx, hmq_slice session, bool whole, size_t *messages) {
    queue q;
    if (!session_check_types(ctx, session)) return false;
    bool opened = queue_open(&q, ctx, session, SERVER_READ | SERVER_WRITE);
    if (opened)
        *messages = queue_drop(&q);
    else
        reply_wrong_type(ctx, q.wrong_type, q.wrong_expected);
    queue_close(&q);
    if (!opened) return false;
    delete_key(ctx, session, HMQ_SUFFIX_SUBSCRIPTIONS);
    delete_key(ctx, session, HMQ_SUFFIX_RECEIVED);
    delete_key(ctx, session, HMQ_SUFFIX_PRODUCERS);
    if (whole) delete_key(ctx, session, HMQ_SUFFIX_SESSION);
    index_remove_session(index_of(ctx), session);
    return true;
}

/* ---- OPEN -------------------------------------------------------------------------------------------------- */

typedef struct open_options {
    server_string *owner;
    bool clean;
    long long expiry_s;
    long long lease_s;
} open_options;

static bool parse_open(args *a, open_options *options) {
    *options = (open_options){.lease_s = DEFAULT_LEASE_S};
    while (args_left(a)) {
        if (args_take_word(a, "OWNER")) {
            if (!args_string(a, "OWNER", &options->owner)) return false;
        } else if (args_take_word(a, "CLEAN")) {
            options->clean = true;
        } else if (args_take_word(a, "EXPIRY")) {
            if (!args_number(a, "EXPIRY", 0, MAX_EXPIRY_S, &options->expiry_s)) return false;
        } else if (args_take_word(a, "LEASE")) {
            if (!args_number(a, "LEASE", 1, MAX_EXPIRY_S, &options->lease_s)) return false;
        } else {
            return args_end(a);
        }
    }
    if (options->owner != NULL) return true;
    reply_error(a->ctx, ERROR_SYNTAX, "OWNER is missing: OWNER <name> expected");
    return false;
}

static void write_state(server_ctx *ctx, hmq_slice session, const open_options *options, long long epoch) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_WRITE);
    server_string *epoch_text = sv.CreateStringFromLongLong(NULL, epoch);
    server_string *one = sv.CreateStringFromLongLong(NULL, 1);
    server_string *expiry = sv.CreateStringFromLongLong(NULL, options->expiry_s);
    server_string *lease = sv.CreateStringFromLongLong(NULL, options->lease_s);
    sv.HashSet(key, SERVER_HASH_CFIELDS, "owner", options->owner, "epoch", epoch_text, "connected", one, "expiry",
               expiry, "lease", lease, NULL);
    sv.CloseKey(key);
    replicate(ctx, "HSET", "scscscscscs", name, "owner", options->owner, "epoch", epoch_text, "connected", one,
              "expiry", expiry, "lease", lease);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, epoch_text);
    sv.FreeString(NULL, one);
    sv.FreeString(NULL, expiry);
    sv.FreeString(NULL, lease);
    sv.FreeString(NULL, name);
}

/* Whoever listens for this session learns that it has a new owner. */
static void notify_takeover(server_ctx *ctx, hmq_slice session, long long epoch) {
    uint8_t bytes[HMQ_DELIVERY_HEADER_BYTES];
    hmq_delivery notice = {.kind = HMQ_DELIVERY_TAKEN_OVER, .serial = (uint64_t)epoch};
    size_t len = hmq_delivery_encode_header(&notice, bytes, sizeof bytes);
    server_string *inbox = session_key_name(session, HMQ_SUFFIX_INBOX);
    server_string *message = sv.CreateString(NULL, (const char *)bytes, len);
    sv.PublishMessage(ctx, inbox, message);
    sv.FreeString(NULL, message);
    sv.FreeString(NULL, inbox);
}

/* Has it messages or subscriptions, though nobody opened it?  (A keyspace of TBMQ's, or SESSION.ADD came first.) */
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

/* What the session counted is over: a clean session begins with none of it. */
static void forget_counts(server_ctx *ctx, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(key) == SERVER_HASH) {
        int removed = sv.HashSet(key, SERVER_HASH_CFIELDS | SERVER_HASH_COUNT_ALL, "sent", SERVER_HASH_DELETE, "round",
                                 SERVER_HASH_DELETE, "expiring", SERVER_HASH_DELETE, NULL);
        if (removed > 0) replicate(ctx, "HDEL", "sccc", name, "sent", "round", "expiring");
        if (removed > 0) index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
        if (removed > 0 && sv.KeyType(key) == SERVER_EMPTY) index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

/* Messages up to `sent` were handed to the client. */
static void note_sent(server_ctx *ctx, hmq_slice session, uint64_t sent) {
    queue q;
    if (queue_open(&q, ctx, session, SERVER_READ | SERVER_WRITE)) queue_set_sent(&q, sent);
    queue_close(&q);
}

/* Larger than the session's last one, than all that this server gave out, and than those of a session dropped long ago. */
static long long next_epoch(long long last, long long now_ms) {
    static long long newest; /* follows the clock only: one session's odd epoch moves no other's */
    newest = newest >= now_ms ? newest + 1 : now_ms;
    return last >= newest ? last + 1 : newest;
}

int session_open_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    open_options options;
    if (!args_session_key(&a, &key) || !parse_open(&a, &options)) return SERVER_OK;
    hmq_slice session = slice_of(key);
    session_state before;
    if (!session_check_types(ctx, session) || !session_state_read(ctx, session, &before)) return SERVER_OK;
    session_state_free(&before);
    bool present = !options.clean && (before.exists || holds_data(ctx, session));
    size_t messages;
    if (options.clean && !drop_data(ctx, session, false, &messages)) return SERVER_OK;
    if (options.clean) forget_counts(ctx, session);
    /* The former owner did not say what it had handed to the client: all that is queued may have been. */
    if (present && before.connected) note_sent(ctx, session, UINT64_MAX);
    long long now_ms = sv.Milliseconds();
    long long epoch = next_epoch(before.epoch, now_ms);
    write_state(ctx, session, &options, epoch);
    session_keys_expire(ctx, session, now_ms + (options.expiry_s + options.lease_s) * 1000, false);
    if (before.exists) notify_takeover(ctx, session, epoch);
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithLongLong(ctx, epoch);
    sv.ReplyWithLongLong(ctx, present);
    return SERVER_OK;
}

/* ---- TOUCH, CLOSE, DROP ------------------------------------------------------------------------------------ */

/* Key and the EPOCH that TOUCH and CLOSE require. */
static bool parse_owned(args *a, server_string **key) {
    if (!args_session_key(a, key)) return false;
    if (!args_take_word(a, "EPOCH")) {
        reply_error(a->ctx, ERROR_SYNTAX, "EPOCH is missing: EPOCH <epoch> expected behind the session key");
        return false;
    }
    long long epoch;
    return args_number(a, "EPOCH", 1, INT64_MAX, &epoch) && epoch_matches(a->ctx, slice_of(*key), epoch);
}

int session_touch_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    session_state state;
    if (argc != 4) return sv.WrongArity(ctx);
    if (!parse_owned(&a, &key) || !session_state_read(ctx, slice_of(key), &state)) return SERVER_OK;
    session_state_free(&state);
    session_keys_expire(ctx, slice_of(key), sv.Milliseconds() + (state.expiry_s + state.lease_s) * 1000, true);
    return sv.ReplyWithSimpleString(ctx, "OK");
}

static void mark_closed(server_ctx *ctx, hmq_slice session, long long expiry_s) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_WRITE);
    server_string *zero = sv.CreateStringFromLongLong(NULL, 0);
    server_string *expiry = sv.CreateStringFromLongLong(NULL, expiry_s);
    sv.HashSet(key, SERVER_HASH_CFIELDS, "connected", zero, "expiry", expiry, NULL);
    sv.CloseKey(key);
    replicate(ctx, "HSET", "scscs", name, "connected", zero, "expiry", expiry);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, zero);
    sv.FreeString(NULL, expiry);
    sv.FreeString(NULL, name);
}

int session_close_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    session_state state;
    long long expiry_s = -1, sent = 0;
    if (!parse_owned(&a, &key)) return SERVER_OK;
    while (args_left(&a)) {
        if (args_take_word(&a, "EXPIRY")) {
            if (!args_number(&a, "EXPIRY", 0, MAX_EXPIRY_S, &expiry_s)) return SERVER_OK;
        } else if (args_take_word(&a, "SENT")) {
            if (!args_number(&a, "SENT", 0, 1LL << 53, &sent)) return SERVER_OK;
        } else if (!args_end(&a)) {
            return SERVER_OK;
        }
    }
    if (!session_state_read(ctx, slice_of(key), &state)) return SERVER_OK;
    session_state_free(&state);
    if (expiry_s < 0) expiry_s = state.expiry_s;
    hmq_slice session = slice_of(key);
    size_t messages;
    if (expiry_s == 0) {
        if (!drop_data(ctx, session, true, &messages)) return SERVER_OK;
    } else {
        mark_closed(ctx, session, expiry_s);
        if (sent > 0) note_sent(ctx, session, (uint64_t)sent);
        session_keys_expire(ctx, session, sv.Milliseconds() + expiry_s * 1000, false);
    }
    return sv.ReplyWithSimpleString(ctx, "OK");
}

int session_drop_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    size_t messages = 0;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key)) || !args_end(&a)) return SERVER_OK;
    if (!drop_data(ctx, slice_of(key), true, &messages)) return SERVER_OK;
    return sv.ReplyWithLongLong(ctx, (long long)messages);
}

/* ---- INFO -------------------------------------------------------------------------------------------------- */

static void reply_field(server_ctx *ctx, const char *name, long long value) {
    sv.ReplyWithCString(ctx, name);
    sv.ReplyWithLongLong(ctx, value);
}

static long long subscriptions_of(server_ctx *ctx, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SUBSCRIPTIONS);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    long long count = key != NULL && sv.KeyType(key) == SERVER_HASH ? (long long)sv.ValueLength(key) : 0;
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return count;
}

int session_info_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    session_state state;
    queue q;
    if (!args_session_key(&a, &key) || !args_end(&a)) return SERVER_OK;
    hmq_slice session = slice_of(key);
    if (!session_check_types(ctx, session) || !session_state_read(ctx, session, &state)) return SERVER_OK;
    if (!queue_open(&q, ctx, session, SERVER_READ)) {
        reply_wrong_type(ctx, q.wrong_type, q.wrong_expected);
    } else if (queue_last_packet_id(&q) < 0) {
        reply_wrong_type(ctx, queue_counter_name(&q), "a string with a number from 0 to 65535");
    } else {
        long long now_ms = sv.Milliseconds();
        sv.ReplyWithMap(ctx, 11);
        reply_field(ctx, "exists", state.exists);
        sv.ReplyWithCString(ctx, "owner");
        if (state.owner != NULL)
            sv.ReplyWithString(ctx, state.owner);
        else
            sv.ReplyWithNull(ctx);
        reply_field(ctx, "epoch", state.epoch);
        reply_field(ctx, "connected", state.connected);
        reply_field(ctx, "expiry", state.expiry_s);
        reply_field(ctx, "messages", (long long)queue_length(&q));
        reply_field(ctx, "first_serial", (long long)queue_first_serial(&q));
        reply_field(ctx, "last_serial", (long long)queue_last_serial(&q));
        reply_field(ctx, "last_packet_id", queue_last_packet_id(&q));
        reply_field(ctx, "subscriptions", subscriptions_of(ctx, session));
        reply_field(ctx, "ttl_ms", state.expire_ms == SERVER_NO_EXPIRE ? -1 : state.expire_ms - now_ms);
    }
    queue_close(&q);
    session_state_free(&state);
    return SERVER_OK;
}
