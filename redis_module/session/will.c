/* will.c - the will of a session. */
#include "session/will.h"

#include <string.h>

#include "topic/record.h"
#include "topic/session_key.h"
#include "server/command_slot.h"
#include "server/errors.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "index/usage.h"
#include "routing/publish.h"
#include "session/outbox.h"

#define MAX_SECONDS 4294967295LL

enum { STRING_TOPIC, STRING_PAYLOAD, STRING_PROPERTIES };
#define FIELD_COUNT 8
#define FIELD_TTL 6
static const char *const fields[FIELD_COUNT] = {"will_topic",  "will_payload", "will_properties", "will_qos",
                                                "will_retain", "will_delay",   "will_ttl",        "will_due"};

/* ---- the options of SESSION.OPEN --------------------------------------------------------------------------- */

static bool parse_topic(args *a, will *w) {
    if (!args_string(a, "the topic of WILL", &w->strings[STRING_TOPIC]) ||
        !args_string(a, "the payload of WILL", &w->strings[STRING_PAYLOAD]))
        return false;
    hmq_slice topic = slice_of(w->strings[STRING_TOPIC]);
    hmq_topic_error error = hmq_topic_check_name((const char *)topic.data, topic.len);
    w->given = true;
    if (error == HMQ_TOPIC_OK) return true;
    reply_invalid_topic(a->ctx, "the topic of WILL", w->strings[STRING_TOPIC], error);
    return false;
}

bool will_parse(args *a, will *w, bool *taken) {
    *taken = true;
    if (args_take_word(a, "WILL")) return parse_topic(a, w);
    if (args_take_word(a, "WILLQOS")) return args_number(a, "WILLQOS", 0, 2, &w->qos);
    if (args_take_word(a, "WILLDELAY")) return args_number(a, "WILLDELAY", 0, MAX_SECONDS, &w->delay_s);
    if (args_take_word(a, "WILLTTL")) return w->expires = args_number(a, "WILLTTL", 0, MAX_SECONDS, &w->ttl_s);
    if (args_take_word(a, "WILLPROPERTIES")) return args_string(a, "WILLPROPERTIES", &w->strings[STRING_PROPERTIES]);
    *taken = args_take_word(a, "WILLRETAIN");
    if (*taken) w->retain = true;
    return true;
}

bool will_check(server_ctx *ctx, const will *w) {
    bool options = w->qos != 0 || w->retain || w->delay_s != 0 || w->expires || w->strings[STRING_PROPERTIES] != NULL;
    if (w->given || !options) return true;
    reply_error(ctx, ERROR_WILL_MISSING);
    return false;
}

/* ---- the fields -------------------------------------------------------------------------------------------- */

static server_string *string_of(const char *text) {
    return sv.CreateString(NULL, text, strlen(text));
}

static void remove_fields(server_ctx *ctx, server_key *hash, server_string *name) {
    server_string *gone[FIELD_COUNT];
    size_t n = 0;
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        int stands = 0;
        sv.HashGet(hash, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, fields[i], &stands, NULL);
        if (!stands) continue;
        sv.HashSet(hash, SERVER_HASH_CFIELDS, fields[i], SERVER_HASH_DELETE, NULL);
        gone[n++] = string_of(fields[i]);
    }
    if (n > 0) replicate(ctx, "HDEL", "sv", name, gone, n);
    for (size_t i = 0; i < n; i++) sv.FreeString(NULL, gone[i]);
}

static server_string *text_of(const will *w, size_t field) {
    const long long numbers[] = {w->qos, w->retain, w->delay_s, w->ttl_s};
    if (field >= WILL_STRINGS && (field != FIELD_TTL || w->expires))
        return sv.CreateStringFromLongLong(NULL, numbers[field - WILL_STRINGS]);
    bool is_there = field < WILL_STRINGS && w->strings[field] != NULL;
    return is_there ? sv.HoldString(NULL, w->strings[field]) : string_of("");
}

void will_write(server_ctx *ctx, server_key *hash, server_string *name, const will *w) {
    if (sv.KeyType(hash) == SERVER_HASH) remove_fields(ctx, hash, name);
    if (!w->given) return;
    server_string *pairs[2 * FIELD_COUNT];
    size_t n = 0;
    for (size_t i = 0; i < FIELD_COUNT - 1; i++) {
        pairs[n++] = string_of(fields[i]);
        pairs[n++] = text_of(w, i);
        sv.HashSet(hash, SERVER_HASH_NONE, pairs[n - 2], pairs[n - 1], NULL);
    }
    replicate(ctx, "HSET", "sv", name, pairs, n);
    for (size_t i = 0; i < n; i++) sv.FreeString(NULL, pairs[i]);
}

