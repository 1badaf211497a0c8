/* store.c - writes the lists of channels. */
#include "channel/store.h"

#include <stdio.h>
#include <string.h>

#include "server/errors.h"
#include "server/filter_unit.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/resources.h"
#include "server/slots.h"
#include "server/turns.h"
#include "index/channels.h"
#include "index/index.h"

/* A list's expiry is changed only by more than this part of the ttl, so that most messages replicate as one RPUSH.  A
 * message lives at least its ttl, and at most 1/64 longer. */
#define EXPIRY_SLACK 64
#define CLAIMS_PER_TURN 100
#define REFUSAL_MAX_BYTES 192

static void (*on_trim)(int db, hmq_slice channel, size_t count);

void store_watch_trims(void (*watcher)(int db, hmq_slice channel, size_t count)) {
    on_trim = watcher;
}

typedef enum step_kind { STEP_CHECK, STEP_KEEP, STEP_SUPERSEDE, STEP_ASIDE, STEP_TAKE, STEP_CUT } step_kind;

/* The work of HOLDMQ.INTERNAL, which this file calls in the same step. */
typedef struct step {
    step_kind kind;
    server_string *channel, *message;
    keeping how;
    size_t count;
    server_string **messages; /* STEP_TAKE: the messages that were taken */
    size_t taken;
} step;

static step *running;
static bool writes_checked; /* the server has accepted a write in this turn of the event loop */

/* ---- one list ---------------------------------------------------------------------------------------------- */

static void trim_list(server_ctx *ctx, server_key *list, server_string *name, hmq_slice channel, uint64_t maxlen) {
    size_t length = sv.ValueLength(list);
    if (length <= maxlen) return;
    on_trim(sv.GetSelectedDb(ctx), channel, length - (size_t)maxlen);
    for (; length > maxlen; length--) {
        server_string *oldest = sv.ListPop(list, SERVER_LIST_HEAD);
        sv.FreeString(NULL, oldest);
        counters.channel_trimmed++;
    }
    replicate(ctx, "LTRIM", "sll", name, -(long long)maxlen, -1LL);
    index_notify(ctx, SERVER_NOTIFY_LIST, "ltrim", name);
}

static void set_expiry(server_ctx *ctx, server_key *list, server_string *name, long long due_ms) {
    sv.SetAbsExpire(list, due_ms);
    replicate(ctx, "PEXPIREAT", "sl", name, due_ms);
    index_notify(ctx, SERVER_NOTIFY_GENERIC, "expire", name);
}

static void expire_list(server_ctx *ctx, server_key *list, server_string *name, uint64_t ttl_s) {
    long long current = sv.GetAbsExpire(list);
    if (ttl_s == 0) {
        if (current == SERVER_NO_EXPIRE) return;
        sv.SetAbsExpire(list, SERVER_NO_EXPIRE);
        replicate(ctx, "PERSIST", "s", name);
        index_notify(ctx, SERVER_NOTIFY_GENERIC, "persist", name);
        return;
    }
    long long ttl_ms = (long long)ttl_s * 1000, due = sv.Milliseconds() + ttl_ms, slack = ttl_ms / EXPIRY_SLACK;
    if (current < due || current > due + slack) set_expiry(ctx, list, name, due + slack);
}

/* Opens the channel's key of a kind for writing; NULL if it has another type. */
static server_key *open_list(server_ctx *ctx, server_string *name, bool *is_new) {
    server_key *list = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    int type = sv.KeyType(list);
    *is_new = type == SERVER_EMPTY;
    if (type == SERVER_LIST || type == SERVER_EMPTY) return list;
    sv.CloseKey(list);
    return NULL;
}

/* Appends to a list and keeps it within its bounds.  False if the key is not a list. */
static bool append(server_ctx *ctx, const step *s, hmq_channel_key_kind kind, server_string *text, uint64_t maxlen) {
    hmq_slice channel = slice_of(s->channel);
    server_string *name = channel_key(channel, kind);
    bool is_new;
    server_key *list = open_list(ctx, name, &is_new);
    if (list != NULL) {
        sv.ListPush(list, SERVER_LIST_TAIL, text);
        replicate(ctx, "RPUSH", "ss", name, text);
        if (is_new) channel_index_set(index_of(ctx), channel, kind, true);
        index_notify(ctx, SERVER_NOTIFY_LIST, "rpush", name);
        trim_list(ctx, list, name, channel, maxlen);
        expire_list(ctx, list, name, s->how.ttl_s);
        sv.CloseKey(list);
    }
    sv.FreeString(NULL, name);
    return list != NULL;
}

/* ---- marks ------------------------------------------------------------------------------------------------- */

static bool has(server_ctx *ctx, hmq_slice channel, hmq_channel_key_kind kind) {
    return (channel_index_kinds(index_of(ctx), channel) & KIND_BIT(kind)) != 0;
}

