/* delivery.c - hands one message to one session. */
#include "delivery.h"

#include <string.h>

#include "queue.h"
#include "queue_expiry.h"

void message_begin(message *m, const hmq_record *record, long long now_ms) {
    m->record = *record;
    memset(m->encoded, 0, sizeof m->encoded);
    long long default_ms = now_ms + settings.session_ttl_s * 1000;
    bool own = record->expires_ms > 0 && record->expires_ms < default_ms;
    m->expire_ms = own ? record->expires_ms + QUEUE_EXPIRY_GRACE_MS : default_ms;
}

void message_end(message *m) {
    for (int qos = 0; qos < 3; qos++) {
        for (int retain = 0; retain < 2; retain++) {
            if (m->encoded[qos][retain] != NULL) sv.FreeString(NULL, m->encoded[qos][retain]);
        }
    }
}

/* The record with QoS and retain flag of the delivery, as whoever fetches it has to send it. */
static server_string *encoded(message *m, uint8_t qos, bool retain) {
    server_string **known = &m->encoded[qos][retain];
    if (*known != NULL) return *known;
    hmq_record record = m->record;
    record.qos = qos;
    record.retain = retain;
    size_t size = hmq_record_size(&record);
    uint8_t *bytes = sv.Alloc(size);
    hmq_record_encode(&record, bytes, size);
    *known = sv.CreateString(NULL, (const char *)bytes, size);
    sv.Free(bytes);
    return *known;
}

static bool push(server_ctx *ctx, const indexed_session *session, message *m, const hmq_delivery *delivery) {
    size_t len;
    const char *record = sv.StringPtrLen(encoded(m, delivery->qos, delivery->retain), &len);
    uint8_t *bytes = sv.Alloc(HMQ_DELIVERY_HEADER_BYTES + len);
    hmq_delivery_encode_header(delivery, bytes, HMQ_DELIVERY_HEADER_BYTES);
    memcpy(bytes + HMQ_DELIVERY_HEADER_BYTES, record, len);
    server_string *text = sv.CreateString(NULL, (const char *)bytes, HMQ_DELIVERY_HEADER_BYTES + len);
    sv.Free(bytes);
    int heard = sv.PublishMessage(ctx, session->inbox, text);
    sv.FreeString(NULL, text);
    if (heard > 0) counters.topic_pushed++;
    return heard > 0;
}

/* False if the session's keys hold something else, or its queue is full of messages in flight: that session cannot be
 * served, the others can. */
static bool store(server_ctx *ctx, const indexed_session *session, message *m, hmq_delivery *delivery) {
    queue q;
    queue_item item = {.value = encoded(m, delivery->qos, delivery->retain), .expire_ms = m->expire_ms};
    queue_result result;
    bool stored = queue_open(&q, ctx, slice_of(session->key), SERVER_READ | SERVER_WRITE) &&
                  queue_add(&q, &item, 1, (size_t)settings.session_limit, &result) == QUEUE_OK &&
                  item.packet_id != 0; /* 0: all that is queued is in flight, there is no room */
    queue_close(&q);
    if (!stored) {
        counters.topic_refused++;
        return false;
    }
    counters.topic_stored++;
    delivery->packet_id = item.packet_id;
    delivery->serial = item.serial;
    delivery->previous = item.previous;
    return true;
}

bool deliver(server_ctx *ctx, const indexed_session *session, message *m, uint8_t qos, bool retain) {
    hmq_delivery delivery = {.kind = HMQ_DELIVERY_TRANSIENT, .qos = qos, .retain = retain};
    if (qos == 0) return push(ctx, session, m, &delivery);
    delivery.kind = HMQ_DELIVERY_QUEUED;
    if (!store(ctx, session, m, &delivery)) return false;
    push(ctx, session, m, &delivery);
    return true;
}
