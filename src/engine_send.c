/* engine_send.c - messages on their way to a client: now, or when its window and its socket have room.
 *
 * A message becomes a PUBLISH straight in the client's output; behind a full window it waits in `ready`. */
#include "engine_internal.h"

static bool has_room(const hmq_engine *e, const connection *c) {
    return c->writable && !c->conflict && c->inflight.unacknowledged < c->window &&
           c->output.len <= e->settings.max_output_bytes;
}

static void count_latency(hmq_engine *e, int64_t time_ms) {
    static const int64_t bounds[] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000};
    int64_t latency = e->now_ms > time_ms ? e->now_ms - time_ms : 0;
    size_t at = 0;
    while (at < sizeof bounds / sizeof bounds[0] && latency >= bounds[at]) at++;
    e->count.latency_below_ms[at]++;
    e->count.latency_ms_sum += (uint64_t)latency;
    e->count.latency_count++;
}

/* The alias for a topic: 0 none; *known: the client has it already. */
static uint16_t alias_out(hmq_engine *e, connection *c, hmq_slice topic, bool *is_known) {
    *is_known = false;
    if (c->alias_maximum_out == 0 || topic.len < 4) return 0;
    if (c->aliases_out == NULL) {
        c->aliases_out = e->allocator.alloc(c->alias_maximum_out * sizeof(alias));
        if (c->aliases_out == NULL) return 0;
    }
    uint64_t hash = engine_mark(topic.data, topic.len);
    for (uint16_t i = 0; i < c->aliases_out_count; i++) {
        const alias *a = &c->aliases_out[i];
        if (a->hash == hash && a->len == topic.len && memcmp(a->topic, topic.data, topic.len) == 0) {
            *is_known = true;
            return (uint16_t)(i + 1);
        }
    }
    if (c->aliases_out_count == c->alias_maximum_out) return 0;
    alias fresh = {hash, e->allocator.alloc(topic.len), (uint16_t)topic.len};
    if (fresh.topic == NULL) return 0;
    memcpy(fresh.topic, topic.data, topic.len);
    c->aliases_out[c->aliases_out_count++] = fresh;
    return c->aliases_out_count;
}

/* Seconds that are left, rounded up; -1: it does not expire. */
static int64_t expiry_left(const hmq_engine *e, const hmq_record *record) {
    if (record->expires_ms == 0) return -1;
    int64_t left = record->expires_ms - e->now_ms;
    return left <= 0 ? 0 : (left + 999) / 1000;
}

/* Writes the PUBLISH.  False: it is larger than the client takes, or there is no memory. */
static bool put_publish(hmq_engine *e, connection *c, const hmq_record *record, uint8_t qos, bool retain, bool dup,
                        uint16_t packet_id) {
    hmq_slice topic = record->topic;
    bool is_five = c->version == 5, is_known = false;
    size_t most = 32 + topic.len + record->payload.len + record->properties.len;
    uint8_t *room = engine_output(e, c, most);
    if (room == NULL) return false;
    uint16_t alias_used = is_five ? alias_out(e, c, topic, &is_known) : 0;
    if (is_known) topic.len = 0;
    size_t size = is_five ? hmq_mqtt_encode_publish5(topic, record->payload, qos, retain, dup, packet_id,
                                                     record->properties, expiry_left(e, record), alias_used, room, most)
                          : hmq_mqtt_encode_publish(topic.data, topic.len, record->payload.data, record->payload.len,
                                                    qos, retain, dup, packet_id, room, most);
    if (size == 0 || (c->max_packet_out != 0 && size > c->max_packet_out)) {
        if (alias_used != 0 && !is_known) e->allocator.release(c->aliases_out[--c->aliases_out_count].topic);
        return false;
    }
    engine_put(c, size);
    e->count.messages_sent[qos]++;
    e->count.messages_sent_again += dup;
    return true;
}

static void send_transient(hmq_engine *e, connection *c, const hmq_delivery *delivery) {
    hmq_record record;
    if (hmq_record_decode(delivery->record.data, delivery->record.len, &record) != 0 ||
        record.type != HMQ_RECORD_PUBLISH) {
        e->count.messages_unreadable++;
    } else if (!c->writable || c->output.len > e->settings.max_output_bytes) {
        e->count.messages_dropped_qos0++;
    } else if (!put_publish(e, c, &record, 0, delivery->retain, false, 0)) {
        e->count.messages_dropped_oversized++;
    } else {
        count_latency(e, record.time_ms);
    }
}

/* What will never be sent is acknowledged to the server, so that it does not hold up the queue. */
static void skip(hmq_engine *e, connection *c, inflight_entry *entry, uint64_t *counter) {
    (*counter)++;
    outgoing_ack_due(e, c, entry);
}

