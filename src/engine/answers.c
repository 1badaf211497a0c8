/* answers.c - the final answer to a client's publish: taken, refused, given up. */
#include "engine/internal.h"

#include <string.h>

bool hmq_error_begins(hmq_slice text, const char *word) {
    size_t len = strlen(word);
    return text.len >= len && memcmp(text.data, word, len) == 0 && (text.len == len || text.data[len] == ' ');
}

/* Means of the most recent publishes: they rise quickly and fall slowly. */
void hmq_log_reached(hmq_engine *e, connection *c, int64_t sessions) {
    double more = (double)sessions - e->copies, more_of_client = (double)sessions - (double)c->reach;
    e->copies += more > 0 ? more / 4 : more / 64;
    c->reach += (float)(!c->reach_is_known   ? more_of_client
                        : more_of_client > 0 ? more_of_client / 4
                                             : more_of_client / 64);
    c->reach_is_known = true;
}

bool hmq_session_is_gone(hmq_slice error) {
    return hmq_error_begins(error, "FENCED") || hmq_error_begins(error, "NOSESSION");
}

void hmq_publish_finish(hmq_engine *e, connection *c) {
    hmq_assert(c->outstanding > 0);
    c->outstanding--;
    if (c->outstanding == 0) c->publishes.pause_ms = 0;
    hmq_engine_resume_reading(e, c);
}

static void quota_back(connection *c) {
    if (c->quota_used > 0) c->quota_used--;
}

void hmq_publish_answer(hmq_engine *e, connection *c, const awaited *entry, uint8_t reason) {
    if (entry->qos == 0) return;
    hmq_client_answer(e, c, entry->qos == 1 ? HMQ_MQTT_PUBACK : HMQ_MQTT_PUBREC, entry->packet_id, reason);
    if (c->timed_id == entry->packet_id) hmq_latency_end(e, c);
    if (entry->qos == 1 || reason >= 0x80) quota_back(c);
}

static void published(hmq_engine *e, connection *c, const awaited *entry, int64_t reached) {
    bool sent_before = entry->token & 1;
    if (reached < 0 && !sent_before) { /* QoS 2, repeated by the client */
        e->count.publishes_repeated++;
        quota_back(c); /* it was counted twice */
    }
    if (reached >= 0) hmq_log_reached(e, c, reached);
    e->count.publishes_unheard += reached == 0;
    e->count.publishes_acknowledged += entry->qos > 0;
    if (entry->qos > 0) e->count.acknowledged_ms = (uint64_t)e->now_ms;
    hmq_publish_answer(e, c, entry, reached == 0 ? REASON_NO_SUBSCRIBERS : 0);
    if (TRACE_OF(entry->token) != 0) hmq_trace_answered(e, c, entry, HMQ_TRACE_DONE);
}

void hmq_publish_settle(hmq_engine *e, connection *c, const awaited *entry, int64_t reply) {
    switch (entry->kind) {
    case COMMAND_PUBLISH: published(e, c, entry, reply); break;
    case COMMAND_DENIED: hmq_publish_answer(e, c, entry, c->version == 5 ? REASON_NOT_AUTHORIZED : 0); break;
    default: /* COMPLETE */ hmq_client_answer(e, c, HMQ_MQTT_PUBCOMP, entry->packet_id, 0); quota_back(c);
    }
    hmq_publish_finish(e, c);
}

void hmq_publish_settled(hmq_engine *e, connection *c, const held_answer *answer) {
    if (answer->refusal == 0) {
        hmq_publish_settle(e, c, &answer->entry, answer->reached);
        return;
    }
    hmq_publish_answer(e, c, &answer->entry, answer->refusal);
    if (TRACE_OF(answer->entry.token) != 0) hmq_trace_answered(e, c, &answer->entry, HMQ_TRACE_REFUSED);
    hmq_publish_finish(e, c);
}

void hmq_publish_failed(hmq_engine *e, connection *c, hmq_slice error) {
    hmq_engine_end(e, c, hmq_session_is_gone(error) ? HMQ_EVENT_TAKEN_OVER : HMQ_EVENT_FAILED, error);
}

/* Reads topic and payload size from the bytes of a TOPIC.PUBLISH. */
static void read_command(const uint8_t *bytes, size_t len, hmq_slice *topic, uint64_t *size) {
    hmq_resp_item item = {0};
    size_t at = 0;
    for (int i = 0; i < 3 && hmq_resp_next(bytes, len, &at, &item); i++) *topic = item.text; /* header, name, topic */
    *size = hmq_resp_next(bytes, len, &at, &item) ? item.text.len : 0;
}

void hmq_publish_abandon(hmq_engine *e, connection *c, const awaited *entry, const uint8_t *bytes) {
    static const char text[] = "ERR the connection to the server broke each time a publish was sent";
    hmq_slice topic = {NULL, 0};
    uint64_t size;
    read_command(bytes, entry->len, &topic, &size);
    e->count.publishes_refused++;
    e->count.publishes_abandoned++;
    hmq_engine_raise(
        e, &(hmq_engine_event){.kind = HMQ_EVENT_ABANDONED, .conn = c->handle, .token = size, .bytes = topic});
    if (c->version == 5)
        hmq_publish_answer(e, c, entry, REASON_QUOTA);
    else
        hmq_publish_failed(e, c, (hmq_slice){(const uint8_t *)text, sizeof text - 1});
    if (TRACE_OF(entry->token) != 0) hmq_trace_answered(e, c, entry, HMQ_TRACE_LOST);
    hmq_publish_finish(e, c);
}
