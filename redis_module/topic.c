/* topic.c - TOPIC.PUBLISH, TOPIC.RETAINED and the subscriptions of sessions. */
#include "topic.h"

#include <string.h>

#include "../src/record.h"
#include "../src/session_key.h"
#include "args.h"
#include "delivery.h"
#include "errors.h"
#include "index.h"
#include "publisher.h"
#include "queue.h"
#include "retained.h"
#include "session.h"
#include "session_hash.h"

#define OPTION_QOS 3u
#define OPTION_NO_LOCAL 4u
#define OPTION_RETAIN_AS_PUBLISHED 8u
#define OPTION_RETAIN_HANDLING_SHIFT 4
#define OPTIONS_MAX 47 /* retain handling at most 2 */
#define MAX_TTL_S 4294967295LL /* message expiry interval of MQTT 5.0 */

enum { RETAIN_SEND = 0, RETAIN_SEND_IF_NEW = 1, RETAIN_DO_NOT_SEND = 2 };

/* ---- subscribing ------------------------------------------------------------------------------------------- */

static bool check_filter(server_ctx *ctx, const server_string *filter) {
    hmq_slice text = slice_of(filter);
    hmq_slice group, inner;
    hmq_topic_error error = hmq_topic_check_filter((const char *)text.data, text.len);
    if (error != HMQ_TOPIC_OK) {
        reply_invalid_topic(ctx, "the topic filter", filter, error);
        return false;
    }
    if (hmq_topic_split_share((const char *)text.data, text.len, &group, &inner)) {
        reply_error(ctx, ERROR_INVALIDTOPIC, "the topic filter %s: shared subscriptions are not supported",
                    shown(filter));
        return false;
    }
    return true;
}

static bool check_options(server_ctx *ctx, const server_string *text, long long *options) {
    if (number_of(text, 0, OPTIONS_MAX, options) && (*options & OPTION_QOS) != 3) return true;
    reply_error(
        ctx, ERROR_SYNTAX,
        "options is %s: a subscription options byte expected (QoS 0 to 2, 4 no local, 8 retain as published, 16 or 32 retain "
        "handling)",
        shown(text));
    return false;
}

/* The hash of filters, open for writing; NULL after replying WRONGTYPE. */
static server_key *open_subscriptions(server_ctx *ctx, hmq_slice session, server_string **name) {
    *name = session_key_name(session, HMQ_SUFFIX_SUBSCRIPTIONS);
    server_key *hash = sv.OpenKey(ctx, *name, SERVER_READ | SERVER_WRITE);
    int type = sv.KeyType(hash);
    if (type == SERVER_HASH || type == SERVER_EMPTY) return hash;
    reply_wrong_type(ctx, *name, "a hash");
    sv.CloseKey(hash);
    sv.FreeString(NULL, *name);
    return NULL;
}

typedef struct retained_target {
    server_ctx *ctx;
    const indexed_session *session;
    uint8_t qos;
    long long now_ms;
} retained_target;

static bool hand_retained(void *context, uint64_t subscriber, uint32_t unused) {
    (void)unused;
    retained_target *target = context;
    retained_message kept;
    if (!retained_read(target->ctx, (server_string *)(uintptr_t)subscriber, &kept)) return true;
    message m;
    message_begin(&m, &kept.record, target->now_ms);
    uint8_t qos = kept.record.qos < target->qos ? kept.record.qos : target->qos;
    deliver(target->ctx, target->session, &m, qos, true);
    message_end(&m);
    retained_read_end(&kept);
    return true;
}

static void hand_over_retained(server_ctx *ctx, hmq_slice session_key, hmq_slice filter, long long options, bool new) {
    long long handling = options >> OPTION_RETAIN_HANDLING_SHIFT;
    if (handling == RETAIN_DO_NOT_SEND || (handling == RETAIN_SEND_IF_NEW && !new)) return;
    index_t *index = index_of(ctx);
    const indexed_session *session = sv.DictGetC(index->sessions, session_key.data, session_key.len, NULL);
    if (session == NULL) return;
    retained_target target = {ctx, session, (uint8_t)(options & OPTION_QOS), sv.Milliseconds()};
    hmq_trie_match_filter(index->retained, (const char *)filter.data, filter.len, hand_retained, &target);
}

/* Sets one field; true if the filter is new. */
static bool write_subscription(server_ctx *ctx, server_key *hash, server_string *name, server_string *filter,
                               server_string *options) {
    int stands = 0;
    sv.HashGet(hash, SERVER_HASH_EXISTS, filter, &stands, NULL);
    sv.HashSet(hash, SERVER_HASH_NONE, filter, options, NULL);
    sv.Replicate(ctx, "HSET", "sss", name, filter, options);
    return !stands;
}

/* Subscriptions end with their session; without one, after the default time to live. */
static void expire_subscriptions(server_ctx *ctx, server_key *hash, server_string *name, const session_state *state) {
    long long expire_ms = state->exists ? state->expire_ms : sv.Milliseconds() + settings.session_ttl_s * 1000;
    long long standing = sv.GetAbsExpire(hash);
    if (standing == expire_ms) return;
    key_set_expiry(ctx, hash, name, expire_ms);
}

