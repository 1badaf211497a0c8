/* subscribe.c - subscribes sessions and ends subscriptions, and hands over the messages that a new one gets. */
#include "session/subscribe.h"

#include <string.h>

#include "topic/session_key.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/session_fence.h"
#include "index/session_state.h"
#include "index/shares.h"
#include "index/subscription.h"
#include "cluster/confirm.h"
#include "routing/replays.h"
#include "routing/retained_cursors.h"
#include "routing/share.h"
#include "routing/share_leave.h"
#include "routing/share_replay_keys.h"
#include "session/life.h"
#include "session/member_notes.h"
#include "session/places.h"

enum { RETAIN_SEND = 0, RETAIN_SEND_IF_NEW = 1, RETAIN_DO_NOT_SEND = 2 };

static bool check_subscription(server_ctx *ctx, const server_string *filter, const server_string *text,
                               subscription_request *asked) {
    hmq_slice inner;
    if (!subscription_check_filter(ctx, filter, true) || !subscription_parse(ctx, text, asked)) return false;
    if (!share_is(slice_of(filter), &inner)) {
        if (asked->wanted.kind != SUBSCRIPTION_NOTE) return true;
        reply_error(ctx, ERROR_NOTE_OF_NO_GROUP, shown(text), shown(filter));
        return false;
    }
    bool no_local = (asked->wanted.options & SUBSCRIPTION_NO_LOCAL) != 0;
    if (!no_local && asked->wanted.kind != SUBSCRIPTION_APPLICATION) return true;
    reply_error(ctx, ERROR_OPTIONS_OF_SHARE, shown(text), shown(filter),
                no_local ? "no local" : "the ! of an application");
    return false;
}

/* The hash of filters, open for writing; NULL after replying WRONGTYPE. */
static server_key *open_subscriptions(server_ctx *ctx, hmq_slice session, server_string **name) {
    *name = session_key_name(session, HMQ_SUFFIX_SUBSCRIPTIONS);
    server_key *hash = key_open_to_write(ctx, *name, SERVER_HASH);
    if (hash == NULL) sv.FreeString(NULL, *name);
    return hash;
}

/* Sets one field; true if the filter is new.  A renewed subscription without a replay option continues its replay. */
static bool write_subscription(server_ctx *ctx, server_key *hash, server_string *name, server_string *filter,
                               subscription_request *asked) {
    server_string *existing = NULL, *text;
    subscription before;
    sv.HashGet(hash, SERVER_HASH_NONE, filter, &existing, NULL);
    bool keeps = existing != NULL && !asked->replay && asked->wanted.kind != SUBSCRIPTION_NOTE;
    if (keeps && subscription_read(existing, &before) && before.kind != SUBSCRIPTION_NOTE)
        asked->wanted.kind = before.kind;
    text = subscription_text(asked->wanted);
    sv.HashSet(hash, SERVER_HASH_NONE, filter, text, NULL);
    replicate(ctx, "HSET", "sss", name, filter, text);
    sv.FreeString(NULL, text);
    if (existing != NULL) sv.FreeString(NULL, existing);
    return existing == NULL;
}

/* Adds it to the index, or removes it; or sets its place in history. */
static void place_subscription(server_ctx *ctx, hmq_slice session, server_string *filter,
                               const subscription_request *asked, server_string *replay) {
    hmq_slice inner;
    if (replay != NULL && share_is(slice_of(filter), &inner)) {
        if (!asked->now) share_replay_begin(ctx, index_of(ctx), filter, replay);
        replay = NULL;
    }
    bool live = asked->wanted.kind == SUBSCRIPTION_LIVE;
    if (live)
        index_set_filter(index_of(ctx), session, slice_of(filter), subscription_pack(asked->wanted));
    else
        index_remove_filter(index_of(ctx), session, slice_of(filter));
    if (replay != NULL || asked->replay) session_replays_write(ctx, session, filter, live ? NULL : replay);
}

/* Subscriptions end with their session; without one, after the default time to live. */
static long long end_of_subscriptions(const session_state *state) {
    return state->exists ? state->expire_ms : sv.Milliseconds() + settings.session_ttl_s * 1000;
}

typedef struct subscribing {
    server_string *filter, *options; /* as they were given */
    subscription_request asked;
    server_string *replay; /* its place in history, to be written; NULL: none */
    bool new;
} subscribing;