static void send_publish(hmq_engine *e, connection *c, const outgoing_message *m, const hmq_record *record,
                         inflight_entry *entry) {
    bool dup = m->state == STATE_IN_FLIGHT;
    if (!dup && record->expires_ms != 0 && record->expires_ms <= e->now_ms) {
        skip(e, c, entry, &e->count.messages_dropped_expired);
    } else if (!put_publish(e, c, record, record->qos, record->retain, dup, m->packet_id)) {
        skip(e, c, entry, &e->count.messages_dropped_oversized);
    } else {
        if (record->expires_ms != 0 && !dup) { /* now that the client has it, it must not expire */
            c->sent_due = true;
            engine_wants_flush(e, c);
        }
        if (m->fresh) count_latency(e, record->time_ms);
    }
}

/* Sends one message; it becomes part of what is in flight. */
static void send(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    hmq_record record;
    if (hmq_record_decode(value, m->len, &record) != 0) {
        e->count.messages_unreadable++; /* somebody's own bytes: they stay in the queue, which goes on behind them */
        return;
    }
    inflight_entry *stands = inflight_find(&c->inflight, m->packet_id);
    if (stands != NULL) {
        c->behind = c->conflict = true;
        engine_raise(e, &(hmq_engine_event){.kind = HMQ_EVENT_CONFLICT, .conn = c->handle});
        return;
    }
    bool released = record.type == HMQ_RECORD_PUBREL;
    uint8_t state = released ? INFLIGHT_RELEASED : record.qos == 2 ? INFLIGHT_SENT2 : INFLIGHT_SENT;
    inflight_entry *entry = inflight_add(&e->allocator, &c->inflight, m->packet_id, state);
    if (entry == NULL) { /* no memory: a fetch brings it and all behind it later */
        c->position = m->serial - 1;
        c->ready_count = 0;
        hmq_bytes_clear(&c->ready);
        outgoing_wants_fetch(e, c);
        return;
    }
    entry->serial = m->serial;
    entry->mark = engine_mark(value, m->len);
    if (m->serial > c->highest) c->highest = m->serial;
    if (released)
        client_answer(e, c, HMQ_MQTT_PUBREL, m->packet_id, 0);
    else
        send_publish(e, c, m, &record, entry);
}

/* May a message of the backlog go now?  If not, the flush that is due in a moment goes on. */
static bool replay_allows(hmq_engine *e, connection *c, const outgoing_message *m) {
    if (m->fresh || c->replay.rate == 0 || bucket_take(&c->replay, e->now_ms)) return true;
    engine_wants_time(e, c);
    return false;
}

static bool put_ready(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    uint8_t *room = hmq_bytes_room(&e->allocator, &c->ready, sizeof *m + m->len);
    if (room == NULL) return false;
    memcpy(room, m, sizeof *m);
    memcpy(room + sizeof *m, value, m->len);
    hmq_bytes_wrote(&c->ready, sizeof *m + m->len);
    c->ready_count++;
    return true;
}

void outgoing_send_ready(hmq_engine *e, connection *c) {
    while (c->ready_count > 0 && has_room(e, c)) {
        outgoing_message m;
        memcpy(&m, hmq_bytes_at(&c->ready), sizeof m);
        if (!replay_allows(e, c, &m)) break;
        const uint8_t *value = hmq_bytes_at(&c->ready) + sizeof m; /* readable until something is appended */
        hmq_bytes_drop(&c->ready, sizeof m + m.len);
        c->ready_count--;
        send(e, c, &m, value);
    }
    if (c->ready_count == 0) engine_buffer_done(e, &c->ready);
}

/* The message behind `position`: sends it or puts it into the line. */
void outgoing_take(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    bool now = c->ready_count == 0 && has_room(e, c) && replay_allows(e, c, m);
    if (!now && !put_ready(e, c, m, value)) {
        outgoing_wants_fetch(e, c);
        return;
    }
    c->position = m->serial;
    if (now) send(e, c, m, value);
}

static bool ready_is_full(const hmq_engine *e, const connection *c) {
    return c->ready_count >= e->settings.max_ready || c->ready.len >= e->settings.max_ready_bytes;
}

void outgoing_pushed(hmq_engine *e, connection *c, const hmq_delivery *delivery) {
    if (delivery->kind == HMQ_DELIVERY_TRANSIENT) {
        send_transient(e, c, delivery);
        return;
    }
    if (c->behind || delivery->serial <= c->position) return;
    if (delivery->previous > c->position || ready_is_full(e, c)) {
        outgoing_wants_fetch(e, c);
        return;
    }
    const outgoing_message m = {delivery->serial, (uint32_t)delivery->record.len, delivery->packet_id, STATE_QUEUED,
                                true};
    outgoing_take(e, c, &m, delivery->record.data);
}
