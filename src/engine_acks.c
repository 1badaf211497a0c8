/* engine_acks.c - what clients acknowledge, and how the server is told: SESSION.ACK and SESSION.RELEASE.
 *
 * Acknowledgements gather until the flush and go out in one command; a release goes out by itself, because its PUBREL waits
 * for it.  Nothing goes out for a message that was not compared yet with what the server has since it was lost. */
#include "engine_internal.h"

#define MOST_ACKS 500U /* packet identifiers of one SESSION.ACK */

/* ---- to the server ---- */

/* The client has it for good (or never will): the server is to be told. */
void outgoing_ack_due(hmq_engine *e, connection *c, inflight_entry *entry) {
    if (entry->gone) {
        inflight_remove(&e->allocator, &c->inflight, entry);
        return;
    }
    inflight_set_state(&c->inflight, entry, INFLIGHT_ACK_DUE);
    if (entry->unchecked) return; /* when it was found again */
    id_push(e, &c->acks_due, entry->packet_id);
    engine_wants_flush(e, c);
}

uint8_t *outgoing_put_session(uint8_t *out, const connection *c, const char *name, size_t len, uint64_t arguments) {
    hmq_slice key = conn_key(c);
    out = hmq_resp_put_header(out, '*', arguments + 4);
    out = hmq_resp_put_text(out, name, len);
    out = hmq_resp_put_text(out, key.data, key.len);
    out = hmq_resp_put_text(out, "EPOCH", 5);
    return hmq_resp_put_number(out, c->epoch);
}

size_t outgoing_session_bytes(const connection *c) {
    return 160 + c->key_len;
}

bool outgoing_add(hmq_engine *e, const connection *c, command_kind kind, uint16_t packet_id, const uint8_t *begin,
                  const uint8_t *end) {
    const awaited entry = {
        .conn = c->handle, .len = (uint32_t)(end - begin), .packet_id = packet_id, .kind = (uint8_t)kind};
    return log_add(e, &entry);
}

void outgoing_send_acks(hmq_engine *e, connection *c) {
    while (id_count(&c->acks_due) > 0) {
        size_t count = id_count(&c->acks_due);
        if (count > MOST_ACKS) count = MOST_ACKS;
        uint8_t *begin = log_room(e, outgoing_session_bytes(c) + count * 16), *out = begin;
        if (begin == NULL) return;
        out = outgoing_put_session(out, c, "SESSION.ACK", 11, count);
        const uint8_t *ids = hmq_bytes_at(&c->acks_due.bytes);
        for (size_t i = 0; i < count; i++) {
            uint16_t packet_id;
            memcpy(&packet_id, ids + i * sizeof packet_id, sizeof packet_id);
            out = hmq_resp_put_number(out, packet_id);
        }
        if (!outgoing_add(e, c, COMMAND_ACK, (uint16_t)count, begin, out)) return;
        for (size_t i = 0; i < count; i++) {
            uint16_t packet_id = id_pop(&c->acks_due);
            inflight_entry *entry = inflight_find(&c->inflight, packet_id);
            if (entry != NULL) inflight_set_state(&c->inflight, entry, INFLIGHT_ACKING);
            id_push(e, &c->acking, packet_id);
        }
    }
    hmq_bytes_free(&e->allocator, &c->acks_due.bytes);
}

void outgoing_ack_answered(hmq_engine *e, connection *c, uint16_t count, bool done) {
    for (; count > 0 && id_count(&c->acking) > 0; count--) {
        inflight_entry *entry = inflight_find(&c->inflight, id_pop(&c->acking));
        if (entry == NULL || entry->state != INFLIGHT_ACKING) continue;
        if (done)
            inflight_remove(&e->allocator, &c->inflight, entry);
        else
            outgoing_ack_due(e, c, entry);
    }
    if (id_count(&c->acking) == 0) hmq_bytes_free(&e->allocator, &c->acking.bytes);
}