/* Reads all pairs and prepares what they need.  False after replying an error: nothing was written. */
static bool prepare_all(server_ctx *ctx, hmq_slice session, subscribing *list, server_string **argv, int pairs,
                        bool *shares) {
    hmq_slice inner;
    size_t replays = 0;
    bool any = false;
    for (int i = 0; i < pairs; i++) {
        list[i].filter = argv[2 * (size_t)i];
        list[i].options = argv[2 * (size_t)i + 1];
        if (!check_subscription(ctx, list[i].filter, argv[2 * (size_t)i + 1], &list[i].asked)) return false;
        any = any || list[i].asked.replay;
        bool is_note = list[i].asked.wanted.kind == SUBSCRIPTION_NOTE;
        *shares = *shares || (!is_note && share_is(slice_of(list[i].filter), &inner));
        replays += list[i].asked.replay && !share_is(slice_of(list[i].filter), &inner);
    }
    if (!any) return true;
    if (!session_check_types(ctx, session) || !session_replays_have_room(ctx, session, replays)) return false;
    for (int i = 0; i < pairs; i++) {
        subscribing *one = &list[i];
        if (!session_replays_prepare(ctx, session, one->filter, &one->asked, &one->replay)) return false;
        bool is_share = share_is(slice_of(one->filter), &inner); /* the group replays, not its members */
        bool read = one->asked.now && one->asked.wanted.kind == SUBSCRIPTION_REPLAYS;
        if (is_share || read) one->asked.wanted.kind = SUBSCRIPTION_LIVE;
    }
    return true;
}

static void write_all(server_ctx *ctx, hmq_slice session, server_key *hash, server_string *name,
                      const session_state *state, subscribing *list, int pairs) {
    long long expire_ms = end_of_subscriptions(state);
    for (int i = 0; i < pairs; i++) {
        subscribing *one = &list[i];
        one->new = write_subscription(ctx, hash, name, one->filter, &one->asked);
        place_subscription(ctx, session, one->filter, &one->asked, one->replay);
    }
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    if (sv.GetAbsExpire(hash) != expire_ms) key_set_expiry(ctx, hash, name, expire_ms);
    session_replays_expire(ctx, session, expire_ms);
}

/* Which of these groups the session notes. */
static void note_members(server_ctx *ctx, hmq_slice session, const subscribing *list, int pairs) {
    hmq_slice inner;
    for (int i = 0; i < pairs; i++) {
        hmq_slice filter = slice_of(list[i].filter);
        if (share_is(filter, &inner))
            member_notes_set(ctx, session, filter, list[i].asked.wanted.kind == SUBSCRIPTION_NOTE);
    }
}

/* In a cluster this node has only some retained messages: the subscriber asks all nodes, and delivers with
 * SESSION.DELIVER.  The place of a session that outlives its connection is kept. */
static void begin_retained(server_ctx *ctx, hmq_slice session, const session_state *state, const subscribing *one) {
    int handling = one->asked.wanted.options >> SUBSCRIPTION_RETAIN_HANDLING_SHIFT;
    if (handling == RETAIN_DO_NOT_SEND || (handling == RETAIN_SEND_IF_NEW && !one->new)) return;
    if (!can.cluster)
        retained_cursors_begin(ctx, session, slice_of(one->filter), one->asked.wanted);
    else if (state->exists && state->expiry_s > 0)
        places_begin(ctx, session, one->filter, one->options, state->expire_ms);
}

static void hand_over_waiting(server_ctx *ctx, hmq_slice session, const session_state *state, const subscribing *list,
                              int pairs) {
    hmq_slice inner;
    for (int i = 0; i < pairs; i++) {
        hmq_slice filter = slice_of(list[i].filter);
        if (share_is(filter, &inner)) /* it gets no retained messages (MQTT 5.0 section 4.8.2) */
            share_member_joined(ctx, session, filter);
        else
            begin_retained(ctx, session, state, &list[i]);
    }
    retained_cursors_feed(ctx, session);
}

