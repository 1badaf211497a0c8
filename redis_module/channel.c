/* channel.c - CHANNEL.PUBLISH, CHANNEL.LAST and the lists behind them. */
#include "channel.h"

#include <string.h>

#include "access.h"
#include "args.h"
#include "channel_facts.h"
#include "channel_names.h"
#include "drain.h"
#include "errors.h"
#include "handoff.h"
#include "pattern_walk.h"
#include "index.h"
#include "publish_producer.h"
#include "replication.h"
#include "push.h"
#include "slots.h"

/* A list's expiry is moved only when it would be moved by more than this part of the ttl, so that most messages
 * replicate as one RPUSH: a message lives at least its ttl, at most 1/64 longer. */
#define EXPIRY_SLACK 64

/* ---- rules ------------------------------------------------------------------------------------------------- */

const hmq_rule *channel_rule(const server_string *channel) {
    return channel_rule_of(slice_of(channel));
}

/* ---- keeping ----------------------------------------------------------------------------------------------- */

static void trim_list(server_ctx *ctx, server_key *list, server_string *name, uint64_t maxlen) {
    size_t length = sv.ValueLength(list);
    if (length <= maxlen) return;
    drain_trimmed(sv.GetSelectedDb(ctx), slice_of(name), length - (size_t)maxlen);
    for (; length > maxlen; length--) {
        server_string *oldest = sv.ListPop(list, SERVER_LIST_HEAD);
        sv.FreeString(NULL, oldest);
        counters.channel_trimmed++;
    }
    replicate(ctx, "LTRIM", "sll", name, -(long long)maxlen, -1LL);
    index_notify(ctx, SERVER_NOTIFY_LIST, "ltrim", name);
}

static void expire_list(server_ctx *ctx, server_key *list, server_string *name, uint64_t ttl_s) {
    long long standing = sv.GetAbsExpire(list);
    if (ttl_s == 0) {
        if (standing == SERVER_NO_EXPIRE) return;
        sv.SetAbsExpire(list, SERVER_NO_EXPIRE);
        replicate(ctx, "PERSIST", "s", name);
        index_notify(ctx, SERVER_NOTIFY_GENERIC, "persist", name);
        return;
    }
    long long ttl_ms = (long long)ttl_s * 1000, due = sv.Milliseconds() + ttl_ms, slack = ttl_ms / EXPIRY_SLACK;
    if (standing >= due && standing <= due + slack) return;
    sv.SetAbsExpire(list, due + slack);
    replicate(ctx, "PEXPIREAT", "sl", name, due + slack);
    index_notify(ctx, SERVER_NOTIFY_GENERIC, "expire", name);
}

/* Appends to a list and keeps it within the rule.  False if the key is no list. */
static bool append(server_ctx *ctx, server_string *name, server_string *message, uint64_t maxlen, uint64_t ttl_s) {
    server_key *list = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    int type = sv.KeyType(list);
    bool usable = type == SERVER_LIST || type == SERVER_EMPTY;
    if (usable) {
        sv.ListPush(list, SERVER_LIST_TAIL, message);
        replicate(ctx, "RPUSH", "ss", name, message);
        if (type == SERVER_EMPTY) index_set_held(index_of(ctx), slice_of(name));
        index_notify(ctx, SERVER_NOTIFY_LIST, "rpush", name);
        trim_list(ctx, list, name, maxlen);
        expire_list(ctx, list, name, ttl_s);
    }
    sv.CloseKey(list);
    return usable;
}

static void keep(server_ctx *ctx, server_string *name, server_string *message, uint64_t maxlen, uint64_t ttl_s) {
    if (!access_may_write(ctx, name))
        counters.channel_not_held_denied++;
    else if (!append(ctx, name, message, maxlen, ttl_s))
        counters.channel_not_held_wrongtype++;
    else
        counters.channel_held++;
}

static void keep_last(server_ctx *ctx, server_string *channel, server_string *message, const hmq_rule *rule) {
    if (can.cluster && !channel_names_share_slot(slice_of(channel))) return; /* another node's, perhaps */
    server_string *name = channel_last_key(slice_of(channel));
    keep(ctx, name, message, 1, rule->ttl_s);
    sv.FreeString(NULL, name);
}

/* ---- publishing -------------------------------------------------------------------------------------------- */

/* Would the server refuse a write now (too few replicas, a failed snapshot)?  Asked once in a turn of the event loop. */
static bool writes_checked;
static server_string *write_refusal; /* the server's error; NULL: it would not */

static bool begins_with(const char *text, size_t len, const char *word) {
    size_t n = strlen(word);
    return len >= n && memcmp(text, word, n) == 0;
}

