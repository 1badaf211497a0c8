/* send.c - sends messages to a client: immediately, or once its window and its socket have room.
 *
 * A message becomes a PUBLISH directly in the client's output; with a full window it waits in `ready`. */
#include "engine/internal.h"

#include "topic/tbmq.h"

/* A message of QoS 0 needs no place in the window. */
static bool has_room(const hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    const connection *client = hmq_client_of(c);
    bool has_place = (c->inflight.unacknowledged < c->window && c->inflight.count < c->places &&
                      hmq_members_have_room(e, c, m->packet_id)) ||
                     hmq_record_has_qos0(value, m->len);
    return has_place && c->phase == PHASE_OPEN && client->phase == PHASE_OPEN && client->writable &&
           client->output.len <= e->settings.max_output_bytes;
}

/* The alias for a topic; 0: it has none.  *is_known: the client has it already. */
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

/* Removes the newest alias, because its message was not sent. */
static void remove_newest_alias(hmq_engine *e, connection *c) {
    e->allocator.release(c->aliases_out[--c->aliases_out_count].topic);
}

/* Seconds until it expires, rounded up; -1: it does not expire. */
static int64_t expiry_left(const hmq_engine *e, const hmq_record *record) {
    if (record->expires_ms == 0) return -1;
    int64_t left = record->expires_ms - e->now_ms;
    if (left <= 0) return 0;
    return left > (int64_t)UINT32_MAX * 1000 ? UINT32_MAX : (left + 999) / 1000;
}

/* A PUBLISH that is being written. */
typedef struct draft {
    const hmq_record *record;
    uint16_t packet_id; /* 0 with QoS 0 */
    uint8_t qos;
    bool retain, dup;
} draft;

typedef enum put_result { PUT_DONE, PUT_TOO_LARGE, PUT_NO_MEMORY } put_result;

/* Its size; 0: it cannot be written, or the client does not take packets of its size. */
static size_t encode5(hmq_engine *e, connection *c, const draft *d, uint8_t *out, size_t room) {
    const hmq_record *r = d->record; /* c is the client's */
    size_t most = c->max_packet_out == 0 ? room : c->max_packet_out;
    bool is_known;
    uint16_t number = alias_out(e, c, r->topic, &is_known);
    hmq_slice topic = is_known ? (hmq_slice){r->topic.data, 0} : r->topic;
    int64_t expiry = expiry_left(e, r);
    size_t size = hmq_mqtt_encode_publish5(topic, r->payload, d->qos, d->retain, d->dup, d->packet_id, r->properties,
                                           expiry, number, out, room);
    if (size > 0 && size <= most) return size;
    if (number == 0 || is_known) return 0;
    remove_newest_alias(e, c); /* without the new alias it is shorter */
    size = hmq_mqtt_encode_publish5(topic, r->payload, d->qos, d->retain, d->dup, d->packet_id, r->properties, expiry,
                                    0, out, room);
    return size <= most ? size : 0;
}

static put_result put_publish(hmq_engine *e, connection *session, const draft *d) {
    connection *c = hmq_client_of(session);
    const hmq_record *r = d->record;
    size_t most = 32 + r->topic.len + r->payload.len + r->properties.len;
    uint8_t *room = hmq_engine_output(e, c, most);
    if (room == NULL) return PUT_NO_MEMORY;
    size_t size = c->version == 5
                      ? encode5(e, c, d, room, most)
                      : hmq_mqtt_encode_publish(r->topic.data, r->topic.len, r->payload.data, r->payload.len, d->qos,
                                                d->retain, d->dup, d->packet_id, room, most);
    if (size == 0) return PUT_TOO_LARGE;
    hmq_engine_output_done(e, c, size);
    if (d->qos < sizeof e->count.messages_sent / sizeof e->count.messages_sent[0]) e->count.messages_sent[d->qos]++;
    c->traffic.sent++;
    c->traffic.bytes_sent += r->payload.len;
    e->count.messages_sent_again += d->dup;
    return PUT_DONE;
}

/* One line in the log per connection is enough. */
static bool is_withheld(hmq_engine *e, connection *session, hmq_slice topic) {
    connection *c = hmq_client_of(session);
    if (hmq_rules_allow(&c->receive_rules, topic)) return false;
    if (!c->withheld_is_reported)
        c->withheld_is_reported =
            hmq_engine_raise(e, &(hmq_engine_event){.kind = HMQ_EVENT_WITHHELD, .conn = c->handle, .bytes = topic});
    return true;
}

