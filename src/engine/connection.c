/* connection.c - the functions of a connection that every file of the engine uses: lists, output, events, pauses in
 * reading. */
#include "engine/internal.h"

#include <string.h>

#define SPARE_MAX_BYTES 65536U

/* ---- lists and names --------------------------------------------------------------------------------------------- */

void hmq_engine_list_add(hmq_engine *e, conn_list *list, hmq_conn conn, bool *listed) {
    if (*listed) return;
    *listed = hmq_bytes_append(&e->allocator, &list->bytes, &conn, sizeof conn);
    if (!*listed) e->sweep = true;
}

bool hmq_engine_list_pop(conn_list *list, hmq_conn *conn) {
    if (list->bytes.len == 0) return false;
    memcpy(conn, hmq_bytes_at(&list->bytes), sizeof *conn);
    hmq_bytes_drop(&list->bytes, sizeof *conn);
    return true;
}

void hmq_bucket_fill(bucket *b, int64_t now_ms) {
    if (now_ms > b->filled_ms) b->tokens += (double)(now_ms - b->filled_ms) * b->rate / 1000;
    if (b->tokens > b->rate) b->tokens = b->rate;
    b->filled_ms = now_ms; /* also when the clock was set back */
}

bool hmq_bucket_take(bucket *b, int64_t now_ms) {
    hmq_bucket_fill(b, now_ms);
    if (b->tokens < 1) return false;
    b->tokens -= 1;
    return true;
}

bool hmq_bucket_spend(bucket *b, int64_t now_ms) {
    hmq_bucket_fill(b, now_ms);
    b->tokens -= 1;
    return b->tokens >= 0;
}

bool hmq_conn_queue_is_long(const connection *c) {
    return c->newest > c->position && c->newest - c->position >= HMQ_LONG_QUEUE;
}

hmq_slice hmq_conn_key(const connection *c) {
    return (hmq_slice){c->names, c->key_len};
}

hmq_slice hmq_conn_inbox(const connection *c) {
    return (hmq_slice){c->names, c->inbox_len};
}

