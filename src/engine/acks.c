/* acks.c - passes acknowledgements of clients to the server: SESSION.ACK and SESSION.RELEASE.
 *
 * Acknowledgements are collected until the flush and sent in one command.  No client waits for them, so they are sent after
 * the commands that clients wait for, such as fetches.  While any session is behind, a limited number is sent to the
 * server and the rest is collected further.  A session sends no second SESSION.ACK before the reply to its first: the
 * slower the server, the fewer commands it gets.  A release is sent by itself, because its PUBREL waits for it.  After a
 * loss of the server, a message is not acknowledged before it was compared with the server's.
 *
 * Releases wait for their replies in one line, in the order of the PUBRECs; those in the log come first.  After a refused
 * one all are sent again, so that the PUBRELs keep that order [MQTT-4.6.0-4].  The line survives a loss of the server: a
 * message that the server has released or removed needs no command, and leaves the line at its head. */
#include <stdio.h>

#include "engine/internal.h"

#define MOST_ACKS 500U      /* packet identifiers of one SESSION.ACK */
#define MOST_ACKING 4000U   /* packet identifiers in the log, while any session waits for a page */
#define MOST_ACK_WAIT_MS 100 /* never delay an acknowledgement longer than this because of that */

/* ---- to the server ---- */

uint8_t *hmq_outgoing_put_session(uint8_t *out, const connection *c, const char *name, size_t len, uint64_t arguments) {
    hmq_slice key = hmq_conn_key(c);
    out = hmq_resp_put_header(out, '*', arguments + 4);
    out = hmq_resp_put_text(out, name, len);
    out = hmq_resp_put_text(out, key.data, key.len);
    out = hmq_resp_put_text(out, "EPOCH", 5);
    return hmq_resp_put_number(out, c->epoch);
}

size_t hmq_outgoing_session_bytes(const connection *c) {
    return 160 + c->key_len;
}

bool hmq_outgoing_add(hmq_engine *e, connection *c, command_kind kind, uint16_t packet_id, const uint8_t *begin,
                      const uint8_t *end) {
    const awaited entry = {
        .conn = c->handle, .len = (uint32_t)(end - begin), .packet_id = packet_id, .kind = (uint8_t)kind};
    if (!hmq_log_add(e, c->link, &entry)) return false;
    c->asked++;
    return true;
}

/* The number of consecutive identifiers from `from` on, within the first `count`. */
static size_t run_of(const id_queue *queue, size_t from, size_t count) {
    size_t at = from + 1;
    while (at < count && id_at(queue, at) == id_at(queue, at - 1) + 1) at++;
    return at - from;
}

static size_t count_runs(const id_queue *queue, size_t count) {
    size_t runs = 0;
    for (size_t at = 0; at < count; at += run_of(queue, at, count)) runs++;
    return runs;
}

/* One identifier, or first-last. */
static uint8_t *put_run(uint8_t *out, uint16_t first, size_t length) {
    char text[12];
    if (length == 1) return hmq_resp_put_number(out, first);
    int len = snprintf(text, sizeof text, "%u-%zu", first, first + length - 1);
    return hmq_resp_put_text(out, text, (size_t)len);
}

/* Sends one command for the oldest.  False: no memory now. */
static bool send_some_acks(hmq_engine *e, connection *c) {
    size_t due = id_count(&c->acks_due), count = due < MOST_ACKS ? due : MOST_ACKS;
    if (hmq_bytes_room(&e->allocator, &c->acking.bytes, count * sizeof(uint16_t)) == NULL) return false;
    uint8_t *begin = hmq_log_room(e, c->link, hmq_outgoing_session_bytes(c) + count * 16), *out = begin;
    if (begin == NULL) return false;
    out = hmq_outgoing_put_session(out, c, "SESSION.ACK", 11, count_runs(&c->acks_due, count));
    for (size_t at = 0, length = 0; at < count; at += length) {
        length = run_of(&c->acks_due, at, count);
        out = put_run(out, id_at(&c->acks_due, at), length);
    }
    if (!hmq_outgoing_add(e, c, COMMAND_ACK, (uint16_t)count, begin, out)) return false;
    c->link->acking += (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        uint16_t packet_id = id_pop(&c->acks_due);
        hmq_inflight_set_state(&c->inflight, hmq_inflight_find(&c->inflight, packet_id), INFLIGHT_ACKING);
        hmq_id_push(e, c, &c->acking, packet_id);
    }
    if (count == due) hmq_bytes_free(&e->allocator, &c->acks_due.bytes);
    return true;
}