static void check_writes(server_ctx *ctx) {
    if (writes_checked) return;
    writes_checked = true;
    if (write_refusal != NULL) sv.FreeString(NULL, write_refusal);
    write_refusal = NULL;
    /* A write that changes nothing, under the rules for scripts, which are those of clients: the error is the answer. */
    server_string *nobodys = access_probe_name();
    server_reply *reply = sv.Call(ctx, "DEL", "SEs", nobodys);
    sv.FreeString(NULL, nobodys);
    if (reply == NULL) return;
    if (sv.CallReplyType(reply) == SERVER_REPLY_ERROR) {
        size_t len;
        const char *text = sv.CallReplyStringPtr(reply, &len);
        if (begins_with(text, len, "NOREPLICAS") || begins_with(text, len, "MISCONF")) {
            write_refusal =
                sv.CreateString(NULL, text, len); /* in a cluster the name may be another node's: no refusal */
        }
    }
    sv.FreeCallReply(reply);
}

void channel_before_sleep(void) {
    writes_checked = false;
}

/* May this server keep messages for this command at all?  In a cluster a global publish is heard on other nodes, too, and
 * the list may be another node's: only shard channels are kept there. */
static bool may_store(int flags, bool sharded) {
    if (can.cluster && !sharded) return false;
    return (flags & SERVER_CTX_MASTER) && !(flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING | SERVER_CTX_REPLICATED));
}

/* True after replying why nothing can be kept now. */
static bool refused(server_ctx *ctx, int flags) {
    if (flags & SERVER_CTX_OOM) {
        reply_out_of_memory(ctx);
        return true;
    }
    check_writes(ctx);
    if (write_refusal == NULL) return false;
    sv.ReplyWithError(ctx, sv.StringPtrLen(write_refusal, NULL));
    return true;
}

/* While the channel's backlog is handed over: behind it, see drain.h.  The reply counts who subscribed to the channel. */
static int publish_behind(server_ctx *ctx, server_string *channel, server_string *message, const hmq_rule *rule,
                          bool sharded) {
    if (refused(ctx, sv.GetContextFlags(ctx))) return SERVER_OK;
    counters.channel_published++;
    keep(ctx, channel, message, rule == NULL ? UINT64_MAX : rule->maxlen, rule == NULL ? 0 : rule->ttl_s);
    if (rule != NULL && rule->last) keep_last(ctx, channel, message, rule);
    return sv.ReplyWithLongLong(ctx, push_channel_subscribers(sharded ? PUSH_SHARD : PUSH_CHANNEL, channel));
}

static int publish(server_ctx *ctx, server_string *channel, server_string *message, bool sharded) {
    handoff_settle(false);
    if (!sharded) walk_before_publish(channel);
    int flags = sv.GetContextFlags(ctx);
    const hmq_rule *rule = may_store(flags, sharded) ? channel_rule(channel) : NULL;
    bool always = rule != NULL && (rule->hold == HMQ_HOLD_ALL || rule->last);
    if (always && refused(ctx, flags)) return SERVER_OK;
    if (drain_is_active(sv.GetSelectedDb(ctx), slice_of(channel)))
        return publish_behind(ctx, channel, message, rule, sharded);
    int receivers = push_to_all(ctx, channel, message, sharded);
    bool hold = rule != NULL && (rule->hold == HMQ_HOLD_ALL || (rule->hold == HMQ_HOLD_UNHEARD && receivers == 0));
    if (hold && !always && refused(ctx, flags)) return SERVER_OK;
    counters.channel_published++;
    /* In a transaction or script more may follow that nobody sees. */
    bool plain = !sharded && !(flags & (SERVER_CTX_MULTI | SERVER_CTX_LUA));
    if (plain && receivers > 0 && rule != NULL && rule->hold != HMQ_HOLD_ALL && !rule->last)
        channel_was_heard(slice_of(channel));
    if (hold) keep(ctx, channel, message, rule->maxlen, rule->ttl_s);
    if (rule != NULL && rule->last) keep_last(ctx, channel, message, rule);
    return sv.ReplyWithLongLong(ctx, receivers);
}

/* ---- PRODUCER ---------------------------------------------------------------------------------------------- */

/* Can what is known of the producer be kept here?  False after replying why not. */
static bool may_note(server_ctx *ctx, server_string *channel, const publish_producer *by, bool sharded) {
    hmq_slice name = slice_of(channel);
    int flags = sv.GetContextFlags(ctx);
    if (can.cluster && (!sharded || !channel_names_share_slot(name))) {
        reply_error(ctx, ERROR_SYNTAX,
                    "PRODUCER in a cluster: CHANNEL.SPUBLISH, to a channel with a hash tag or without '}', "
                    "expected");
    } else if (can.cluster && slots_state(slots_of_key(name)) != SLOT_SERVED) {
        reply_error(ctx, ERROR_TRYAGAIN, "slot %u of the channel %s is on its way to another node: try again",
                    slots_of_key(name), shown(channel));
    } else if (!may_store(flags, sharded)) {
        reply_error(ctx, ERROR_SYNTAX,
                    "PRODUCER: a server that is written to expected, a replica keeps nothing of its own");
    } else if (!access_may_write(ctx, by->key)) {
        reply_error(ctx, ERROR_NOPERM, "this user may not write %s, where PRODUCER is kept", shown(by->key));
    } else {
        return !refused(ctx, flags);
    }
    return false;
}