/* Replies which filters are new; with `routes`, also which nodes must be told their routes. */
static void reply_subscribed(server_ctx *ctx, hmq_slice session, const subscribing *list, int pairs, bool routes) {
    if (routes) sv.ReplyWithArray(ctx, 4);
    sv.ReplyWithArray(ctx, pairs);
    for (int i = 0; i < pairs; i++) sv.ReplyWithLongLong(ctx, list[i].new);
    if (!routes) return;
    confirm_reply_nodes(ctx);
    sv.ReplyWithArray(ctx, pairs);
    for (int i = 0; i < pairs; i++) confirm_reply_route(ctx, session, slice_of(list[i].filter));
}

typedef struct subscribe_how {
    bool shares; /* some subscriptions are shared */
    bool routes; /* ROUTES was given */
} subscribe_how;

static void subscribe_all(server_ctx *ctx, hmq_slice session, subscribing *list, int pairs, subscribe_how how) {
    session_state state;
    server_string *name;
    if (!session_state_read(ctx, session, &state)) return;
    session_state_free(&state);
    if (how.shares && state.exists && !state.shares) { /* moves the end of the hash: before it is opened */
        if (!session_check_types(ctx, session)) return;
        session_mark_shares(ctx, session, &state);
        session_state_peek(ctx, session, &state);
        session_state_free(&state);
    }
    server_key *hash = open_subscriptions(ctx, session, &name);
    if (hash == NULL) return;
    write_all(ctx, session, hash, name, &state, list, pairs);
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    note_members(ctx, session, list, pairs);
    reply_subscribed(ctx, session, list, pairs, how.routes);
    hand_over_waiting(ctx, session, &state, list, pairs);
}

int session_subscribe_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    if (!session_check_ending(ctx, slice_of(key))) return SERVER_OK;
    subscribe_how how = {0};
    if (!confirm_parse(&a, &how.routes)) return SERVER_OK;
    int first = a.at, pairs = (argc - first) / 2;
    if ((argc - first) % 2 != 0 || pairs == 0) {
        return reply_error(ctx, ERROR_SUBSCRIBE_PAIRS, argc - first);
    }
    subscribing *list = sv.Calloc((size_t)pairs, sizeof *list);
    if (prepare_all(ctx, slice_of(key), list, &argv[first], pairs, &how.shares))
        subscribe_all(ctx, slice_of(key), list, pairs, how);
    for (int i = 0; i < pairs; i++) {
        if (list[i].replay != NULL) sv.FreeString(NULL, list[i].replay);
    }
    sv.Free(list);
    return SERVER_OK;
}

int session_unsubscribe_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key, *name;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    if (!args_left(&a)) return reply_error(ctx, ERROR_UNSUBSCRIBE_FILTERS);
    for (int i = a.at; i < argc; i++) {
        if (!subscription_check_filter(ctx, argv[i], true)) return SERVER_OK;
    }
    server_key *hash = open_subscriptions(ctx, slice_of(key), &name);
    if (hash == NULL) return SERVER_OK;
    index_t *index = index_of(ctx);
    size_t removed_count = 0;
    sv.ReplyWithArray(ctx, argc - a.at);
    for (int i = a.at; i < argc; i++) {
        int existing = 0;
        if (sv.KeyType(hash) == SERVER_HASH) sv.HashGet(hash, SERVER_HASH_EXISTS, argv[i], &existing, NULL);
        if (existing) {
            sv.HashSet(hash, SERVER_HASH_NONE, argv[i], SERVER_HASH_DELETE, NULL);
            replicate(ctx, "HDEL", "ss", name, argv[i]);
            index_remove_filter(index, slice_of(key), slice_of(argv[i]));
            session_replays_write(ctx, slice_of(key), argv[i], NULL);
            retained_cursors_end(ctx, slice_of(key), slice_of(argv[i]));
            if (can.cluster) places_end(ctx, slice_of(key), argv[i]);
            removed_count++;
        }
        sv.ReplyWithLongLong(ctx, existing);
    }
    if (removed_count > 0) index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
    if (removed_count > 0 && sv.KeyType(hash) == SERVER_EMPTY) index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    hmq_slice inner;
    bool has_left = false;
    for (int i = a.at; i < argc; i++) {
        if (!share_is(slice_of(argv[i]), &inner)) continue;
        member_notes_set(ctx, slice_of(key), slice_of(argv[i]), false);
        share_end_if_left(ctx, slice_of(argv[i]));
        has_left = true;
    }
    if (has_left) share_member_left(ctx, slice_of(key));
    return SERVER_OK;
}
