/* command_access.c - the one table of what the arguments of commands name, and the check of the user's rights. */
#include "command_access.h"

#include <stdio.h>
#include <string.h>

#include "topic/record.h"
#include "topic/session_key.h"
#include "topic/topic.h"
#include "server/access.h"
#include "server/awake.h"
#include "server/errors.h"
#include "server/session_keys.h"
#include "index/check.h"
#include "index/index.h"
#include "index/shares.h"
#include "cluster/answer.h"
#include "cluster/confirm.h"
#include "cluster/export.h"
#include "cluster/feed.h"
#include "cluster/refusals.h"
#include "cluster/removal.h"
#include "history/check.h"
#include "history/history.h"
#include "history/hold.h"
#include "routing/groups.h"
#include "routing/match.h"
#include "routing/publish.h"
#include "routing/publish_producer.h"
#include "routing/replays.h"
#include "session/list.h"
#include "session/outbox.h"
#include "session/replay.h"
#include "session/session.h"
#include "session/subscribe.h"
#include "channel/dryrun.h"
#include "channel/list.h"

#define READ_AND_WRITE (SERVER_KEY_ACCESS | SERVER_KEY_UPDATE)

/* What is at a place of the arguments.  A place after a word means a place after each occurrence of the word, even if it is
 * a value there: so more is checked than the command reads, never less. */
typedef enum place_kind {
    PLACES_END,
    /* Declared to the server. */
    TOPIC,        /* `at`: a topic that is published to */
    TOPIC_AFTER,  /* the same after `word` */
    FILTER,       /* `at`: a filter whose topics are read */
    FILTER_AFTER, /* the same after `word` */
    FILTER_PAIRS, /* [EPOCH <e>] [ROUTES] and pairs of filter and options */
    /* Checked here. */
    RECORDS,      /* each argument that is a record: its topic */
    STORE,        /* `at`: a store; if it exists, each of its filters */
    STORE_UNLESS, /* the same, unless `word` is among the arguments */
    POLICY,       /* `at`: a store whose policy is written, its key */
    REPLAYS,      /* `at`: a session; each filter of which it reads the history */
    PUBLISHER,    /* FROM <client> with EPOCH or PACKET: the key of its session */
    PRODUCER,     /* `at`: the id of a producer, the key of its last number */
    PRODUCER_AFTER,
    CHECKS,       /* from `at` on, groups of four: the key of a session, and a topic that it publishes to */
    ALL_KEYS,     /* all keys of the server are read */
} place_kind;

typedef struct place {
    place_kind kind;
    int at; /* position; for a place after a word: the first position where the word can be */
    const char *word;
} place;

typedef struct rule {
    bool is_dangerous; /* for servers without a category for it; commands.c has the categories */
    const place *places;
} rule;

/* ---- what the server judges -------------------------------------------------------------------------------- */

static void report_filter(server_ctx *ctx, server_string **argv, int at) {
    hmq_slice filter = slice_of(argv[at]), inner;
    if (share_is(filter, &inner)) return; /* its filter is part of the argument: checked here */
    uint64_t flags = SERVER_CHANNEL_SUBSCRIBE | (access_has_wildcard(filter) ? SERVER_CHANNEL_PATTERN : 0);
    sv.ChannelAtPosWithFlags(ctx, at, (int)flags);
}

/* The first of the pairs. */
static int first_pair(server_string **argv, int argc, int at) {
    if (argc > at && slice_is(slice_of(argv[at]), "EPOCH")) at += 2;
    return argc > at && (argc - at) % 2 != 0 && slice_is(slice_of(argv[at]), "ROUTES") ? at + 1 : at;
}

static void report_after(server_ctx *ctx, server_string **argv, int argc, const place *p) {
    for (int i = p->at; i + 1 < argc; i++) {
        if (!slice_is(slice_of(argv[i]), p->word)) continue;
        if (p->kind == TOPIC_AFTER)
            sv.ChannelAtPosWithFlags(ctx, i + 1, (int)SERVER_CHANNEL_PUBLISH);
        else
            report_filter(ctx, argv, i + 1);
    }
}

static void report_place(server_ctx *ctx, server_string **argv, int argc, const place *p) {
    switch (p->kind) {
    case TOPIC:
        if (p->at < argc) sv.ChannelAtPosWithFlags(ctx, p->at, (int)SERVER_CHANNEL_PUBLISH);
        break;
    case FILTER:
        if (p->at < argc) report_filter(ctx, argv, p->at);
        break;
    case TOPIC_AFTER:
    case FILTER_AFTER: report_after(ctx, argv, argc, p); break;
    case FILTER_PAIRS:
        for (int i = first_pair(argv, argc, p->at); i < argc; i += 2) report_filter(ctx, argv, i);
        break;
    default: break;
    }
}