/* SESSION.RELEASE of everything that waits for it. */
void outgoing_send_releases(hmq_engine *e, connection *c) {
    while (id_count(&c->releases_due) > 0) {
        uint8_t *begin = log_room(e, outgoing_session_bytes(c) + 16);
        if (begin == NULL) return;
        uint16_t packet_id = id_pop(&c->releases_due);
        uint8_t *out = outgoing_put_session(begin, c, "SESSION.RELEASE", 15, 1);
        out = hmq_resp_put_number(out, packet_id);
        if (outgoing_add(e, c, COMMAND_RELEASE, packet_id, begin, out)) continue;
        id_push(e, &c->releases_due, packet_id);
        return;
    }
    hmq_bytes_free(&e->allocator, &c->releases_due.bytes);
}

void outgoing_release(hmq_engine *e, connection *c, uint16_t packet_id) {
    id_push(e, &c->releases_due, packet_id);
    engine_wants_flush(e, c);
}

void outgoing_release_answered(hmq_engine *e, connection *c, uint16_t packet_id, bool done) {
    inflight_entry *entry = inflight_find(&c->inflight, packet_id);
    if (entry == NULL || entry->state != INFLIGHT_RELEASING) return;
    if (!done) { /* refused for now */
        outgoing_release(e, c, packet_id);
        return;
    }
    inflight_set_state(&c->inflight, entry, INFLIGHT_RELEASED);
    client_answer(e, c, HMQ_MQTT_PUBREL, packet_id, 0);
}

/* ---- what the client acknowledges ---- */

static inflight_entry *known(hmq_engine *e, connection *c, uint16_t packet_id) {
    inflight_entry *entry = inflight_find(&c->inflight, packet_id);
    if (entry != NULL && inflight_is_unacknowledged(entry->state)) return entry;
    e->count.acknowledgements_unknown++;
    return NULL;
}

static void is_done(hmq_engine *e, connection *c, inflight_entry *entry) {
    e->count.messages_acknowledged++;
    outgoing_ack_due(e, c, entry);
    if (c->ready_count > 0) outgoing_send_ready(e, c);
    if (c->behind) engine_wants_flush(e, c);
}

void outgoing_acknowledged(hmq_engine *e, connection *c, uint16_t packet_id) {
    inflight_entry *entry = known(e, c, packet_id);
    if (entry != NULL && entry->state == INFLIGHT_SENT) is_done(e, c, entry);
}

void outgoing_received(hmq_engine *e, connection *c, uint16_t packet_id, uint8_t reason) {
    inflight_entry *entry = inflight_find(&c->inflight, packet_id);
    if (entry == NULL || !inflight_is_unacknowledged(entry->state)) {
        e->count.acknowledgements_unknown++;
        client_answer(e, c, HMQ_MQTT_PUBREL, packet_id, 0x92); /* packet identifier not found */
    } else if (entry->state == INFLIGHT_RELEASED) {
        client_answer(e, c, HMQ_MQTT_PUBREL, packet_id, 0);
    } else if (reason >= 0x80) {
        is_done(e, c, entry);
    } else if (entry->state == INFLIGHT_SENT2 && entry->gone) { /* nothing to release: the exchange still ends well */
        inflight_set_state(&c->inflight, entry, INFLIGHT_RELEASED);
        client_answer(e, c, HMQ_MQTT_PUBREL, packet_id, 0);
    } else if (entry->state == INFLIGHT_SENT2) {
        inflight_set_state(&c->inflight, entry, INFLIGHT_RELEASING);
        if (!entry->unchecked) outgoing_release(e, c, packet_id); /* else when it was found again */
    }
}

void outgoing_completed(hmq_engine *e, connection *c, uint16_t packet_id) {
    inflight_entry *entry = known(e, c, packet_id);
    if (entry != NULL && entry->state == INFLIGHT_RELEASED) is_done(e, c, entry);
}