static void send_transient(hmq_engine *e, connection *c, const hmq_delivery *delivery) {
    hmq_record record;
    if (hmq_record_decode(delivery->record.data, delivery->record.len, &record) != 0 ||
        record.type != HMQ_RECORD_PUBLISH) {
        e->count.messages_unreadable++;
        return;
    }
    if (is_withheld(e, c, record.topic)) {
        e->count.messages_denied++;
        return;
    }
    const connection *client = hmq_client_of(c);
    bool is_open = c->phase == PHASE_OPEN && client->phase == PHASE_OPEN;
    if (!is_open || !client->writable || client->output.len > e->settings.max_output_bytes) {
        e->count.messages_dropped_qos0++;
        return;
    }
    const draft d = {.record = &record, .retain = delivery->retain};
    switch (put_publish(e, c, &d)) {
    case PUT_DONE:
        if (e->traces != NULL && !delivery->retain) hmq_trace_arrived(e, c, &record, 0, false);
        if (!c->replays) hmq_latency_delivered(e, record.time_ms);
        break;
    case PUT_TOO_LARGE: e->count.messages_dropped_oversized++; break;
    case PUT_NO_MEMORY: e->count.messages_dropped_qos0++; break;
    }
}

/* Acknowledges a message that will never be sent, so that it does not hold up the queue. */
static void skip(hmq_engine *e, connection *c, inflight_entry *entry, uint64_t *counter) {
    (*counter)++;
    if (c->traces != 0) hmq_trace_skipped(e, c, entry->serial);
    hmq_outgoing_ack_due(e, c, entry);
}

void hmq_outgoing_skip_oversized(hmq_engine *e, connection *c, uint64_t serial, uint16_t packet_id) {
    inflight_entry *entry = hmq_inflight_find(&c->inflight, packet_id);
    if (entry != NULL && entry->serial != serial) {
        hmq_engine_end(e, c, HMQ_EVENT_CONFLICT, (hmq_slice){NULL, 0});
        return;
    }
    c->position = serial;
    if (entry != NULL) { /* skipped before the server was lost */
        entry->unchecked = false;
        hmq_outgoing_ack_due(e, c, entry);
        return;
    }
    entry = hmq_inflight_add(&e->allocator, &c->inflight, packet_id, INFLIGHT_ACK_DUE);
    if (entry == NULL) {
        hmq_engine_no_memory(e, c);
        return;
    }
    entry->serial = serial;
    skip(e, c, entry, &e->count.messages_dropped_oversized);
}

static void was_sent(hmq_engine *e, connection *c, const outgoing_message *m, const hmq_record *record) {
    if (m->serial > c->highest) c->highest = m->serial;
    if (c->traces != 0) hmq_trace_delivered(e, c, m->serial);
    if (record->qos == 0)
        hmq_id_push(e, c, &c->in_output, m->packet_id);
    else if (record->expires_ms != 0 && m->state == STATE_QUEUED) { /* now that the client has it, it must not expire */
        c->sent_due = true;
        hmq_engine_schedule_flush(e, c);
    }
    if (m->fresh) hmq_latency_delivered(e, record->time_ms);
}

static void send_publish(hmq_engine *e, connection *c, const outgoing_message *m, const hmq_record *record,
                         inflight_entry *entry, bool at_once) {
    const draft d = {.record = record,
                     .packet_id = record->qos > 0 ? hmq_members_wire_id(e, c, m->packet_id) : 0,
                     .qos = record->qos,
                     .retain = record->retain,
                     .dup = m->state == STATE_IN_FLIGHT && record->qos > 0}; /* [MQTT-3.3.1-2] */
    if (is_withheld(e, c, record->topic)) {
        skip(e, c, entry, &e->count.messages_denied);
        return;
    }
    bool is_immediate = at_once && m->fresh && hmq_record_has_zero_ttl(record);
    bool was_handed_out = m->state == STATE_IN_FLIGHT;
    if (!was_handed_out && record->expires_ms != 0 && record->expires_ms <= e->now_ms && !is_immediate) {
        skip(e, c, entry, &e->count.messages_dropped_expired);
        return;
    }
    switch (put_publish(e, c, &d)) {
    case PUT_DONE: was_sent(e, c, m, record); break;
    case PUT_TOO_LARGE: skip(e, c, entry, &e->count.messages_dropped_oversized); break;
    case PUT_NO_MEMORY: hmq_engine_no_memory(e, c); break;
    }
}

/* 0: done; 1: out of memory; -1: bytes of another program.  A message in TBMQ's format is decoded into `scratch`. */
static int read_value(hmq_engine *e, const uint8_t *value, size_t len, hmq_record *record) {
    if (hmq_record_decode(value, len, record) == 0) return 0;
    if (len == 0 || value[0] != '{') return -1;
    uint8_t *room = hmq_bytes_room(&e->allocator, &e->scratch, len);
    if (room == NULL) return 1;
    return hmq_tbmq_read((const char *)value, len, room, len, record) ? 0 : -1;
}

/* The state of a message after it was sent. */
static uint8_t state_of(const hmq_record *record) {
    if (record->type == HMQ_RECORD_PUBREL) return INFLIGHT_RELEASED;
    return record->qos == 2 ? INFLIGHT_SENT2 : record->qos == 1 ? INFLIGHT_SENT : INFLIGHT_SENT0;
}

void hmq_outgoing_handed_out(hmq_engine *e, connection *c) {
    while (id_count(&c->in_output) > 0) {
        inflight_entry *entry = hmq_inflight_find(&c->inflight, id_pop(&c->in_output));
        if (entry != NULL && entry->state == INFLIGHT_SENT0) hmq_outgoing_ack_due(e, c, entry);
    }
    hmq_bytes_free(&e->allocator, &c->in_output.bytes);
}