/* ---- what is judged here ----------------------------------------------------------------------------------- */

/* A command of a user with restricted rights. */
typedef struct judged {
    server_ctx *ctx;
    server_string *user; /* NULL: not known */
    server_string **argv;
    int argc;
    bool refused; /* after replying why */
} judged;

/* Notes the refusal, which was replied, in the ACL log. */
static bool refuse(judged *j, hmq_slice object, int reason) {
    access_note_refusal(j->ctx, j->user, object, reason);
    j->refused = true;
    return false;
}

/* How an error names the user; valid until the next call. */
static const char *named_user(const judged *j) {
    static char text[320];
    if (j->user == NULL) return "Some user (the user of the script is not known)";
    snprintf(text, sizeof text, "User %s", shown(j->user));
    return text;
}

static bool may_use_topic(judged *j, const char *what, hmq_slice topic, bool is_pattern) {
    if (j->refused) return false;
    if (access_user_may_use_topic(j->user, topic, is_pattern)) return true;
    reply_error(j->ctx, ERROR_TOPIC_DENIED, named_user(j), what, shown_slice(topic),
                is_pattern ? "equal to" : "that matches");
    return refuse(j, topic, SERVER_ACL_LOG_CHANNEL);
}

static bool may_read_filter(judged *j, hmq_slice filter) {
    return may_use_topic(j, "topic filter", filter, access_has_wildcard(filter));
}

static bool may_use_key(judged *j, server_string *key, uint64_t rights) {
    if (access_user_may_use_key(j->user, key, rights)) return true;
    reply_error(j->ctx, ERROR_KEY_DENIED, named_user(j), shown(key));
    return refuse(j, slice_of(key), SERVER_ACL_LOG_KEY);
}

static bool judge_shares(judged *j, int at) {
    hmq_slice inner;
    for (int i = first_pair(j->argv, j->argc, at); i < j->argc; i += 2) {
        if (share_is(slice_of(j->argv[i]), &inner) && !may_read_filter(j, inner)) return false;
    }
    return true;
}

static bool judge_share(judged *j, int at) {
    hmq_slice inner;
    return at >= j->argc || !share_is(slice_of(j->argv[at]), &inner) || may_read_filter(j, inner);
}

static bool judge_records(judged *j) {
    for (int i = 1; i < j->argc; i++) {
        hmq_record record;
        hmq_slice bytes = slice_of(j->argv[i]);
        if (hmq_record_decode(bytes.data, bytes.len, &record) != 0 || record.type != HMQ_RECORD_PUBLISH) continue;
        if (!may_use_topic(j, "topic", record.topic, false)) return false;
    }
    return true;
}

static bool judge_store(judged *j, int at) {
    const history_store *store =
        at < j->argc ? history_stores_find(index_of(j->ctx)->histories, slice_of(j->argv[at])) : NULL;
    if (store == NULL) return true; /* the command says so */
    server_dict_iter *iter = sv.DictIteratorStartC(store->filters, "^", NULL, 0);
    const char *filter;
    size_t len;
    bool may = true;
    while (may && (filter = sv.DictNextC(iter, &len, NULL)) != NULL)
        may = may_read_filter(j, (hmq_slice){(const uint8_t *)filter, len});
    sv.DictIteratorStop(iter);
    return may;
}

static bool has_word(const judged *j, const place *p) {
    for (int i = p->at + 1; i < j->argc; i++) {
        if (slice_is(slice_of(j->argv[i]), p->word)) return true;
    }
    return false;
}

/* In a cluster a policy has a copy for each shard, and a new store may have any number of them. */
static bool judge_policy(judged *j, int at) {
    hmq_slice name = at < j->argc ? slice_of(j->argv[at]) : (hmq_slice){NULL, 0};
    if (name.len < 1 || name.len > HISTORY_NAME_MAX) return true; /* the command refuses it */
    bool may = true;
    for (unsigned shard = 0; may && shard < (can.cluster ? HISTORY_SHARDS_MAX : 1); shard++) {
        server_string *key = history_policy_key(name, shard);
        may = may_use_key(j, key, READ_AND_WRITE);
        sv.FreeString(NULL, key);
    }
    return may;
}

static void judge_replay(void *context, server_string *filter, server_string *value) {
    (void)value;
    may_read_filter(context, slice_of(filter));
}