void hmq_outgoing_send_all_acks(hmq_engine *e, connection *c) {
    while (id_count(&c->acks_due) > 0 && send_some_acks(e, c)) continue;
}

bool hmq_outgoing_acks_are_due(const connection *c) {
    size_t due = id_count(&c->acks_due);
    return due > 0 && (id_count(&c->acking) == 0 || due >= MOST_ACKS);
}

void hmq_outgoing_schedule_acks(hmq_engine *e, connection *c) {
    if (!c->in_ack_queue) c->acks_since_ms = e->now_ms;
    hmq_engine_list_add(e, &c->link->ack_queue, c->handle, &c->in_ack_queue);
}

static bool acks_may_go(const hmq_engine *e, const connection *c) {
    int64_t waited_ms = e->now_ms - c->acks_since_ms;
    return c->link->behind == 0 || c->link->acking < MOST_ACKING || waited_ms >= MOST_ACK_WAIT_MS || waited_ms < 0;
}

/* Sends one command; a connection with more acknowledgements goes to the end of the line. */
static void take_turn(hmq_engine *e, connection *c) {
    if (!hmq_outgoing_may_send_commands(c) || id_count(&c->acks_due) == 0) return;
    if (!send_some_acks(e, c))
        hmq_engine_schedule_wake(e, c);
    else if (id_count(&c->acks_due) > 0)
        hmq_engine_list_add(e, &c->link->ack_queue, c->handle, &c->in_ack_queue);
}

void hmq_outgoing_flush_acks(hmq_engine *e, engine_link *l) {
    while (l->up && l->ack_queue.bytes.len > 0) {
        hmq_conn conn;
        memcpy(&conn, hmq_bytes_at(&l->ack_queue.bytes), sizeof conn);
        connection *c = hmq_engine_find(e, conn);
        if (c != NULL && c->link != l) c = NULL;
        if (c != NULL && !acks_may_go(e, c)) return;
        hmq_engine_list_pop(&l->ack_queue, &conn);
        if (c == NULL) continue;
        c->in_ack_queue = false;
        take_turn(e, c);
    }
}

void hmq_outgoing_ack_answered(hmq_engine *e, connection *c, uint16_t count, bool done) {
    for (; count > 0; count--) {
        inflight_entry *entry = hmq_inflight_find(&c->inflight, id_pop(&c->acking));
        if (done)
            hmq_inflight_remove(&e->allocator, &c->inflight, entry);
        else
            hmq_outgoing_ack_due(e, c, entry);
    }
    if (done && c->ready_count > 0) hmq_outgoing_send_ready(e, c); /* `places` are free */
    if (id_count(&c->acking) > 0) return;
    hmq_bytes_free(&e->allocator, &c->acking.bytes);
    if (id_count(&c->acks_due) > 0) hmq_engine_schedule_flush(e, c);
}

static bool send_release(hmq_engine *e, connection *c, uint16_t packet_id) {
    uint8_t *begin = hmq_log_room(e, c->link, hmq_outgoing_session_bytes(c) + 32);
    if (begin == NULL) return false;
    uint8_t *out = hmq_outgoing_put_session(begin, c, "SESSION.RELEASE", 15, 1);
    out = hmq_resp_put_number(out, packet_id);
    return hmq_outgoing_add(e, c, COMMAND_RELEASE, packet_id, begin, out);
}

static bool needs_no_release(const inflight_entry *entry) {
    return entry->gone || entry->released;
}

/* The server has released or removed the message: sends the PUBREL. */
static void is_released(hmq_engine *e, connection *c) {
    inflight_entry *entry = hmq_inflight_find(&c->inflight, id_pop(&c->releases));
    hmq_inflight_set_state(&c->inflight, entry, INFLIGHT_RELEASED);
    hmq_members_release(e, c, entry->packet_id);
}

void hmq_outgoing_finish_releases(hmq_engine *e, connection *c) {
    while (c->releases_under_way == 0 && id_count(&c->releases) > 0) {
        const inflight_entry *entry = hmq_inflight_find(&c->inflight, id_at(&c->releases, 0));
        if (entry->unchecked || !needs_no_release(entry)) return;
        is_released(e, c);
    }
}

void hmq_outgoing_send_releases(hmq_engine *e, connection *c) {
    if (c->releases_held) return; /* until all that are under way are answered */
    while (c->releases_under_way < id_count(&c->releases)) {
        uint16_t packet_id = id_at(&c->releases, c->releases_under_way);
        const inflight_entry *entry = hmq_inflight_find(&c->inflight, packet_id);
        if (entry->unchecked || needs_no_release(entry)) return; /* it leaves the line at its head */
        if (!send_release(e, c, packet_id)) {
            hmq_engine_schedule_wake(e, c);
            return;
        }
        c->releases_under_way++;
    }
}