int session_subscribe_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key, *name;
    session_state state;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    int first = a.at, pairs = (argc - first) / 2;
    if ((argc - first) % 2 != 0 || pairs == 0) {
        return reply_error(ctx, ERROR_SYNTAX,
                           "%d arguments behind the session key: pairs of filter and options expected", argc - first);
    }
    long long options;
    for (int i = first; i < argc; i += 2) {
        if (!check_filter(ctx, argv[i]) || !check_options(ctx, argv[i + 1], &options)) return SERVER_OK;
    }
    hmq_slice session = slice_of(key);
    if (!session_state_read(ctx, session, &state)) return SERVER_OK;
    session_state_free(&state);
    server_key *hash = open_subscriptions(ctx, session, &name);
    if (hash == NULL) return SERVER_OK;
    bool *new = sv.Alloc((size_t)pairs * sizeof *new);
    for (int i = 0; i < pairs; i++) {
        server_string *filter = argv[first + 2 * i];
        new[i] = write_subscription(ctx, hash, name, filter, argv[first + 2 * i + 1]);
        number_of(argv[first + 2 * i + 1], 0, OPTIONS_MAX, &options);
        index_set_filter(index_of(ctx), session, slice_of(filter), (uint32_t)options);
    }
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    expire_subscriptions(ctx, hash, name, &state);
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    sv.ReplyWithArray(ctx, pairs);
    for (int i = 0; i < pairs; i++) sv.ReplyWithLongLong(ctx, new[i]);
    for (int i = 0; i < pairs; i++) {
        number_of(argv[first + 2 * i + 1], 0, OPTIONS_MAX, &options);
        hand_over_retained(ctx, session, slice_of(argv[first + 2 * i]), options, new[i]);
    }
    sv.Free(new);
    return SERVER_OK;
}

int session_unsubscribe_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key, *name;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    if (!args_left(&a)) return reply_error(ctx, ERROR_SYNTAX, "filter is missing: at least one topic filter expected");
    for (int i = a.at; i < argc; i++) {
        if (!check_filter(ctx, argv[i])) return SERVER_OK;
    }
    server_key *hash = open_subscriptions(ctx, slice_of(key), &name);
    if (hash == NULL) return SERVER_OK;
    index_t *index = index_of(ctx);
    size_t removed_count = 0;
    sv.ReplyWithArray(ctx, argc - a.at);
    for (int i = a.at; i < argc; i++) {
        int stood = 0;
        if (sv.KeyType(hash) == SERVER_HASH) sv.HashGet(hash, SERVER_HASH_EXISTS, argv[i], &stood, NULL);
        if (stood) {
            sv.HashSet(hash, SERVER_HASH_NONE, argv[i], SERVER_HASH_DELETE, NULL);
            sv.Replicate(ctx, "HDEL", "ss", name, argv[i]);
            index_remove_filter(index, slice_of(key), slice_of(argv[i]));
            removed_count++;
        }
        sv.ReplyWithLongLong(ctx, stood);
    }
    if (removed_count > 0) index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
    if (removed_count > 0 && sv.KeyType(hash) == SERVER_EMPTY) index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    return SERVER_OK;
}

int session_subscriptions_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    if (!args_session_key(&a, &key) || !args_end(&a)) return SERVER_OK;
    if (!session_check_types(ctx, slice_of(key))) return SERVER_OK;
    server_string *name = session_key_name(slice_of(key), HMQ_SUFFIX_SUBSCRIPTIONS);
    server_reply *reply = sv.Call(ctx, "HGETALL", "s0", name);
    if (reply != NULL)
        sv.ReplyWithCallReply(ctx, reply);
    else
        reply_wrong_type(ctx, name, "a hash");
    if (reply != NULL) sv.FreeCallReply(reply);
    sv.FreeString(NULL, name);
    return SERVER_OK;
}

/* ---- publishing -------------------------------------------------------------------------------------------- */

typedef struct match {
    indexed_session *session;
    uint8_t qos;
    bool retain_as_published;
} match;

/* The sessions that match one publish; the array is kept from one to the next. */
static struct {
    match *list;
    size_t count, room;
    uint64_t mark;
    const indexed_session *publisher; /* NULL if it has no subscriptions */
} matches;

static bool take_match(void *context, uint64_t subscriber, uint32_t options) {
    (void)context;
    indexed_session *session = (indexed_session *)(uintptr_t)subscriber;
    if ((options & OPTION_NO_LOCAL) && session == matches.publisher) return true;
    uint8_t qos = options & OPTION_QOS;
    bool as_published = (options & OPTION_RETAIN_AS_PUBLISHED) != 0;
    if (session->match_mark == matches.mark) { /* several filters of one session: one copy, the largest QoS */
        match *m = &matches.list[session->match_slot];
        if (qos > m->qos) m->qos = qos;
        m->retain_as_published |= as_published;
        return true;
    }
    if (matches.count == matches.room) {
        matches.room = matches.room == 0 ? 64 : matches.room * 2;
        matches.list = sv.Realloc(matches.list, matches.room * sizeof *matches.list);
    }
    session->match_mark = matches.mark;
    session->match_slot = (uint32_t)matches.count;
    matches.list[matches.count++] = (match){session, qos, as_published};
    return true;
}