static bool judge_replays(judged *j, int at) {
    hmq_slice session = at < j->argc ? slice_of(j->argv[at]) : (hmq_slice){NULL, 0};
    if (!hmq_session_key_check((const char *)session.data, session.len)) return true; /* the command refuses it */
    session_replays_each(j->ctx, session, judge_replay, j);
    return !j->refused;
}

static bool judge_session_of(judged *j, hmq_slice client) {
    server_string *key = session_key_of(client);
    bool may = slice_of(key).len == 0 || may_use_key(j, key, READ_AND_WRITE);
    sv.FreeString(NULL, key);
    return may;
}

/* Without EPOCH and PACKET the publisher is only a name that is passed on, and nothing of its session is read. */
static bool judge_publisher(judged *j, int at) {
    bool uses = false;
    for (int i = at; i < j->argc; i++) {
        hmq_slice word = slice_of(j->argv[i]);
        uses = uses || slice_is(word, "EPOCH") || slice_is(word, "PACKET");
    }
    for (int i = at; uses && i + 1 < j->argc; i++) {
        if (slice_is(slice_of(j->argv[i]), "FROM") && !judge_session_of(j, slice_of(j->argv[i + 1]))) return false;
    }
    return true;
}

static bool judge_producer(judged *j, int at) {
    size_t len = at < j->argc ? slice_of(j->argv[at]).len : 0;
    if (len < 1 || len > PUBLISH_PRODUCER_ID_MAX) return true; /* the command refuses it */
    server_string *key = publish_producer_key(slice_of(j->argv[at]));
    bool may = may_use_key(j, key, READ_AND_WRITE);
    sv.FreeString(NULL, key);
    return may;
}

static bool judge_producers(judged *j, const place *p) {
    for (int i = p->at; i + 1 < j->argc; i++) {
        if (slice_is(slice_of(j->argv[i]), p->word) && !judge_producer(j, i + 1)) return false;
    }
    return true;
}

static bool judge_checks(judged *j, int at) {
    for (int i = at; i + 1 < j->argc; i += 4) {
        if (!may_use_key(j, j->argv[i], READ_AND_WRITE)) return false;
        if (!may_use_topic(j, "topic", slice_of(j->argv[i + 1]), false)) return false;
    }
    return true;
}

static bool judge_all_keys(judged *j) {
    if (access_user_may_read_all(j->user)) return true;
    reply_error(j->ctx, ERROR_ALL_KEYS_DENIED, named_user(j));
    return refuse(j, slice_of(j->argv[0]), SERVER_ACL_LOG_KEY);
}

/* False after replying why not. */
static bool judge_place(judged *j, const place *p) {
    switch (p->kind) {
    case TOPIC:
        return !access_is_called() || p->at >= j->argc || may_use_topic(j, "topic", slice_of(j->argv[p->at]), false);
    case FILTER: return judge_share(j, p->at);
    case FILTER_PAIRS: return judge_shares(j, p->at);
    case RECORDS: return judge_records(j);
    case STORE: return judge_store(j, p->at);
    case STORE_UNLESS: return has_word(j, p) || judge_store(j, p->at);
    case POLICY: return judge_policy(j, p->at);
    case REPLAYS: return judge_replays(j, p->at);
    case PUBLISHER: return judge_publisher(j, p->at);
    case PRODUCER: return judge_producer(j, p->at);
    case PRODUCER_AFTER: return judge_producers(j, p);
    case CHECKS: return judge_checks(j, p->at);
    case ALL_KEYS: return judge_all_keys(j);
    default: return true; /* the server has checked it */
    }
}

static bool judge_danger(judged *j) {
    if (access_user_may_run_dangerous(j->user)) return true;
    reply_error(j->ctx, ERROR_COMMAND_DENIED, named_user(j), shown(j->argv[0]));
    return refuse(j, slice_of(j->argv[0]), SERVER_ACL_LOG_COMMAND);
}