static void remove_key(server_ctx *ctx, hmq_slice channel, hmq_channel_key_kind kind) {
    server_string *name = channel_key(channel, kind);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    bool was_there = sv.KeyType(key) != SERVER_EMPTY;
    if (was_there) {
        sv.UnlinkKey(key);
        replicate(ctx, "DEL", "s", name);
        index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.CloseKey(key);
    channel_index_set(index_of(ctx), channel, kind, false);
    sv.FreeString(NULL, name);
}

/* When the held list expires. */
static long long held_until(server_ctx *ctx, hmq_slice channel) {
    server_string *name = channel_key(channel, HMQ_CHANNEL_HELD);
    server_key *key = key_open_unseen(ctx, name, true);
    long long due_ms = key == NULL ? SERVER_NO_EXPIRE : sv.GetAbsExpire(key);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return due_ms;
}

static void mark(server_ctx *ctx, hmq_slice channel, hmq_channel_key_kind kind, const char *why) {
    server_string *name = channel_key(channel, kind), *text = sv.CreateString(NULL, why, strlen(why));
    bool is_new;
    server_key *list = open_list(ctx, name, &is_new);
    if (list != NULL && is_new) {
        sv.ListPush(list, SERVER_LIST_TAIL, text);
        replicate(ctx, "RPUSH", "ss", name, text);
        index_notify(ctx, SERVER_NOTIFY_LIST, "rpush", name);
        long long due_ms = held_until(ctx, channel);
        if (due_ms != SERVER_NO_EXPIRE) set_expiry(ctx, list, name, due_ms);
    }
    if (list != NULL) {
        channel_index_set(index_of(ctx), channel, kind, true);
        sv.CloseKey(list);
    }
    sv.FreeString(NULL, text);
    sv.FreeString(NULL, name);
}

/* The mark expires with the held list. */
static void renew_aside_mark(server_ctx *ctx, const step *s) {
    server_string *name = channel_key(slice_of(s->channel), HMQ_CHANNEL_ASIDE);
    bool is_new;
    server_key *list = open_list(ctx, name, &is_new);
    if (list != NULL && !is_new) expire_list(ctx, list, name, s->how.ttl_s);
    if (list != NULL) sv.CloseKey(list);
    sv.FreeString(NULL, name);
}

static void set_aside_mark(server_ctx *ctx, hmq_slice channel) {
    if (!has(ctx, channel, HMQ_CHANNEL_HELD) || has(ctx, channel, HMQ_CHANNEL_ASIDE)) return;
    mark(ctx, channel, HMQ_CHANNEL_ASIDE, "the application uses this channel's name for a key");
    counters.channel_stepped_aside++;
}

/* ---- the steps --------------------------------------------------------------------------------------------- */

static void keep_held(server_ctx *ctx, const step *s) {
    hmq_slice channel = slice_of(s->channel);
    const index_t *index = index_of(ctx);
    unsigned kinds = channel_index_kinds(index, channel);
    bool is_marked = (kinds & KIND_BIT(HMQ_CHANNEL_ASIDE)) != 0;
    bool is_used = !is_marked && channel_index_is_used(ctx, index, channel, s->channel);
    if (!append(ctx, s, HMQ_CHANNEL_HELD, s->message, s->how.maxlen)) {
        counters.channel_not_held_wrongtype++;
        return;
    }
    counters.channel_held++;
    if (kinds & KIND_BIT(HMQ_CHANNEL_HEARD)) remove_key(ctx, channel, HMQ_CHANNEL_HEARD);
    if (is_marked) renew_aside_mark(ctx, s);
    if (is_used) set_aside_mark(ctx, channel);
}

static void keep(server_ctx *ctx, const step *s) {
    if (s->how.held) keep_held(ctx, s);
    if (s->how.last && !append(ctx, s, HMQ_CHANNEL_LAST, s->message, 1))
        counters.channel_not_held_wrongtype++;
    else if (s->how.last && !s->how.held)
        counters.channel_held++;
}

static void supersede(server_ctx *ctx, const step *s) {
    hmq_slice channel = slice_of(s->channel);
    if (s->how.held && has(ctx, channel, HMQ_CHANNEL_HELD) && !has(ctx, channel, HMQ_CHANNEL_HEARD)) {
        mark(ctx, channel, HMQ_CHANNEL_HEARD, "a later message of this channel was heard, or not kept here");
        counters.channel_superseded++;
    }
    if (s->how.last && has(ctx, channel, HMQ_CHANNEL_LAST)) remove_key(ctx, channel, HMQ_CHANNEL_LAST);
}

/* After messages were removed: the server removes a list that became empty. */
static void shrunk(server_ctx *ctx, hmq_slice channel, server_string *name, const char *event, bool is_empty) {
    index_notify(ctx, SERVER_NOTIFY_LIST, event, name);
    if (!is_empty) return;
    index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    channel_index_set(index_of(ctx), channel, HMQ_CHANNEL_HELD, false);
    if (has(ctx, channel, HMQ_CHANNEL_HEARD)) remove_key(ctx, channel, HMQ_CHANNEL_HEARD);
}

/* Pops from one end until `left` are there. */
static size_t pop_until(server_key *list, int where, size_t left, server_string **messages) {
    size_t length = sv.ValueLength(list), popped = 0;
    for (; length > left; length--, popped++) {
        server_string *message = sv.ListPop(list, where);
        if (messages != NULL)
            messages[popped] = message;
        else
            sv.FreeString(NULL, message);
    }
    return popped;
}

static void shorten(server_ctx *ctx, step *s) {
    hmq_slice channel = slice_of(s->channel);
    server_string *name = channel_key(channel, HMQ_CHANNEL_HELD);
    bool is_new, takes = s->kind == STEP_TAKE;
    server_key *list = open_list(ctx, name, &is_new);
    size_t length = list == NULL || is_new ? 0 : sv.ValueLength(list), left = s->count;
    if (takes) left = length > s->count ? length - s->count : 0;
    if (length > left) {
        if (takes) s->messages = sv.Alloc((length - left) * sizeof *s->messages);
        s->taken = pop_until(list, takes ? SERVER_LIST_HEAD : SERVER_LIST_TAIL, left, s->messages);
        if (takes)
            replicate(ctx, "LPOP", "sl", name, (long long)s->taken);
        else
            replicate(ctx, "LTRIM", "sll", name, left == 0 ? 1LL : 0LL, left == 0 ? 0LL : (long long)left - 1);
        shrunk(ctx, channel, name, takes ? "lpop" : "ltrim", left == 0);
    }
    if (list != NULL) sv.CloseKey(list);
    sv.FreeString(NULL, name);
}

int store_internal_command(server_ctx *ctx, server_string **argv, int argc) {
    (void)argv;
    step *s = running;
    if (slots_is_asking_server()) return sv.ReplyWithNull(ctx);
    if (s == NULL) return reply_error(ctx, ERROR_INTERNAL_COMMAND);
    if (argc != 2) return sv.WrongArity(ctx);
    running = NULL;
    switch (s->kind) {
    case STEP_CHECK: break;
    case STEP_KEEP: keep(ctx, s); break;
    case STEP_SUPERSEDE: supersede(ctx, s); break;
    case STEP_ASIDE: set_aside_mark(ctx, slice_of(s->channel)); break;
    case STEP_TAKE:
    case STEP_CUT: shorten(ctx, s); break;
    }
    return sv.ReplyWithLongLong(ctx, (long long)s->taken);
}

/* ---- running them ------------------------------------------------------------------------------------------ */

static bool begins_with(const char *text, size_t len, const char *word) {
    size_t n = strlen(word);
    return len >= n && memcmp(text, word, n) == 0;
}

/* Runs a step as a command.  `*done`: it was run; returns the error if the server refuses writes now. */
static server_string *run(server_ctx *ctx, step *s, bool *done) {
    turns_request();
    server_string *name = channel_key(slice_of(s->channel), HMQ_CHANNEL_HELD), *refusal = NULL;
    bool is_unit = filter_unit_begin();
    running = s;
    /* Under the rules for scripts, which are those of clients; errors come as replies. */
    server_reply *reply = sv.Call(ctx, "HOLDMQ.INTERNAL", s->kind <= STEP_KEEP ? "!SMEs" : "!Es", name);
    running = NULL;
    if (is_unit) filter_unit_end();
    *done = reply != NULL && sv.CallReplyType(reply) != SERVER_REPLY_ERROR;
    if (reply != NULL && !*done) {
        size_t len;
        const char *text = sv.CallReplyStringPtr(reply, &len);
        if (begins_with(text, len, "OOM") || begins_with(text, len, "NOREPLICAS") || begins_with(text, len, "MISCONF"))
            refusal = sv.CreateString(NULL, text, len);
    }
    if (reply != NULL) sv.FreeCallReply(reply);
    sv.FreeString(NULL, name);
    return refusal;
}

/* The error if free disk is scarce (server/resources.h); NULL: it is not. */
static server_string *disk_refusal(void) {
    if (!resources_refuse()) return NULL;
    const char *text = resources_refusal();
    return sv.CreateString(NULL, text, strlen(text));
}

server_string *store_refusal(server_ctx *ctx, server_string *channel) {
    bool done;
    server_string *full = disk_refusal();
    if (full != NULL) return full;
    step s = {.kind = STEP_CHECK, .channel = channel};
    return run(ctx, &s, &done);
}

/* Would a command do no more than the step itself?  The slot needs no check, the server has accepted a write in this
 * turn of the event loop, and replication belongs to the running command, or to none. */
static bool may_run_here(server_ctx *ctx) {
    if (can.cluster || !writes_checked || (sv.GetContextFlags(ctx) & SERVER_CTX_OOM)) return false;
    return ctx != detached || !replication_is_needed(ctx);
}

server_string *store_message(server_ctx *ctx, server_string *channel, server_string *message, keeping how, bool *done) {
    step s = {.kind = STEP_KEEP, .channel = channel, .message = message, .how = how};
    server_string *full = disk_refusal();
    *done = false;
    if (full != NULL) return full;
    if (may_run_here(ctx)) {
        bool is_unit = filter_unit_begin();
        keep(ctx, &s);
        if (is_unit) filter_unit_end();
        *done = true;
        return NULL;
    }
    server_string *refusal = run(ctx, &s, done);
    writes_checked = *done;
    return refusal;
}

/* The kinds of the channel's keys that are not marked as superseded yet, and need it. */
static unsigned stale_kinds(const index_t *index, hmq_slice channel, unsigned asked) {
    if (index == NULL) return 0;
    if (index->scan_needed) return asked;
    unsigned kinds = channel_index_kinds(index, channel);
    if (kinds & KIND_BIT(HMQ_CHANNEL_HEARD)) asked &= ~KIND_BIT(HMQ_CHANNEL_HELD);
    return kinds & asked;
}

static unsigned kinds_of(keeping how) {
    return (how.held ? KIND_BIT(HMQ_CHANNEL_HELD) : 0) | (how.last ? KIND_BIT(HMQ_CHANNEL_LAST) : 0);
}

void store_note_superseded(hmq_slice channel, int kept_db, keeping kept) {
    for (int db = 0; db < index_databases(); db++) {
        bool is_here = db == kept_db;
        keeping stale = {.held = !(is_here && kept.held), .last = !(is_here && kept.last)};
        if (stale_kinds(index_peek(db), channel, kinds_of(stale)) == 0) continue;
        bool done;
        server_string *name = sv.CreateString(NULL, (const char *)channel.data, channel.len);
        step s = {.kind = STEP_SUPERSEDE, .channel = name, .how = stale};
        sv.SelectDb(detached, db);
        server_string *refusal = run(detached, &s, &done);
        if (refusal != NULL) sv.FreeString(NULL, refusal);
        sv.FreeString(NULL, name);
        sv.SelectDb(detached, 0);
    }
}

size_t store_pop(server_ctx *ctx, server_string *channel, size_t count, store_pop_message take, void *context) {
    bool done;
    step s = {.kind = STEP_TAKE, .channel = channel, .count = count};
    server_string *refusal = run(ctx, &s, &done);
    if (refusal != NULL) sv.FreeString(NULL, refusal);
    for (size_t i = 0; i < s.taken; i++) {
        take(context, s.messages[i]);
        sv.FreeString(NULL, s.messages[i]);
    }
    if (s.messages != NULL) sv.Free(s.messages);
    return s.taken;
}

void store_truncate(server_ctx *ctx, server_string *channel, size_t count) {
    bool done;
    step s = {.kind = STEP_CUT, .channel = channel, .count = count};
    server_string *refusal = run(ctx, &s, &done);
    if (refusal != NULL) sv.FreeString(NULL, refusal);
}

/* Only a writable primary marks; a replica gets the marks from its primary. */
static bool may_mark(void) {
    int flags = sv.GetContextFlags(detached);
    return (flags & SERVER_CTX_MASTER) && !(flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING)) &&
           !sv.AvoidReplicaTraffic();
}

bool store_has_unmarked_claims(void) {
    for (int db = 0; db < index_databases(); db++) {
        if (index_exists(db) && sv.DictSize(index_peek(db)->claimed) > 0) return true;
    }
    return false;
}

void store_before_sleep(void) {
    int left = CLAIMS_PER_TURN;
    writes_checked = false;
    for (int db = 0; db < index_databases() && left > 0; db++) {
        if (!index_exists(db) || sv.DictSize(index_peek(db)->claimed) == 0) continue;
        if (!may_mark()) return;
        sv.SelectDb(detached, db);
        server_string *channel;
        for (; left > 0 && (channel = channel_index_claimed(index_of(detached))) != NULL; left--) {
            bool done;
            step s = {.kind = STEP_ASIDE, .channel = channel};
            server_string *refusal = run(detached, &s, &done);
            if (refusal != NULL) sv.FreeString(NULL, refusal);
            channel_index_unclaim(db, slice_of(channel));
            sv.FreeString(NULL, channel);
        }
    }
    sv.SelectDb(detached, 0);
}