void hmq_outgoing_release_answered(hmq_engine *e, connection *c, bool done) {
    c->releases_under_way--;
    if (!done) c->releases_held = true;
    if (!c->releases_held) is_released(e, c);
    if (c->releases_under_way == 0) c->releases_held = false;
    hmq_outgoing_finish_releases(e, c);
    if (id_count(&c->releases) == 0)
        hmq_bytes_free(&e->allocator, &c->releases.bytes);
    else
        hmq_engine_schedule_flush(e, c);
}

/* ---- what the client acknowledges ---- */

static void is_done(hmq_engine *e, connection *c, inflight_entry *entry) {
    e->count.messages_acknowledged++;
    if (c->traces != 0) hmq_trace_acknowledged(e, c, entry->serial);
    hmq_outgoing_ack_due(e, c, entry);
    if (hmq_client_of(c)->members != NULL)
        hmq_members_acknowledged(e, c);
    else if (c->ready_count > 0)
        hmq_outgoing_send_ready(e, c);
    if (c->behind) hmq_engine_schedule_flush(e, c);
}

/* Does the packet answer a message of the other QoS, or a message that needs another packet first?  A late answer, for a
 * message that is no longer in flight or has advanced, is not wrong: it is only counted. */
static bool is_wrong(const inflight_entry *entry, uint8_t right) {
    if (entry == NULL || entry->state == right) return false;
    bool in_release = entry->state == INFLIGHT_RELEASING || entry->state == INFLIGHT_RELEASED;
    return entry->state == INFLIGHT_SENT || entry->state == INFLIGHT_SENT2 || (in_release && right == INFLIGHT_SENT);
}

/* The message that the client means, and its session; NULL: there is none. */
static inflight_entry *find(const hmq_engine *e, connection **c, uint16_t wire_id) {
    uint16_t packet_id;
    *c = hmq_members_session(e, *c, wire_id, &packet_id);
    return packet_id == 0 ? NULL : hmq_inflight_find(&(*c)->inflight, packet_id);
}

/* PUBACK and PUBCOMP: each is valid in one state only. */
static int done_if(hmq_engine *e, connection *c, uint16_t packet_id, uint8_t state) {
    inflight_entry *entry = find(e, &c, packet_id);
    if (is_wrong(entry, state)) return HMQ_ENGINE_WRONG_ANSWER;
    if (entry != NULL && entry->state == state)
        is_done(e, c, entry);
    else
        e->count.acknowledgements_unknown++;
    return 0;
}

int hmq_outgoing_acknowledged(hmq_engine *e, connection *c, uint16_t packet_id) {
    return done_if(e, c, packet_id, INFLIGHT_SENT);
}

int hmq_outgoing_completed(hmq_engine *e, connection *c, uint16_t packet_id) {
    return done_if(e, c, packet_id, INFLIGHT_RELEASED);
}

/* The first PUBREC for a message. */
static void received_first(hmq_engine *e, connection *c, inflight_entry *entry, uint8_t reason) {
    if (reason >= 0x80) {
        is_done(e, c, entry);
    } else {
        if (c->traces != 0) hmq_trace_acknowledged(e, c, entry->serial);
        hmq_inflight_set_state(&c->inflight, entry, INFLIGHT_RELEASING);
        hmq_id_push(e, c, &c->releases, entry->packet_id);
        hmq_outgoing_finish_releases(e, c); /* a removed message needs no release: the exchange still ends */
        hmq_engine_schedule_flush(e, c);
    }
}

int hmq_outgoing_received(hmq_engine *e, connection *c, uint16_t packet_id, uint8_t reason) {
    inflight_entry *entry = find(e, &c, packet_id);
    if (is_wrong(entry, INFLIGHT_SENT2)) return HMQ_ENGINE_WRONG_ANSWER;
    switch (entry == NULL ? 0 : entry->state) {
    case INFLIGHT_SENT2: received_first(e, c, entry, reason); break;
    case INFLIGHT_RELEASING: break; /* its PUBREL follows */
    case INFLIGHT_RELEASED: hmq_client_answer(e, c, HMQ_MQTT_PUBREL, packet_id, 0); break;
    default:
        e->count.acknowledgements_unknown++;
        if (reason < 0x80) /* otherwise the client has ended the exchange itself */
            hmq_client_answer(e, c, HMQ_MQTT_PUBREL, packet_id, 0x92); /* packet identifier not found */
    }
    return 0;
}