static const indexed_session *session_of_client(const index_t *index, hmq_slice client_id) {
    if (client_id.len == 0) return NULL;
    size_t capacity = client_id.len * 3 + 2;
    char *key = sv.Alloc(capacity);
    size_t len = hmq_session_key_encode((const char *)client_id.data, client_id.len, key, capacity);
    const indexed_session *session = len == 0 ? NULL : sv.DictGetC(index->sessions, key, len, NULL);
    sv.Free(key);
    return session;
}

static long long route(server_ctx *ctx, index_t *index, const hmq_record *record, long long now_ms) {
    matches.count = 0;
    matches.mark++;
    matches.publisher = session_of_client(index, record->publisher);
    hmq_trie_match(index->filters, (const char *)record->topic.data, record->topic.len, take_match, NULL);
    if (matches.count == 0) return 0;
    message m;
    message_begin(&m, record, now_ms);
    long long reached = 0;
    for (size_t i = 0; i < matches.count; i++) {
        const match *to = &matches.list[i];
        if (!index_session_lives(ctx, index, to->session)) continue;
        uint8_t qos = to->qos < record->qos ? to->qos : record->qos;
        reached += deliver(ctx, to->session, &m, qos, to->retain_as_published && record->retain);
    }
    message_end(&m);
    return reached;
}

static bool parse_publish(args *a, hmq_record *record, publisher *from) {
    long long qos = 0, ttl_s = 0;
    server_string *text;
    bool taken;
    while (args_left(a)) {
        if (args_take_word(a, "QOS")) {
            if (!args_number(a, "QOS", 0, 2, &qos)) return false;
        } else if (args_take_word(a, "RETAIN")) {
            record->retain = true;
        } else if (args_take_word(a, "TTL")) {
            if (!args_number(a, "TTL", 1, MAX_TTL_S, &ttl_s)) return false;
        } else if (args_take_word(a, "PROPERTIES")) {
            if (!args_string(a, "PROPERTIES", &text)) return false;
            record->properties = slice_of(text);
        } else if (!publisher_parse(a, from, &taken)) {
            return false;
        } else if (!taken) {
            return args_end(a);
        }
    }
    record->qos = (uint8_t)qos;
    record->publisher = from->client_id;
    if (ttl_s > 0) record->expires_ms = record->time_ms + ttl_s * 1000;
    return true;
}

static int publish(server_ctx *ctx, const hmq_record *record, const publisher *from) {
    index_t *index = index_of(ctx);
    if (record->retain && !retained_write(ctx, index, record)) return SERVER_OK;
    publisher_note(ctx, from);
    counters.topic_published++;
    return sv.ReplyWithLongLong(ctx, route(ctx, index, record, record->time_ms));
}

int topic_publish_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    a.at = 3;
    hmq_record record = {.type = HMQ_RECORD_PUBLISH,
                         .time_ms = sv.Milliseconds(),
                         .topic = slice_of(argv[1]),
                         .payload = slice_of(argv[2])};
    publisher from = {0};
    hmq_topic_error error = hmq_topic_check_name((const char *)record.topic.data, record.topic.len);
    if (error != HMQ_TOPIC_OK) return reply_invalid_topic(ctx, "the topic", argv[1], error);
    if (!parse_publish(&a, &record, &from)) return SERVER_OK;
    switch (publisher_judge(ctx, &from, record.qos)) {
    case PUBLISHER_MAY: publish(ctx, &record, &from); break;
    case PUBLISHER_REPEATS: sv.ReplyWithLongLong(ctx, -1); break;
    case PUBLISHER_REFUSED: break;
    }
    publisher_end(&from);
    return SERVER_OK;
}

/* ---- asking for retained topics ---------------------------------------------------------------------------- */

typedef struct retained_list {
    server_ctx *ctx;
    long count, most;
} retained_list;

static bool list_retained(void *context, uint64_t subscriber, uint32_t unused) {
    (void)unused;
    retained_list *list = context;
    retained_message kept;
    if (!retained_read(list->ctx, (server_string *)(uintptr_t)subscriber, &kept)) return true;
    sv.ReplyWithStringBuffer(list->ctx, (const char *)kept.record.topic.data, kept.record.topic.len);
    retained_read_end(&kept);
    return ++list->count < list->most;
}

int topic_retained_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *filter;
    long long most = 1000;
    if (!args_string(&a, "filter", &filter) || !check_filter(ctx, filter)) return SERVER_OK;
    if (args_take_word(&a, "COUNT") && !args_number(&a, "COUNT", 1, 1000000, &most)) return SERVER_OK;
    if (!args_end(&a)) return SERVER_OK;
    retained_list list = {ctx, 0, (long)most};
    hmq_slice text = slice_of(filter);
    index_t *index = index_of(ctx);
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    hmq_trie_match_filter(index->retained, (const char *)text.data, text.len, list_retained, &list);
    sv.ReplySetArrayLength(ctx, list.count);
    return SERVER_OK;
}
