/* qos2.c - the two halves of QoS 2: SESSION.RELEASE (outgoing), SESSION.RECEIVE and COMPLETE (incoming).
 *
 *     {c}_received   ZSET  packet identifier -> time of receipt (ms since 1970)
 *
 * Outgoing: after PUBREC the payload is no longer needed, but the identifier is until PUBCOMP; the remaining time to
 * live stays.  Incoming: an identifier is known from its PUBLISH to its PUBREL, so that a repeated PUBLISH is not
 * published again (MQTT 3.1.1 section 4.3.3). */
#include "session/qos2.h"

#include <stdio.h>

#include "topic/packet_id.h"
#include "topic/record.h"
#include "topic/tbmq.h"
#include "server/args.h"
#include "server/errors.h"
#include "index/session_fence.h"
#include "queue/packet_ids.h"
#include "queue/queue.h"
#include "queue/received.h"
#include "session/queue.h"

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
        queue_reply_wrong_type(&q);
    }
    queue_close(&q);
    packet_ids_free(&list);
    return SERVER_OK;
}

/* ---- RECEIVE, COMPLETE ------------------------------------------------------------------------------------- */

int session_receive_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    long long packet_id;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    if (!args_number(&a, "packet-id", 1, HMQ_PACKET_ID_MAX, &packet_id) || !args_end(&a)) return SERVER_OK;
    qos2_status status = qos2_find_received(ctx, slice_of(key), (uint16_t)packet_id);
    if (status == QOS2_WRONG_TYPE) return SERVER_OK;
    if (status == QOS2_NEW) qos2_mark_received(ctx, slice_of(key), (uint16_t)packet_id);
    return sv.ReplyWithLongLong(ctx, status == QOS2_NEW);
}

int session_complete_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key, *name;
    packet_id_list list;
    long long completed = 0;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key)) || !packet_ids_parse(&a, &list))
        return SERVER_OK;
    server_key *set = qos2_open(ctx, slice_of(key), &name);
    if (set != NULL) {
        for (size_t i = 0; i < list.count; i++) completed += qos2_complete(ctx, set, name, list.ids[i]);
        sv.CloseKey(set);
        sv.FreeString(NULL, name);
        sv.ReplyWithLongLong(ctx, completed);
    }
    packet_ids_free(&list);
    return SERVER_OK;
}