static int publish_once(server_ctx *ctx, server_string **argv, publish_producer *by, bool sharded) {
    by->key = channel_producer_key(slice_of(argv[1]), slice_of(by->id));
    if (may_note(ctx, argv[1], by, sharded)) {
        switch (publish_producer_judge(ctx, by)) {
        case PRODUCER_CHUNK_NEW:
            publish_producer_note(ctx, by);
            publish(ctx, argv[1], argv[2], sharded);
            break;
        case PRODUCER_CHUNK_KNOWN: sv.ReplyWithLongLong(ctx, -1); break;
        case PRODUCER_CHUNK_REFUSED: break;
        }
    }
    sv.FreeString(NULL, by->key);
    return SERVER_OK;
}

static int publish_command(server_ctx *ctx, server_string **argv, int argc, bool sharded) {
    if (sv.IsChannelsPositionRequest(ctx)) {
        sv.ChannelAtPosWithFlags(ctx, 1, (int)SERVER_CHANNEL_PUBLISH);
        return SERVER_OK;
    }
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    a.at = 3;
    publish_producer by = {0};
    bool taken = true;
    if (!publish_producer_parse(&a, &by, &taken)) return SERVER_OK;
    if (taken && !publish_producer_parse_after(&a, &by)) return SERVER_OK;
    if (!args_end(&a)) return SERVER_OK;
    if (!access_may_publish(ctx, argv[1], sharded)) {
        return reply_error(ctx, ERROR_NOPERM, "this user has no permissions to run the '%s' command on this channel",
                           sharded ? "spublish" : "publish");
    }
    return by.id == NULL ? publish(ctx, argv[1], argv[2], sharded) : publish_once(ctx, argv, &by, sharded);
}

int channel_publish_command(server_ctx *ctx, server_string **argv, int argc) {
    return publish_command(ctx, argv, argc, false);
}

int channel_spublish_command(server_ctx *ctx, server_string **argv, int argc) {
    return publish_command(ctx, argv, argc, true);
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

static server_string *last_element(server_ctx *ctx, server_string *name, bool *wrong_type) {
    server_key *list = sv.OpenKey(ctx, name, SERVER_READ);
    if (list == NULL) return NULL;
    int type = sv.KeyType(list);
    server_string *last = type == SERVER_LIST ? sv.ListGet(list, -1) : NULL;
    *wrong_type = type != SERVER_LIST && type != SERVER_EMPTY;
    sv.CloseKey(list);
    return last;
}

static server_string *last_message(server_ctx *ctx, server_string *channel, const hmq_rule *rule, bool *wrong_type) {
    if (rule != NULL && rule->last) {
        server_string *name = channel_last_key(slice_of(channel));
        server_string *last = last_element(ctx, name, wrong_type);
        sv.FreeString(NULL, name);
        if (last != NULL) return last;
    }
    return last_element(ctx, channel, wrong_type);
}

server_string *channel_last(server_ctx *ctx, server_string *channel, const hmq_rule *rule) {
    bool wrong_type = false;
    return last_message(ctx, channel, rule, &wrong_type);
}

int channel_last_command(server_ctx *ctx, server_string **argv, int argc) {
    bool wrong_type = false;
    if (argc != 2) return sv.WrongArity(ctx);
    server_string *last = last_message(ctx, argv[1], channel_rule(argv[1]), &wrong_type);
    if (wrong_type && last == NULL) return reply_wrong_type(ctx, argv[1], "a list");
    if (last == NULL) return sv.ReplyWithNull(ctx);
    sv.ReplyWithString(ctx, last);
    sv.FreeString(NULL, last);
    return SERVER_OK;
}

int channel_policy_command(server_ctx *ctx, server_string **argv, int argc) {
    static const char *const holds[] = {"none", "unheard", "all"};
    static const char *const delivers[] = {"none", "last", "held"};
    if (argc != 2) return sv.WrongArity(ctx);
    const hmq_rule *rule = channel_rule(argv[1]);
    if (rule == NULL) return sv.ReplyWithNull(ctx);
    sv.ReplyWithArray(ctx, 6);
    sv.ReplyWithStringBuffer(ctx, (const char *)rule->glob.data, rule->glob.len);
    sv.ReplyWithCString(ctx, holds[rule->hold]);
    sv.ReplyWithCString(ctx, rule->last ? "on" : "off");
    sv.ReplyWithLongLong(ctx, (long long)rule->maxlen);
    sv.ReplyWithLongLong(ctx, (long long)rule->ttl_s);
    sv.ReplyWithCString(ctx, delivers[rule->deliver]);
    return SERVER_OK;
}
