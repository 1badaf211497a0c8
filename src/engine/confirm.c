/* confirm.c - answers to publishes that are withheld until replicas have confirmed them: WAIT, once per turn.
 *
 *      server's input   PUBLISH of A | PUBLISH of B | WAIT 1 100 | PUBLISH of A
 *      its replies      :1             :1             :1           :1
 *                       held           held           both leave   held until the next WAIT
 *
 * WAIT blocks the connection in the server until that many replicas have all earlier writes of the connection, or
 * until its timeout.  So its reply settles all earlier answers.  Each link to the server has its own.
 *
 * Invariants
 *  1. With wait_replicas, no PUBACK, PUBREC or PUBCOMP leaves before a WAIT that follows its command was answered
 *     with that many replicas.
 *  2. While any answer is held, a WAIT is under way or due.  Only one is under way at a time on a link, because while replicas
 *     are missing, each one delays the connection for wait_timeout_ms.
 *  3. An answer, also a refusal, is sent after the earlier answers of its connection [MQTT-4.6.0-2].
 *  4. Commands whose answers are held when the server is lost are sent again, before all others of their connection.
 *
 * Memory: held commands count for max_client_outstanding, max_outstanding and max_outstanding_bytes. */
#include "engine/internal.h"

#define WAIT_BYTES 64U

/* ---- the command ---- */

bool hmq_confirm_is_due(const engine_link *l) {
    return l->up && l->wait_due && !l->wait_under_way;
}

void hmq_confirm_send_wait(hmq_engine *e, engine_link *l) {
    bool pauses = e->now_ms < l->wait_at_ms && l->wait_at_ms - e->now_ms <= e->settings.wait_timeout_ms;
    if (!hmq_confirm_is_due(l) || pauses) return;
    uint8_t *begin = hmq_log_room(e, l, WAIT_BYTES);
    if (begin == NULL) return; /* it stays due */
    uint8_t *out = hmq_resp_put_header(begin, '*', 3);
    out = hmq_resp_put_text(out, "WAIT", 4);
    out = hmq_resp_put_number(out, e->settings.wait_replicas);
    out = hmq_resp_put_number(out, e->settings.wait_timeout_ms);
    const awaited entry = {.len = (uint32_t)(out - begin), .kind = COMMAND_WAIT};
    if (!hmq_log_add(e, l, &entry)) return;
    l->wait_due = false;
    l->wait_under_way = true;
}

/* ---- what is held ---- */

bool hmq_confirm_hold(hmq_engine *e, connection *c, const hmq_slice *command, const held_answer *answer) {
    size_t bytes = sizeof *answer + command->len;
    hmq_engine_list_add(e, &c->link->unconfirmed, c->handle, &c->in_unconfirmed);
    if (!c->in_unconfirmed || hmq_bytes_room(&e->allocator, &c->held, bytes) == NULL) return false;
    hmq_bytes_append(&e->allocator, &c->held, answer, sizeof *answer);
    hmq_bytes_append(&e->allocator, &c->held, command->data, command->len);
    e->held++;
    c->link->held++;
    e->held_bytes += bytes;
    return true;
}

/* The first of them; the bytes of its command follow it. */
static held_answer first_held(const connection *c) {
    held_answer answer;
    memcpy(&answer, hmq_bytes_at(&c->held), sizeof answer);
    return answer;
}

static void drop_first(hmq_engine *e, connection *c, const held_answer *answer) {
    size_t bytes = sizeof *answer + answer->entry.len;
    hmq_bytes_drop(&c->held, bytes);
    hmq_assert(e->held > 0 && c->link->held > 0 && bytes <= e->held_bytes);
    e->held--;
    c->link->held--;
    e->held_bytes -= bytes;
}

void hmq_confirm_forget(hmq_engine *e, connection *c) {
    while (c->held.len > 0) {
        const held_answer answer = first_held(c);
        drop_first(e, c, &answer);
    }
    hmq_bytes_free(&e->allocator, &c->held);
}

static void settle(hmq_engine *e, connection *c) {
    while (c->held.len > 0 && c->phase == PHASE_OPEN) {
        const held_answer answer = first_held(c);
        drop_first(e, c, &answer);
        hmq_publish_settled(e, c, &answer);
    }
    hmq_confirm_forget(e, c);
}

static void settle_all(hmq_engine *e, engine_link *l) {
    hmq_conn conn;
    while (hmq_engine_list_pop(&l->unconfirmed, &conn)) {
        connection *c = hmq_engine_find(e, conn);
        if (c == NULL || c->link != l) continue;
        c->in_unconfirmed = false;
        settle(e, c);
    }
}

/* ---- the reply ---- */

static void report(hmq_engine *e, engine_link *l, bool is_unconfirmed, const hmq_resp_item *reply) {
    if (is_unconfirmed == l->unconfirmed_is_reported) return;
    bool is_error = is_unconfirmed && reply->type == '-';
    const hmq_engine_event event = {.kind = is_unconfirmed ? HMQ_EVENT_UNCONFIRMED : HMQ_EVENT_CONFIRMED,
                                    .link = l->number,
                                    .token = is_error ? 0 : (uint64_t)reply->number,
                                    .bytes = is_error ? reply->text : (hmq_slice){NULL, 0}};
    if (hmq_engine_raise(e, &event)) l->unconfirmed_is_reported = is_unconfirmed;
}

bool hmq_confirm_replied(hmq_engine *e, engine_link *l, const hmq_resp_item *reply) {
    bool is_confirmed = reply->type == ':' && reply->number >= (int64_t)e->settings.wait_replicas;
    l->wait_under_way = false;
    report(e, l, !is_confirmed, reply);
    if (is_confirmed) {
        settle_all(e, l);
        return true;
    }
    e->count.waits_unconfirmed++;
    l->wait_due = true;
    bool may_repeat_at_once = l->held > 0 && reply->type == ':'; /* an error is replied at once */
    if (!may_repeat_at_once) l->wait_at_ms = e->now_ms + e->settings.wait_timeout_ms;
    return false;
}

/* ---- the server is lost ---- */

bool hmq_confirm_return_held(hmq_engine *e, connection *c) {
    hmq_bytes line = {0};
    bool fits = hmq_bytes_room(&e->allocator, &line, c->held.len + c->again.len) != NULL;
    while (fits && c->held.len > 0) {
        held_answer answer = first_held(c);
        answer.entry.token |= 1;
        hmq_bytes_append(&e->allocator, &line, &answer.entry, sizeof answer.entry);
        hmq_bytes_append(&e->allocator, &line, hmq_bytes_at(&c->held) + sizeof answer, answer.entry.len);
        drop_first(e, c, &answer);
    }
    if (fits && c->again.len > 0) hmq_bytes_append(&e->allocator, &line, hmq_bytes_at(&c->again), c->again.len);
    if (!fits) return false;
    hmq_bytes_free(&e->allocator, &c->held);
    hmq_bytes_free(&e->allocator, &c->again);
    c->again = line;
    return true;
}

void hmq_confirm_lost(hmq_engine *e, engine_link *l) {
    hmq_conn conn;
    l->wait_due = l->wait_under_way = l->unconfirmed_is_reported = false;
    l->wait_at_ms = 0;
    while (hmq_engine_list_pop(&l->unconfirmed, &conn)) {
        connection *c = hmq_engine_find(e, conn);
        if (c == NULL || c->link != l) continue;
        c->in_unconfirmed = false;
        if (c->phase != PHASE_OPEN)
            hmq_confirm_forget(e, c);
        else if (c->held.len > 0 && !hmq_confirm_return_held(e, c))
            hmq_engine_no_memory(e, c);
    }
}
