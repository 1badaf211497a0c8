/* channel.c - decides what happens to a published message. */
#include "channel/channel.h"

#include "server/access.h"
#include "server/args.h"
#include "server/channel_keys.h"
#include "server/errors.h"
#include "server/internals.h"
#include "server/push.h"
#include "server/slots.h"
#include "routing/publish_producer.h"
#include "channel/drain.h"
#include "channel/dryrun.h"
#include "channel/facts.h"
#include "channel/handoff.h"
#include "channel/pattern_walk.h"
#include "channel/store.h"

/* ---- keeping ----------------------------------------------------------------------------------------------- */

/* May this server keep messages for this command at all?  In a cluster a global publish is heard on other nodes, too,
 * and the list may belong to another node.  So only shard channels are kept there. */
static bool may_store(int flags, bool sharded) {
    if (can.cluster && !sharded) return false;
    return (flags & SERVER_CTX_MASTER) && !(flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING | SERVER_CTX_REPLICATED));
}

/* What happens to one message. */
typedef struct fate {
    server_string *channel, *message;
    const hmq_rule *rule;
    bool in_list, in_last; /* where it is already kept */
} fate;

/* Keeps the message in the held list, or as the last one, or both.  Returns the server's error if it refuses writes
 * now. */
static server_string *keep(server_ctx *ctx, fate *f, bool in_list, bool in_last) {
    bool done = false;
    keeping how = {.held = in_list, .last = in_last, .maxlen = f->rule->maxlen, .ttl_s = f->rule->ttl_s};
    if (!in_list && !in_last) return NULL;
    server_string *refusal = store_message(ctx, f->channel, f->message, how, &done);
    f->in_list = f->in_list || (done && in_list);
    f->in_last = f->in_last || (done && in_last);
    return refusal;
}

/* True after replying the error: the message must be kept, and cannot be. */
static bool refused(server_ctx *ctx, server_string *refusal) {
    if (refusal == NULL) return false;
    sv.ReplyWithError(ctx, sv.StringPtrLen(refusal, NULL));
    sv.FreeString(NULL, refusal);
    return true;
}

static void supersede(const fate *f, int db) {
    store_note_superseded(slice_of(f->channel), db, (keeping){.held = f->in_list, .last = f->in_last});
}

void channel_note_not_stored(server_string *channel) {
    store_note_superseded(slice_of(channel), -1, (keeping){0});
}

/* ---- before the server's own PUBLISH ------------------------------------------------------------------------ */

bool channel_slot_is_moving(server_string *channel) {
    return can.cluster &&
           slots_state_in_view(slots_of_key(slice_of(channel))) != SLOT_SERVED; /* HOLDMQ.INTERNAL is checked */
}

/* Is it certain that the channel has no subscriber? */
static bool is_unheard(server_string *channel, bool sharded) {
    if (internals_nobody_subscribes(sharded)) return true;
    if (!sharded) return channel_is_unheard(slice_of(channel));
    return channel_slot_is_moving(channel) && push_channel_subscribers(PUSH_SHARD, channel) == 0;
}

channel_route channel_store_before_publish(uint64_t client, int db, server_string *channel, server_string *message,
                                           bool sharded) {
    fate f = {.channel = channel, .message = message, .rule = channel_rule(channel)};
    bool in_list = f.rule->hold == HMQ_HOLD_ALL || (f.rule->hold == HMQ_HOLD_UNHEARD && is_unheard(channel, sharded));
    bool is_known = in_list || f.rule->hold == HMQ_HOLD_NONE;
    if (!is_known && sharded && channel_slot_is_moving(channel)) return channel_note_not_stored(channel), CHANNEL_STOCK;
    if (!is_known) return CHANNEL_REWRITTEN;
    server_string *refusal = NULL;
    bool may = access_may_write_as(client, channel);
    sv.SelectDb(detached, db);
    if (may) refusal = keep(detached, &f, in_list, f.rule->last);
    sv.SelectDb(detached, 0);
    if (refusal != NULL) {
        sv.FreeString(NULL, refusal);
        return CHANNEL_REWRITTEN; /* which replies it */
    }
    if (!may) counters.channel_not_held_denied++;
    supersede(&f, db);
    counters.channel_published++;
    return CHANNEL_STOCK;
}

bool channel_dry_run_first(uint64_t client, int db, server_string *channel, server_string *message, bool sharded) {
    if (!is_unheard(channel, sharded)) return false;
    bool may = access_may_write_as(client, channel);
    sv.SelectDb(detached, db);
    dryrun_count(detached, channel, message, 0, may);
    sv.SelectDb(detached, 0);
    return true;
}

/* ---- publishing -------------------------------------------------------------------------------------------- */

/* A rule without limits, for messages that no rule matches now, and that are published during a hand-over. */
static const hmq_rule boundless = {.maxlen = UINT64_MAX};

/* While the channel's backlog is handed over, the message is appended to it (channel/drain.h).  The reply counts the
 * channel's subscribers. */