/* Sends one message, which is in flight then.  `at_once`: it has not waited in the ready line. */
static void send(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value, bool at_once) {
    hmq_record record;
    int outcome = read_value(e, value, m->len, &record);
    if (outcome > 0) {
        hmq_engine_no_memory(e, c);
        return;
    }
    if (outcome < 0) {
        e->count
            .messages_unreadable++; /* bytes of another program: they stay in the queue, which continues after them */
        return;
    }
    if (hmq_inflight_find(&c->inflight, m->packet_id) != NULL) {
        hmq_engine_end(e, c, HMQ_EVENT_CONFLICT, (hmq_slice){NULL, 0});
        return;
    }
    bool is_released = record.type == HMQ_RECORD_PUBREL;
    uint8_t state = state_of(&record);
    inflight_entry *entry = hmq_inflight_add(&e->allocator, &c->inflight, m->packet_id, state);
    if (entry == NULL) {
        hmq_engine_no_memory(e, c);
        return;
    }
    entry->serial = m->serial;
    entry->mark = engine_mark(value, m->len);
    hmq_places_used(e, c);
    if (is_released || record.qos > 0) hmq_members_sent(c, m->packet_id);
    if (!is_released) {
        send_publish(e, c, m, &record, entry, at_once);
        return;
    }
    if (m->serial > c->highest) c->highest = m->serial;
    hmq_members_release(e, c, m->packet_id);
}

/* May a message of the backlog be sent now?  If not, the flush that is due soon continues. */
static bool replay_allows(hmq_engine *e, connection *c, const outgoing_message *m) {
    if (m->fresh || c->replay.rate == 0 || hmq_bucket_take(&c->replay, e->now_ms)) return true;
    hmq_engine_schedule_wake(e, c);
    return false;
}

static bool put_ready(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    uint8_t *room = hmq_bytes_room(&e->allocator, &c->ready, sizeof *m + m->len);
    if (room == NULL) return false;
    memcpy(room, m, sizeof *m);
    memcpy(room + sizeof *m, value, m->len);
    hmq_bytes_written(&c->ready, sizeof *m + m->len);
    c->ready_count++;
    return true;
}

void hmq_outgoing_send_ready(hmq_engine *e, connection *c) {
    while (c->ready_count > 0) {
        outgoing_message m;
        memcpy(&m, hmq_bytes_at(&c->ready), sizeof m);
        const uint8_t *value = hmq_bytes_at(&c->ready) + sizeof m; /* readable until something is appended */
        if (!has_room(e, c, &m, value) || !replay_allows(e, c, &m)) {
            hmq_places_wait(e, c);
            break;
        }
        hmq_bytes_drop(&c->ready, sizeof m + m.len);
        c->ready_count--;
        send(e, c, &m, value, false);
    }
    if (c->ready_count == 0) hmq_engine_buffer_done(e, &c->ready);
}

static void trace(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    hmq_record record;
    if (hmq_record_decode(value, m->len, &record) == 0 && !record.retain)
        hmq_trace_arrived(e, c, &record, m->serial, !m->fresh);
}

void hmq_outgoing_take(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    hmq_assert(m->serial > c->position); /* invariant 3 of engine.h */
    c->position = m->serial;
    if (e->traces != NULL) trace(e, c, m, value);
    if (c->ready_count == 0 && has_room(e, c, m, value) && replay_allows(e, c, m))
        send(e, c, m, value, true);
    else if (put_ready(e, c, m, value))
        hmq_places_wait(e, c);
    else
        hmq_engine_no_memory(e, c);
}

static bool ready_is_full(const hmq_engine *e, const connection *c) {
    return c->ready_count >= e->settings.max_ready || c->ready.len >= e->settings.max_ready_bytes;
}

/* Counts a receiver once each time that live messages make its queue long. */
static void note_backlog(hmq_engine *e, connection *c) {
    if (c->outgrew || !c->behind || !c->overflowed || c->replays || !hmq_conn_queue_is_long(c)) return;
    c->outgrew = true;
    e->count.backlogs_outgrown++;
}

void hmq_outgoing_pushed(hmq_engine *e, connection *c, const hmq_delivery *delivery) {
    if (delivery->kind == HMQ_DELIVERY_TRANSIENT) {
        send_transient(e, c, delivery);
        return;
    }
    if (delivery->serial > c->newest) c->newest = delivery->serial;
    note_backlog(e, c);
    if (c->behind || delivery->serial <= c->position) return;
    if (delivery->previous > c->position || ready_is_full(e, c)) {
        c->overflowed = true;
        hmq_outgoing_schedule_fetch(e, c);
        return;
    }
    const outgoing_message m = {delivery->serial, (uint32_t)delivery->record.len, delivery->packet_id, STATE_QUEUED,
                                !c->replays};
    hmq_outgoing_take(e, c, &m, delivery->record.data);
}