void will_set_due(server_ctx *ctx, hmq_slice session, long long due_ms) {
    session_fact_write(ctx, session, "will_due", (uint64_t)due_ms, SERVER_NO_EXPIRE);
}

void will_forget(server_ctx *ctx, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(hash) == SERVER_HASH) {
        remove_fields(ctx, hash, name);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
    }
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

bool will_read(server_ctx *ctx, hmq_slice session, will *w) {
    *w = (will){.owned = true};
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    if (sv.KeyType(hash) == SERVER_HASH) {
        sv.HashGet(hash, SERVER_HASH_CFIELDS, fields[0], &w->strings[0], fields[1], &w->strings[1], fields[2],
                   &w->strings[2], NULL);
        w->qos = number_in_field(hash, "will_qos", 2, 0);
        w->retain = number_in_field(hash, "will_retain", 1, 0) == 1;
        w->delay_s = number_in_field(hash, "will_delay", MAX_SECONDS, 0);
        w->ttl_s = number_in_field(hash, "will_ttl", MAX_SECONDS, -1);
        w->expires = w->ttl_s >= 0;
        if (!w->expires) w->ttl_s = 0;
        sv.HashGet(hash, SERVER_HASH_CFIELDS, "identity", &w->identity, NULL);
        w->most_retained = number_in_field(hash, "user_retained", QUOTA_MAX, -1);
    }
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    hmq_slice topic = w->strings[STRING_TOPIC] == NULL ? (hmq_slice){0} : slice_of(w->strings[STRING_TOPIC]);
    w->given = w->strings[STRING_PAYLOAD] != NULL && topic.len > 0 &&
               hmq_topic_check_name((const char *)topic.data, topic.len) == HMQ_TOPIC_OK;
    if (!w->given) will_end(w);
    return w->given;
}

void will_end(will *w) {
    for (int i = 0; w->owned && i < WILL_STRINGS; i++) {
        if (w->strings[i] != NULL) sv.FreeString(NULL, w->strings[i]);
        w->strings[i] = NULL;
    }
    if (w->owned && w->identity != NULL) sv.FreeString(NULL, w->identity);
    w->identity = NULL;
}

/* ---- publishing -------------------------------------------------------------------------------------------- */

static void publish(server_ctx *ctx, hmq_slice session, const will *w) {
    char *client_id = sv.Alloc(session.len);
    int64_t len = hmq_session_key_decode((const char *)session.data, session.len, client_id, session.len);
    hmq_record record = {.type = HMQ_RECORD_PUBLISH,
                         .qos = (uint8_t)w->qos,
                         .retain = w->retain,
                         .time_ms = sv.Milliseconds(),
                         .topic = slice_of(w->strings[STRING_TOPIC]),
                         .payload = slice_of(w->strings[STRING_PAYLOAD])};
    if (w->expires) record.expires_ms = record.time_ms + w->ttl_s * 1000;
    if (len > 0 && len <= UINT16_MAX) record.publisher = (hmq_slice){(const uint8_t *)client_id, (size_t)len};
    if (w->strings[STRING_PROPERTIES] != NULL) record.properties = slice_of(w->strings[STRING_PROPERTIES]);
    hmq_slice identity = w->identity == NULL ? (hmq_slice){0} : slice_of(w->identity);
    quota_claim by = {identity.len <= IDENTITY_MAX_BYTES ? identity : (hmq_slice){0}, w->most_retained};
    if (!outbox_put(ctx, session, &record)) topic_publish(ctx, &record, &by);
    counters.wills_published++;
    sv.Free(client_id);
}

/* A will that is published after the command. */
typedef struct pending {
    server_string *session;
    will will;
} pending;

static void publish_pending(server_ctx *ctx, void *data) {
    const pending *p = data;
    publish(ctx, slice_of(p->session), &p->will);
}

static void release_pending(void *data) {
    pending *p = data;
    will_end(&p->will);
    sv.FreeString(NULL, p->session);
    sv.Free(p);
}

void will_publish(server_ctx *ctx, hmq_slice session, const will *w) {
    if (!command_slot_is_bound()) {
        publish(ctx, session, w);
        return;
    }
    pending *p = sv.Alloc(sizeof *p);
    *p = (pending){sv.CreateString(NULL, (const char *)session.data, session.len), *w};
    p->will.owned = true;
    for (int i = 0; i < WILL_STRINGS; i++)
        if (w->strings[i] != NULL) p->will.strings[i] = sv.HoldString(NULL, w->strings[i]);
    if (w->identity != NULL) p->will.identity = sv.HoldString(NULL, w->identity);
    command_slot_after(ctx, publish_pending, p, release_pending);
}