static int publish_after(server_ctx *ctx, fate *f, bool sharded) {
    if (f->rule == NULL) f->rule = &boundless;
    if (!access_may_write(ctx, f->channel))
        counters.channel_not_held_denied++;
    else if (refused(ctx, keep(ctx, f, true, f->rule->last)))
        return SERVER_OK;
    supersede(f, sv.GetSelectedDb(ctx));
    counters.channel_published++;
    return sv.ReplyWithLongLong(ctx, push_channel_subscribers(sharded ? PUSH_SHARD : PUSH_CHANNEL, f->channel));
}

/* Notes whether the channel was heard.  Not in a transaction or script, whose later commands are not seen, and not after a
 * pause, when commands run that were seen before. */
static void remember(int flags, const fate *f, int receivers) {
    if ((flags & (SERVER_CTX_MULTI | SERVER_CTX_LUA)) || access_may_be_paused()) return;
    if (receivers == 0)
        channel_note_unheard(slice_of(f->channel));
    else if (f->rule == NULL || (f->rule->hold != HMQ_HOLD_ALL && !f->rule->last))
        channel_note_heard(slice_of(f->channel));
}

/* Sends the message and keeps it where the rule says so: before sending, if it is certain that it must be kept. */
static int publish_by_rule(server_ctx *ctx, fate *f, bool sharded) {
    bool may = access_may_write(ctx, f->channel), all = f->rule->hold == HMQ_HOLD_ALL, last = f->rule->last;
    if (may && refused(ctx, keep(ctx, f, all, last))) return SERVER_OK;
    int receivers = push_by_server_command(ctx, f->channel, f->message, sharded);
    bool unheard = f->rule->hold == HMQ_HOLD_UNHEARD && receivers == 0;
    if (may && unheard && refused(ctx, keep(ctx, f, true, false))) return SERVER_OK;
    if (!may && (all || last || unheard)) counters.channel_not_held_denied++;
    supersede(f, sv.GetSelectedDb(ctx));
    if (dryrun_is_active()) dryrun_count(ctx, f->channel, f->message, receivers, may);
    if (!sharded) remember(sv.GetContextFlags(ctx), f, receivers);
    counters.channel_published++;
    return sv.ReplyWithLongLong(ctx, receivers);
}

/* A message without a rule. */
static int publish_without_rule(server_ctx *ctx, fate *f, bool sharded, bool may_hold) {
    int receivers = push_by_server_command(ctx, f->channel, f->message, sharded);
    if (may_hold) channel_note_not_stored(f->channel); /* what another policy has left there */
    if (may_hold && dryrun_is_active()) {
        dryrun_count(ctx, f->channel, f->message, receivers, access_may_write(ctx, f->channel));
        if (!sharded) remember(sv.GetContextFlags(ctx), f, receivers);
    }
    counters.channel_published++;
    return sv.ReplyWithLongLong(ctx, receivers);
}

static int publish(server_ctx *ctx, server_string *channel, server_string *message, bool sharded) {
    handoff_settle(false);
    walk_before_publish(channel, sharded);
    bool may_hold = may_store(sv.GetContextFlags(ctx), sharded);
    fate f = {channel, message, may_hold ? channel_rule(channel) : NULL, false, false};
    if (drain_is_active(sv.GetSelectedDb(ctx), slice_of(channel))) return publish_after(ctx, &f, sharded);
    if (f.rule != NULL) return publish_by_rule(ctx, &f, sharded);
    return publish_without_rule(ctx, &f, sharded, may_hold);
}

/* ---- PRODUCER ---------------------------------------------------------------------------------------------- */

/* Can the producer's numbers be kept here?  False after replying why not. */
static bool may_note(server_ctx *ctx, server_string *channel, const publish_producer *by, bool sharded) {
    hmq_slice name = slice_of(channel);
    if (can.cluster && (!sharded || !channel_producer_shares_slot(name))) {
        reply_error(ctx, ERROR_PRODUCER_NEEDS_SPUBLISH);
    } else if (can.cluster && slots_state_in_view(slots_of_key(name)) != SLOT_SERVED) {
        reply_error(ctx, ERROR_CHANNEL_MOVING, slots_of_key(name), shown(channel));
    } else if (!may_store(sv.GetContextFlags(ctx), sharded)) {
        reply_error(ctx, ERROR_PRODUCER_ON_REPLICA);
    } else if (!access_may_write(ctx, by->key)) {
        reply_error(ctx, ERROR_KEY_WRITE_DENIED, shown(by->key));
    } else {
        return !refused(ctx, store_refusal(ctx, channel));
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
        return reply_error(ctx, ERROR_CHANNEL_DENIED, sharded ? "spublish" : "publish");
    }
    return by.id == NULL ? publish(ctx, argv[1], argv[2], sharded) : publish_once(ctx, argv, &by, sharded);
}

int channel_publish_command(server_ctx *ctx, server_string **argv, int argc) {
    return publish_command(ctx, argv, argc, false);
}

int channel_spublish_command(server_ctx *ctx, server_string **argv, int argc) {
    return publish_command(ctx, argv, argc, true);
}
