/* qos2.c - the two halves of QoS 2: SESSION.RELEASE (outgoing), SESSION.RECEIVE and COMPLETE (incoming).
 *
 *     {c}_received   ZSET  packet identifier -> time of receipt (ms since 1970)
 *
 * Outgoing: after PUBREC the payload is no longer needed, the identifier is until PUBCOMP; the remaining time to live
 * stays.  Incoming: an identifier is known from its PUBLISH to its PUBREL, so that a repeated PUBLISH is not published
 * again (MQTT 3.1.1 section 4.3.3). */
#include <stdio.h>

#include "topic/packet_id.h"
#include "topic/record.h"
#include "topic/session_key.h"
#include "topic/tbmq.h"
#include "server/args.h"
#include "server/errors.h"
#include "index/index.h"
#include "queue/packet_ids.h"
#include "queue/queue.h"
#include "server/replication.h"
#include "session/session.h"
#include "index/session_hash.h"
#include "session/qos2.h"
#include "session/queue.h"
#include "server/keyspace.h"
#include "server/session_keys.h"

/* ---- RELEASE ----------------------------------------------------------------------------------------------- */

static server_string *released_record(int64_t time_ms) {
    uint8_t bytes[64];
    hmq_record released = {.type = HMQ_RECORD_PUBREL, .time_ms = time_ms};
    size_t len = hmq_record_encode(&released, bytes, sizeof bytes);
    return sv.CreateString(NULL, (const char *)bytes, len);
}

server_string *qos2_released(const char *value, size_t len) {
    hmq_record record;
    if (len > 0 && value[0] == '{') {
        char *json = sv.Alloc(len + 8);
        size_t written = hmq_tbmq_released(value, len, json, len + 8);
        server_string *released =
            written > 0 ? sv.CreateString(NULL, json, written) : released_record(sv.Milliseconds());
        sv.Free(json);
        return released;
    }
    bool known =
        hmq_record_is((const uint8_t *)value, len) && hmq_record_decode((const uint8_t *)value, len, &record) == 0;
    return released_record(known ? record.time_ms : sv.Milliseconds());
}

static server_string *release_value(void *context, uint16_t packet_id, const char *value, size_t len) {
    (void)context, (void)packet_id;
    return qos2_released(value, len);
}

int session_release_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    packet_id_list list;
    queue q;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key)) || !packet_ids_parse(&a, &list))
        return SERVER_OK;
    if (queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE)) {
        long long released = 0;
        for (size_t i = 0; i < list.count; i++) released += queue_replace(&q, list.ids[i], release_value, NULL);
        sv.ReplyWithLongLong(ctx, released);
    } else {
        reply_wrong_type(ctx, q.wrong_type, q.wrong_expected);
    }
    queue_close(&q);
    packet_ids_free(&list);
    return SERVER_OK;
}

/* ---- RECEIVE, COMPLETE ------------------------------------------------------------------------------------- */

static server_string *member_of(uint16_t packet_id) {
    return sv.CreateStringFromLongLong(NULL, packet_id);
}

/* The set of received identifiers, open for writing; NULL after replying WRONGTYPE. */
static server_key *open_received(server_ctx *ctx, hmq_slice session, server_string **name) {
    *name = session_key_name(session, HMQ_SUFFIX_RECEIVED);
    server_key *set = sv.OpenKey(ctx, *name, SERVER_READ | SERVER_WRITE);
    int type = sv.KeyType(set);
    if (type == SERVER_ZSET || type == SERVER_EMPTY) return set;
    reply_wrong_type(ctx, *name, "a sorted set");
    sv.CloseKey(set);
    sv.FreeString(NULL, *name);
    return NULL;
}

static bool is_known(server_key *set, uint16_t packet_id) {
    double score;
    if (sv.KeyType(set) == SERVER_EMPTY) return false;
    server_string *member = member_of(packet_id);
    bool known = sv.ZsetScore(set, member, &score) == SERVER_OK;
    sv.FreeString(NULL, member);
    return known;
}

static void note(server_ctx *ctx, server_key *set, server_string *name, hmq_slice session, uint16_t packet_id) {
    server_string *member = member_of(packet_id);
    bool new = sv.KeyType(set) == SERVER_EMPTY;
    long long now_ms = sv.Milliseconds();
    sv.ZsetAdd(set, (double)now_ms, member, NULL);
    replicate(ctx, "ZADD", "sls", name, now_ms, member);
    index_notify(ctx, SERVER_NOTIFY_ZSET, "zadd", name);
    session_facts facts = session_facts_read(ctx, session);
    long long expire_ms = facts.opened ? facts.expire_ms : now_ms + settings.session_ttl_s * 1000;
    if (new ? expire_ms != SERVER_NO_EXPIRE : expires_later(expire_ms, sv.GetAbsExpire(set)))
        key_set_expiry(ctx, set, name, expire_ms);
    sv.FreeString(NULL, member);
}

qos2_status qos2_look(server_ctx *ctx, hmq_slice session, uint16_t packet_id) {
    server_string *name;
    server_key *set = open_received(ctx, session, &name);
    if (set == NULL) return QOS2_WRONG_TYPE;
    bool known = is_known(set, packet_id);
    sv.CloseKey(set);
    sv.FreeString(NULL, name);
    return known ? QOS2_KNOWN : QOS2_NEW;
}

void qos2_note(server_ctx *ctx, hmq_slice session, uint16_t packet_id) {
    server_string *name;
    server_key *set = open_received(ctx, session, &name);
    if (set == NULL) return;
    note(ctx, set, name, session, packet_id);
    sv.CloseKey(set);
    sv.FreeString(NULL, name);
}

int session_receive_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    long long packet_id;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    if (!args_number(&a, "packet-id", 1, HMQ_PACKET_ID_MAX, &packet_id) || !args_end(&a)) return SERVER_OK;
    qos2_status status = qos2_look(ctx, slice_of(key), (uint16_t)packet_id);
    if (status == QOS2_WRONG_TYPE) return SERVER_OK;
    if (status == QOS2_NEW) qos2_note(ctx, slice_of(key), (uint16_t)packet_id);
    return sv.ReplyWithLongLong(ctx, status == QOS2_NEW);
}

static bool complete(server_ctx *ctx, server_key *set, server_string *name, uint16_t packet_id) {
    int removed = 0;
    server_string *member = member_of(packet_id);
    if (sv.KeyType(set) == SERVER_ZSET) sv.ZsetRem(set, member, &removed);
    if (removed) {
        replicate(ctx, "ZREM", "ss", name, member);
        index_notify(ctx, SERVER_NOTIFY_ZSET, "zrem", name);
        if (sv.KeyType(set) == SERVER_EMPTY) index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.FreeString(NULL, member);
    return removed != 0;
}

int session_complete_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key, *name;
    packet_id_list list;
    long long completed = 0;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key)) || !packet_ids_parse(&a, &list))
        return SERVER_OK;
    server_key *set = open_received(ctx, slice_of(key), &name);
    if (set != NULL) {
        for (size_t i = 0; i < list.count; i++) completed += complete(ctx, set, name, list.ids[i]);
        sv.CloseKey(set);
        sv.FreeString(NULL, name);
        sv.ReplyWithLongLong(ctx, completed);
    }
    packet_ids_free(&list);
    return SERVER_OK;
}
