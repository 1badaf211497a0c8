/* links.c - the links to servers: what is handed out on one, its loss and return, and sessions that move to another.
 *
 *      hmq_engine_move ──► `next` is set: nothing new of the session enters the log
 *                          its commands in the log are answered, or the link is lost
 *                          link = next; from here on as after a loss of the server, and its return
 *
 * A session's queue moves with its slot, and the pushes that follow come from another server.  So after a move the queue is
 * walked from its beginning, and messages that the client has are compared (engine/queue.c).
 *
 * Invariants
 *  1. A command of a session is sent on the next link only after all before it were answered on the former one, or that
 *     link was lost: messages cannot overtake each other on two links.
 *  2. The loss of a link changes nothing for connections of other links.
 *
 * O(connections): the loss and the return of a link. */
#include "engine/internal.h"
#include "engine/checks.h"
#include "engine/crossing.h"
#include "engine/crossing_replies.h"

/* What was sent of the connection will get no reply: its commands are in `again` now. */
static void begin_anew(hmq_engine *e, connection *c) {
    c->under_way = c->asked = 0;
    c->under_way_bytes = hmq_crossing_bytes(c);
    c->publishes.waits = c->queue.waits = false;
    c->publishes.most = 0;
    hmq_outgoing_server_lost(e, c);
}

static void continue_on_link(hmq_engine *e, connection *c) {
    c->publishes.pause_ms = c->queue.pause_ms = 0;
    hmq_log_send_again(e, c);
    if (c->lane != NULL) hmq_engine_schedule_wake(e, c);
    hmq_engine_schedule_flush(e, c);
    hmq_engine_resume_reading(e, c);
}

/* ---- moving ---- */

bool hmq_link_switch(hmq_engine *e, connection *c) {
    if (c->under_way > 0 || c->asked > 0 || hmq_crossing_is_busy(c)) return false;
    if (c->held.len > 0 && !hmq_confirm_return_held(e, c)) {
        hmq_engine_no_memory(e, c);
        return false;
    }
    hmq_outgoing_set_behind(c, false);
    c->link = c->next;
    c->next = NULL;
    hmq_crossing_changed_link(c);
    c->in_unconfirmed = false; /* it is in the former link's line, if in any */
    begin_anew(e, c);
    if (c->link->up) continue_on_link(e, c);
    return true;
}

bool hmq_engine_move(hmq_engine *e, hmq_conn conn, uint32_t link) {
    connection *c = hmq_engine_find(e, conn);
    engine_link *l = hmq_engine_link(e, link);
    if (c == NULL || l == NULL || c->phase != PHASE_OPEN) return false;
    if (c->link == l && c->next == NULL) return true;
    c->next = l;
    hmq_engine_schedule_wake(e, c);
    return true;
}

uint32_t hmq_engine_link_of(const hmq_engine *e, hmq_conn conn) {
    const connection *c = hmq_engine_find(e, conn);
    return c == NULL ? 0 : c->next != NULL ? c->next->number : c->link->number;
}

/* ---- loss and return ---- */

void hmq_engine_server_lost(hmq_engine *e, uint32_t link) {
    engine_link *l = hmq_engine_link(e, link);
    if (l == NULL) return;
    l->up = l->broken = l->unpacked = l->unpipelined = false; /* the next server may be newer */
    hmq_confirm_lost(e, l);
    hmq_crossing_lost(e, l);
    hmq_log_lost(e, l);
    hmq_bytes_free(&e->allocator, &l->incoming);
    l->measured = (hmq_resp_progress){0};
    fetch_line *lines[] = {&l->pages, &l->large};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        hmq_bytes_clear(&lines[i]->waiting.bytes);
        lines[i]->under_way = 0;
        lines[i]->bytes = 0;
    }
    hmq_bytes_clear(&l->ack_queue.bytes);
    l->acking = 0;
    l->fetch_limit = 1; /* pages above the server's limit for unread output may be the reason */
    for (uint32_t i = 0; i < e->slot_count; i++) {
        connection *c = e->slots[i];
        if (c == NULL || c->phase != PHASE_OPEN || c->link != l) continue;
        begin_anew(e, c);
        if (c->next != NULL) hmq_link_switch(e, c);
    }
}

void hmq_engine_server_restored(hmq_engine *e, uint32_t link, int64_t now_ms) {
    engine_link *l = hmq_engine_link(e, link);
    if (l == NULL) return;
    l->up = true;
    e->now_ms = now_ms;
    e->routes_due |= e->settings.cluster != 0;
    for (uint32_t i = 0; i < e->slot_count; i++) {
        connection *c = e->slots[i];
        if (c != NULL && c->phase == PHASE_OPEN && c->link == l) continue_on_link(e, c);
    }
}

/* ---- output ---- */

size_t hmq_engine_link_outstanding(const hmq_engine *e, uint32_t link) {
    const engine_link *l = hmq_engine_link(e, link);
    return l == NULL ? 0 : hmq_log_count(l) + l->held;
}

hmq_slice hmq_engine_server_output(hmq_engine *e, uint32_t link) {
    engine_link *l = hmq_engine_link(e, link);
    if (l == NULL) return (hmq_slice){NULL, 0};
    if (l->checks.len > 0) hmq_checks_send(e, l);
    hmq_log_seal(e, l, 0);
    hmq_confirm_send_wait(e, l);
    if (l->unwritten == 0) return (hmq_slice){NULL, 0};
    if (e->traces != NULL) hmq_trace_commands_handed_out(e, l);
    return (hmq_slice){hmq_bytes_at(&l->log) + (l->log.len - l->unwritten), l->unwritten};
}