hmq_slice hmq_conn_client_id(const connection *c) {
    return (hmq_slice){c->names + c->inbox_len, c->id_len};
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

bool hmq_engine_raise(hmq_engine *e, const hmq_engine_event *event) {
    uint8_t *room = hmq_bytes_room(&e->allocator, &e->events, sizeof *event + event->bytes.len);
    if (room == NULL) return false;
    memcpy(room, event, sizeof *event);
    if (event->bytes.len > 0) memcpy(room + sizeof *event, event->bytes.data, event->bytes.len);
    hmq_bytes_written(&e->events, sizeof *event + event->bytes.len);
    return true;
}

bool hmq_engine_next_event(hmq_engine *e, hmq_engine_event *event) {
    *event = (hmq_engine_event){0};
    if (e->events.len == 0) return false;
    memcpy(event, hmq_bytes_at(&e->events), sizeof *event);
    event->bytes.data = event->bytes.len > 0 ? hmq_bytes_at(&e->events) + sizeof *event : NULL;
    hmq_bytes_drop(&e->events, sizeof *event + event->bytes.len); /* they stay readable until something is raised */
    return true;
}

void hmq_engine_end(hmq_engine *e, connection *c, hmq_engine_event_kind kind, hmq_slice bytes) {
    if (c->phase == PHASE_ENDED) return;
    c->phase = PHASE_ENDED;
    if (hmq_engine_raise(e, &(hmq_engine_event){.kind = (uint8_t)kind, .conn = c->handle, .bytes = bytes})) return;
    c->owed = (uint8_t)kind;
    e->sweep = true;
}

void hmq_engine_no_memory(hmq_engine *e, connection *c) {
    static const char text[] = "out of memory";
    hmq_engine_end(e, c, HMQ_EVENT_FAILED, (hmq_slice){(const uint8_t *)text, sizeof text - 1});
}

connection *hmq_engine_find(const hmq_engine *e, hmq_conn handle) {
    uint32_t slot = (uint32_t)handle - 1;
    if (slot >= e->slot_count || e->slots[slot] == NULL || e->slots[slot]->handle != handle) return NULL;
    return e->slots[slot];
}

/* ---- bytes for the client ---------------------------------------------------------------------------------------- */

static void buffer_take(hmq_engine *e, hmq_bytes *buffer) {
    if (buffer->data == NULL && e->spare_count > 0) *buffer = e->spare[--e->spare_count];
}

void hmq_engine_buffer_done(hmq_engine *e, hmq_bytes *buffer) {
    size_t most = sizeof e->spare / sizeof e->spare[0];
    if (buffer->data == NULL) return;
    hmq_bytes_clear(buffer);
    if (buffer->capacity <= SPARE_MAX_BYTES && e->spare_count < most)
        e->spare[e->spare_count++] = *buffer;
    else
        e->allocator.release(buffer->data);
    *buffer = (hmq_bytes){0};
}

uint8_t *hmq_engine_output(hmq_engine *e, connection *session, size_t bytes) {
    connection *c = hmq_client_of(session);
    if (!c->in_outputs) {
        buffer_take(e, &c->output);
        hmq_engine_list_add(e, &e->outputs, c->handle, &c->in_outputs);
        if (!c->in_outputs) return NULL;
    }
    return hmq_bytes_room(&e->allocator, &c->output, bytes);
}

void hmq_engine_output_done(hmq_engine *e, connection *c, size_t bytes) {
    e->count.packets_sent++;
    hmq_bytes_written(&hmq_client_of(c)->output, bytes);
}

bool hmq_engine_send(hmq_engine *e, hmq_conn conn, const uint8_t *data, size_t len) {
    connection *c = hmq_engine_find(e, conn);
    if (c == NULL) return true;
    uint8_t *room = hmq_engine_output(e, c, len);
    if (room == NULL) return false;
    if (len > 0) memcpy(room, data, len);
    hmq_engine_output_done(e, c, len);
    return true;
}

void hmq_client_answer(hmq_engine *e, connection *c, hmq_mqtt_type type, uint16_t packet_id, uint8_t reason) {
    if (c->phase != PHASE_OPEN || hmq_client_of(c)->phase != PHASE_OPEN) return;
    uint8_t *out = hmq_engine_output(e, c, 5);
    if (out == NULL) {
        hmq_engine_no_memory(e, c);
        return;
    }
    bool with_reason = reason != 0 && c->version == 5;
    out[0] = (uint8_t)(type << 4 | (type == HMQ_MQTT_PUBREL ? 2 : 0));
    out[1] = with_reason ? 3 : 2;
    out[2] = (uint8_t)(packet_id >> 8);
    out[3] = (uint8_t)packet_id;
    out[4] = reason;
    hmq_engine_output_done(e, c, with_reason ? 5 : 4);
}

/* ---- when something is to be done -------------------------------------------------------------------------------- */

static bool has_too_many_bytes(const hmq_engine *e, const connection *c) {
    size_t most = e->settings.max_client_outstanding_bytes;
    if (c->reading_is_paused) most /= 2;
    return e->settings.max_client_outstanding_bytes > 0 && c->under_way_bytes + c->again.len + c->later.len > most;
}

bool hmq_engine_may_not_read(const hmq_engine *e, const connection *c) {
    uint32_t most = c->reading_is_paused ? e->settings.max_client_outstanding / 2 : e->settings.max_client_outstanding;
    bool limited = c->publishing.rate != 0 && c->publishing.tokens < 0;
    return c->phase == PHASE_HELD || (c->paused && c->unread.len > 0) || c->outstanding > most ||
           has_too_many_bytes(e, c) || c->publishes.waits || limited || (!c->link->up && c->outstanding > 0);
}

void hmq_engine_resume_reading(hmq_engine *e, connection *c) {
    if (!c->reading_is_paused || hmq_engine_may_not_read(e, c)) return;
    if (hmq_engine_raise(e, &(hmq_engine_event){.kind = HMQ_EVENT_RELIEF, .conn = c->handle}))
        c->reading_is_paused = false;
    else
        e->sweep = true;
}

void hmq_id_push(hmq_engine *e, connection *c, id_queue *queue, uint16_t packet_id) {
    if (!hmq_bytes_append(&e->allocator, &queue->bytes, &packet_id, sizeof packet_id)) hmq_engine_no_memory(e, c);
}

void hmq_engine_schedule_flush(hmq_engine *e, connection *c) {
    hmq_engine_list_add(e, &e->flushes, c->handle, &c->in_flush);
}

void hmq_engine_schedule_wake(hmq_engine *e, connection *c) {
    hmq_engine_list_add(e, &e->waiting, c->handle, &c->in_waiting);
}

void hmq_outgoing_schedule_fetch(hmq_engine *e, connection *c) {
    hmq_outgoing_set_behind(c, true);
    hmq_engine_schedule_flush(e, c);
}

bool hmq_outgoing_may_send_commands(const connection *c) {
    return c->link->up && c->phase == PHASE_OPEN && !c->queue.waits && c->next == NULL;
}

void hmq_outgoing_ack_due(hmq_engine *e, connection *c, inflight_entry *entry) {
    if (entry->gone) {
        hmq_inflight_remove(&e->allocator, &c->inflight, entry);
        return;
    }
    hmq_inflight_set_state(&c->inflight, entry, INFLIGHT_ACK_DUE);
    if (entry->unchecked) return; /* the comparison after a loss of the server does it */
    hmq_id_push(e, c, &c->acks_due, entry->packet_id);
    hmq_engine_schedule_flush(e, c);
}

/* ---- withheld answers -------------------------------------------------------------------------------------------- */

bool hmq_confirm_needs(const hmq_engine *e, const awaited *entry) {
    bool is_publish = entry->kind == COMMAND_PUBLISH || entry->kind == COMMAND_VISIT;
    bool is_acknowledged = entry->kind == COMMAND_COMPLETE || (is_publish && entry->qos > 0);
    return is_acknowledged && e->settings.wait_replicas > 0;
}

bool hmq_confirm_uses(const connection *c, uint16_t packet_id) {
    held_answer answer;
    for (size_t at = 0; at < c->held.len; at += sizeof answer + answer.entry.len) {
        memcpy(&answer, hmq_bytes_at(&c->held) + at, sizeof answer);
        if (answer.entry.packet_id == packet_id) return true;
    }
    return false;
}