static int run(server_ctx *ctx, server_string **argv, int argc, const rule *r, server_command_handler handler) {
    if (sv.IsChannelsPositionRequest(ctx)) {
        for (const place *p = r->places; p->kind != PLACES_END; p++) report_place(ctx, argv, argc, p);
        return SERVER_OK;
    }
    awake_now();
    judged j = {.ctx = ctx, .argv = argv, .argc = argc};
    if (!access_is_restricted(ctx, r->is_dangerous, &j.user)) return handler(ctx, argv, argc);
    bool may = !r->is_dangerous || judge_danger(&j);
    for (const place *p = r->places; may && p->kind != PLACES_END; p++) may = judge_place(&j, p);
    if (j.user != NULL) sv.FreeString(NULL, j.user);
    return may ? handler(ctx, argv, argc) : SERVER_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------- */

#define GUARD(name, dangerous, ...)                                                                                    \
    int guarded_##name(server_ctx *ctx, server_string **argv, int argc) {                                              \
        static const place places[] = {__VA_ARGS__, NOTHING};                                                          \
        static const rule r = {dangerous, places};                                                                     \
        return run(ctx, argv, argc, &r, name##_command);                                                               \
    }

#define NOTHING {PLACES_END, 0, NULL}
#define DANGEROUS true
#define ORDINARY false

/* A session's key is declared as a key (commands.c); SESSION.LIST, TOPIC.MATCH, TOPIC.GROUPS, CHANNEL.LIST and
 * HISTORY.STORES leave out what the user may not read. */
GUARD(dryrun_start, DANGEROUS, NOTHING)
GUARD(dryrun_stop, DANGEROUS, NOTHING)
GUARD(dryrun_report, DANGEROUS, NOTHING)
GUARD(session_open, ORDINARY, {TOPIC_AFTER, 2, "WILL"})
GUARD(session_list, DANGEROUS, NOTHING)
GUARD(session_subscribe, ORDINARY, {FILTER_PAIRS, 2, NULL})
GUARD(session_replay, ORDINARY, {REPLAYS, 1, NULL})
GUARD(topic_publish, ORDINARY, {TOPIC, 1, NULL}, {PUBLISHER, 3, NULL}, {PRODUCER_AFTER, 3, "PRODUCER"})
GUARD(topic_mpublish, ORDINARY, {RECORDS, 1, NULL}, {PRODUCER_AFTER, 1, "PRODUCER"})
GUARD(topic_commit, ORDINARY, {PRODUCER, 1, NULL})
GUARD(topic_retained, ORDINARY, {FILTER, 1, NULL})
GUARD(topic_match, DANGEROUS, NOTHING)
GUARD(topic_groups, DANGEROUS, NOTHING)
GUARD(channel_list, DANGEROUS, NOTHING)
GUARD(history_store, DANGEROUS, {FILTER_AFTER, 2, "FILTER"}, {STORE, 1, NULL}, {POLICY, 1, NULL})
GUARD(history_stores, DANGEROUS, NOTHING)
GUARD(history_unstore, DANGEROUS, {STORE, 1, NULL}, {POLICY, 1, NULL})
GUARD(history_trim, DANGEROUS, {STORE, 1, NULL})
GUARD(history_hold, DANGEROUS, {STORE, 1, NULL})
GUARD(history_append, ORDINARY, {TOPIC, 2, NULL})
GUARD(history_import, ORDINARY, {RECORDS, 1, NULL})
GUARD(history_replay, ORDINARY, {FILTER, 1, NULL})
GUARD(history_info, ORDINARY, {STORE, 1, NULL})
GUARD(history_seq, ORDINARY, {STORE, 1, NULL})
GUARD(history_range, ORDINARY, {FILTER_AFTER, 5, "FILTER"}, {STORE_UNLESS, 1, "FILTER"})
GUARD(history_check, DANGEROUS, {STORE, 1, NULL})
GUARD(history_patterns_get, DANGEROUS, {STORE, 2, NULL})
GUARD(history_patterns_stats, DANGEROUS, {STORE, 2, NULL})
GUARD(history_patterns_propose, DANGEROUS, {STORE, 2, NULL})
GUARD(history_patterns_prepare, DANGEROUS, {STORE, 2, NULL})
GUARD(history_patterns_commit, DANGEROUS, {STORE, 2, NULL})
GUARD(history_patterns_abort, DANGEROUS, {STORE, 2, NULL})
GUARD(route_check, ORDINARY, {TOPIC, 2, NULL})
GUARD(route_mcheck, ORDINARY, {CHECKS, 3, NULL})
GUARD(route_info, DANGEROUS, NOTHING)
GUARD(route_add, DANGEROUS, NOTHING)
GUARD(route_export, DANGEROUS, NOTHING)
GUARD(route_feed, DANGEROUS, NOTHING)
GUARD(route_confirm, DANGEROUS, NOTHING)
GUARD(route_token, DANGEROUS, NOTHING)
GUARD(route_unused, DANGEROUS, NOTHING)
GUARD(route_del, DANGEROUS, NOTHING)
GUARD(route_drophome, DANGEROUS, NOTHING)
GUARD(route_renew, DANGEROUS, NOTHING)
GUARD(route_resume, ORDINARY, NOTHING)
GUARD(outbox_read, DANGEROUS, NOTHING)
GUARD(outbox_ack, DANGEROUS, NOTHING)
GUARD(index_check, DANGEROUS, {ALL_KEYS, 0, NULL})
