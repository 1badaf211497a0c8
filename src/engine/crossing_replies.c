/* crossing_replies.c - takes the replies to visits and checks of publishes that cross nodes, their refusals and losses. */
#include "engine/crossing_replies.h"
#include "engine/blocked.h"
#include "engine/checks.h"
#include "engine/crossing.h"
#include "engine/crossing_confirm.h"
#include "engine/visits.h"

#define MISSING_AGAIN_MS 1000

/* ---- refusals ---- */

/* At most once per second for each link and node. */
static void report_missing(hmq_engine *e, connection *c, const engine_link *l, uint8_t code, const route_answer *a) {
    const uint8_t *node = a == NULL ? l->id : a->node;
    const size_t len = a == NULL ? l->id_len : a->node_len;
    const hmq_hash_seed seed = {l->number, code};
    const uint64_t what = hmq_hash_text(&seed, (const char *)node, len);
    struct missing *last = &e->missing[what % (sizeof e->missing / sizeof e->missing[0])];
    c->lane->waits_for_routes = true;
    c->lane->waits_for_link = l->number;
    const int64_t since_ms = e->now_ms - last->at_ms;
    if (last->at_ms != 0 && since_ms >= 0 && since_ms < MISSING_AGAIN_MS) return;
    const hmq_engine_event event = {.kind = HMQ_EVENT_ROUTES_MISSING,
                                    .code = code,
                                    .link = l->number,
                                    .token = a == NULL ? 0 : (uint64_t)a->n,
                                    .bytes = {node, len}};
    if (hmq_engine_raise(e, &event)) *last = (struct missing){what, e->now_ms};
}

/* It gets no further: the client gets its reason, or is disconnected. */
static void give_up(hmq_engine *e, connection *c, crossing *x, hmq_slice error) {
    e->count.publishes_refused++;
    if (c->version != 5 || x->entry.qos == 0) {
        hmq_publish_failed(e, c, error);
        return;
    }
    x->refusal = hmq_refusal_reason(error);
    hmq_bytes_free(&e->allocator, &x->left);
}

static void mark_dropped(crossing *x) {
    x->is_dropped = true;
}

/* A visit or a check was refused as a whole. */
static void handle_refusal(hmq_engine *e, connection *c, crossing *x, hmq_slice error) {
    e->count.refusals[hmq_refusal_index(error)]++;
    if (hmq_session_is_gone(error)) {
        hmq_publish_failed(e, c, error);
        return;
    }
    hmq_lane_disturb(e, c);
    const bool is_at_once = c->version == 5 && x->entry.qos > 0 && hmq_refusal_is_answered_at_once(error);
    if (!hmq_refusal_is_temporary(e, error) || is_at_once || hmq_refusal_lasts_too_long(e, &c->publishes))
        give_up(e, c, x, error);
    else
        hmq_refusal_pause(e, c, &c->publishes, error);
}

/* ---- replies to checks ---- */

/* The check of a publish of QoS 0 was refused: it has gone where it could go, or goes nowhere. */
static void end_unchecked(crossing *x) {
    x->is_checked = true;
    x->is_begun = true;
    x->writes_first = x->writes_first && x->under_way > 0;
    if (x->under_way == 0) mark_dropped(x);
}

static void check_refused(hmq_engine *e, connection *c, crossing *x, hmq_slice error) {
    if (hmq_error_begins(error, "NOROUTES")) report_missing(e, c, c->link, 0, NULL);
    if (x->entry.qos == 0 && hmq_refusal_is_temporary(e, error)) {
        e->count.refusals[hmq_refusal_index(error)]++;
        if (!x->is_begun) { /* it is the next one to begin */
            c->lane->begun++;
            x->started_at = e->answers;
            mark_dropped(x);
        }
        end_unchecked(x);
        return;
    }
    handle_refusal(e, c, x, error);
}

/* The node has another set of slots, or the first one. */
static void take_answer(hmq_engine *e, connection *c, crossing *x, route_answer *now) {
    const bool is_first = x->by == NULL;
    route_answer *former = x->by;
    e->count.routes_asked += is_first;
    e->count.routes_changed += !is_first;
    x->by = now;
    x->is_checked = true;
    x->needs_new_answer = false;
    if (is_first) return;
    if (x->writes_first) { /* it goes to the first slot by the new route_answer */
        x->is_checked = false;
        hmq_answer_release(e, former);
        return;
    }
    const bool had_left = x->left.len > 0;
    bool fits = hmq_visits_add_missing(e, x, now, former);
    for (uint32_t i = 0; fits && i < former->range_count; i++)
        fits = hmq_crossing_add_range(e, &x->sent, former->ranges[i].first, former->ranges[i].last);
    hmq_answer_release(e, former);
    if (!fits) hmq_engine_no_memory(e, c);
    if (!had_left && x->left.len > 0) hmq_lane_disturb(e, c);
}

/* Takes the reply for the oldest publish that is checked.  False: it is not a valid reply. */
static bool publish_checked(hmq_engine *e, engine_link *l, const route_home *home, hmq_slice reply) {
    connection *c;
    uint64_t number;
    size_t from = 0;
    hmq_resp_item item;
    crossing *x = hmq_checks_find(e, &l->asked, 0, &c, &number);
    hmq_bytes_drop(&l->asked, sizeof(check_due));
    if (!hmq_resp_next(reply.data, reply.len, &from, &item)) return false;
    if (x == NULL) return true;
    x->is_checking = false;
    c->lane->under_way--;
    if (item.type == '-' || item.type == '!') {
        check_refused(e, c, x, item.text);
    } else if (item.type == '+') {
        if (x->by == NULL) return false;
        x->is_checked = true;
        e->count.routes_checked++;
    } else if (item.type == '*' && item.number == 2 && home != NULL) {
        route_answer *now = hmq_route_learn(e, l, home, hmq_crossing_topic(x), reply, &from);
        if (now == NULL) return false;
        take_answer(e, c, x, now);
    } else {
        return false;
    }
    hmq_crossing_proceed(e, c);
    return true;
}

/* Takes the reply to the oldest check, for all publishes that share it. */
static bool check_replied(hmq_engine *e, engine_link *l, const route_home *home, hmq_slice reply) {
    e->count.replies_received++;
    do {
        if (!publish_checked(e, l, home, reply)) return false;
    } while (hmq_checks_share(&l->asked));
    return true;
}

static bool checks_replied(hmq_engine *e, engine_link *l, uint64_t count, hmq_slice reply) {
    size_t from = 0;
    hmq_resp_item head, node, n, list;
    if (!hmq_resp_next(reply.data, reply.len, &from, &head)) return false;
    if (head.type == '-' || head.type == '!') {
        for (; count > 0; count--)
            if (!check_replied(e, l, NULL, reply)) return false;
        return true;
    }
    if (head.type != '*' || head.number != 3 || !hmq_resp_next(reply.data, reply.len, &from, &node) ||
        node.type != '$' || node.text.len == 0 || node.text.len > HMQ_NODE_ID_BYTES ||
        !hmq_resp_next(reply.data, reply.len, &from, &n) || n.type != ':' || n.number < 1 ||
        !hmq_resp_next(reply.data, reply.len, &from, &list) || list.type != '*' || (uint64_t)list.number != count)
        return false;
    const route_home home = {node.text, n.number};
    for (; count > 0; count--) {
        const int64_t size = hmq_resp_measure(reply.data + from, reply.len - from);
        if (size <= 0 || !check_replied(e, l, &home, (hmq_slice){reply.data + from, (size_t)size})) return false;
        from += (size_t)size;
    }
    return true;
}

/* ---- replies to visits ---- */

/* Nothing of the visit was stored. */
static void visit_refused(hmq_engine *e, connection *c, crossing *x, engine_link *l, hmq_slice error) {
    const hmq_slice command = hmq_log_head_command(l);
    /* A node that was replaced is never known again: its answer is over, too. */
    const bool is_replaced = hmq_error_begins(error, "NOHOME") && !hmq_answer_is_current(c->link, x->by);
    const bool is_over = hmq_error_begins(error, "STALEHOME") || is_replaced;
    const bool is_unknown = hmq_error_begins(error, "NOHOME") && !is_replaced;
    if (is_over || is_unknown || (hmq_refusal_is_temporary(e, error) && x->entry.qos > 0 && x->refusal == 0))
        hmq_visits_leave(e, c, x, is_over || is_unknown ? l : NULL, command);
    if (is_unknown) {
        report_missing(e, c, l, 1, x->by);
        x->is_checked = false;
    }
    if (is_over) {
        x->needs_new_answer = true;
        x->is_checked = false;
        if (hmq_answer_is_current(c->link, x->by)) hmq_route_forget(e, c->link);
    }
    if (!is_over && !is_unknown) {
        c->lane->repeats[l->number / 64] |= 1ULL << (l->number % 64);
        c->lane->repeats_any = true;
    }
    if (x->entry.qos == 0 && hmq_refusal_is_temporary(e, error)) {
        e->count.refusals[hmq_refusal_index(error)]++;
        mark_dropped(x);
        x->is_checked = x->is_checked || !x->is_checking;
        x->needs_new_answer = false;
        x->writes_first = false;
        return;
    }
    if (x->refusal == 0) handle_refusal(e, c, x, error);
}

/* Reads one range that did not take the publish, and the reason.  False: it is not a valid reply. */
static bool next_refused_range(hmq_slice reply, size_t *from, slot_range *range, hmq_slice *reason) {
    hmq_resp_item head, first, last, text;
    if (!hmq_resp_next(reply.data, reply.len, from, &head) || head.type != '*' || head.number != 3 ||
        !hmq_resp_next(reply.data, reply.len, from, &first) || first.type != ':' ||
        !hmq_resp_next(reply.data, reply.len, from, &last) || last.type != ':' ||
        !hmq_resp_next(reply.data, reply.len, from, &text) || (text.type != '$' && text.type != '+') ||
        first.number < 0 || last.number < first.number || last.number >= HMQ_SLOTS)
        return false;
    *range = (slot_range){(uint16_t)first.number, (uint16_t)last.number};
    *reason = text.text;
    return true;
}

static void slots_refused(hmq_engine *e, connection *c, crossing *x, engine_link *l, slot_range range,
                          hmq_slice reason) {
    const bool is_moved = hmq_error_begins(reason, "MOVED");
    for (uint32_t slot = range.first; slot <= range.last; slot++) {
        const bool is_news = hmq_blocked_add(e, l, slot);
        if (!is_news || !is_moved) continue;
        const hmq_engine_event event = {
            .kind = HMQ_EVENT_SLOT_MOVED, .link = l->number, .token = slot, .bytes = reason};
        hmq_engine_raise(e, &event);
    }
    e->count.refusals[hmq_refusal_index(reason)]++;
    if (hmq_error_begins(reason, "FENCED")) {
        hmq_publish_failed(e, c, reason);
        return;
    }
    if (x->entry.qos == 0) {
        mark_dropped(x);
        return;
    }
    if (x->refusal != 0) return;
    hmq_lane_disturb(e, c);
    if (!hmq_crossing_add_range(e, &x->left, range.first, range.last))
        hmq_engine_no_memory(e, c);
    else if (hmq_refusal_lasts_too_long(e, &c->publishes))
        give_up(e, c, x, reason);
    else if (is_moved)
        hmq_refusal_wait(e, c, &c->publishes, reason); /* SLOT_MOVED tells it */
    else if (x->is_retry || !hmq_error_begins(reason, "REFUSED"))
        hmq_refusal_pause(e, c, &c->publishes, reason);
}

/* *complete: the reply is a valid one. */
static bool visit_taken(hmq_engine *e, connection *c, crossing *x, engine_link *l, hmq_slice reply) {
    size_t from = 0;
    hmq_resp_item head, reached, list;
    if (!hmq_resp_next(reply.data, reply.len, &from, &head) || head.number != 2 ||
        !hmq_resp_next(reply.data, reply.len, &from, &reached) || reached.type != ':' ||
        !hmq_resp_next(reply.data, reply.len, &from, &list) || list.type != '*')
        return false;
    x->reached += reached.number > 0 ? reached.number : 0;
    for (int64_t i = 0; i < list.number; i++) {
        slot_range range;
        hmq_slice reason;
        if (!next_refused_range(reply, &from, &range, &reason)) return false;
        if (c->phase == PHASE_OPEN) slots_refused(e, c, x, l, range, reason);
    }
    const lane *n = c->lane;
    if (list.number == 0 && n->repeats_any && x->entry.qos == 1 &&
        (n->repeats[l->number / 64] >> (l->number % 64) & 1) != 0)
        hmq_visits_leave(e, c, x, NULL, hmq_log_head_command(l));
    hmq_crossing_taken(e, c, x, l, reply);
    return true;
}

/* Handles the reply to the visit at the head, and drops it. */
static bool visit_replied(hmq_engine *e, engine_link *l, hmq_slice reply) {
    const awaited entry = *hmq_log_head(l);
    connection *c = hmq_engine_find(e, entry.conn);
    crossing *x = c == NULL || c->phase != PHASE_OPEN ? NULL : hmq_lane_find(c, entry.token);
    const bool is_error = reply.data[0] == '-' || reply.data[0] == '!';
    bool is_right = is_error || reply.data[0] == '*';
    e->count.replies_received++;
    l->visits_answered++;
    if (x != NULL && is_right) {
        hmq_resp_item error = {0};
        size_t from = 0;
        x->under_way--;
        c->lane->under_way--;
        if (is_error && hmq_resp_next(reply.data, reply.len, &from, &error))
            visit_refused(e, c, x, l, error.text);
        else
            is_right = visit_taken(e, c, x, l, reply);
        if (is_right && c->phase == PHASE_OPEN && x->writes_first && x->is_begun && x->under_way == 0 &&
            x->left.len == 0 && !c->lane->is_disturbed)
            hmq_crossing_continue_after_write(e, c, x, entry.token);
    }
    hmq_log_drop_head(e, l);
    if (x != NULL && is_right) hmq_crossing_proceed(e, c);
    return is_right;
}

bool hmq_crossing_replied(hmq_engine *e, engine_link *l, hmq_slice reply) {
    const awaited entry = *hmq_log_head(l);
    if (entry.kind == COMMAND_VISIT) return visit_replied(e, l, reply);
    e->count.replies_received++;
    if (entry.kind == COMMAND_RESUME) {
        hmq_log_drop_head(e, l);
        return reply.data[0] == '+' || reply.data[0] == '-';
    }
    hmq_log_drop_head(e, l);
    return checks_replied(e, l, entry.token, reply);
}

/* The server does not know TOPIC.PIPELINE, or the user may not call it: nothing was sent. */
static bool lacks_pipeline(hmq_slice error) {
    return hmq_error_begins(error, "ERR unknown command") || hmq_error_begins(error, "NOPERM");
}

/* The visit at the head was certainly not executed. */
static void return_unexecuted_visit(hmq_engine *e, engine_link *l) {
    const awaited entry = *hmq_log_head(l);
    connection *c = hmq_engine_find(e, entry.conn);
    crossing *x = c == NULL || c->phase != PHASE_OPEN ? NULL : hmq_lane_find(c, entry.token);
    e->count.replies_received++;
    l->visits_answered++;
    if (x != NULL) {
        x->under_way--;
        c->lane->under_way--;
        hmq_visits_return(e, c, x, hmq_log_head_command(l));
    }
    hmq_log_drop_head(e, l);
}

bool hmq_crossing_batch_replied(hmq_engine *e, engine_link *l, hmq_slice reply) {
    uint16_t count = hmq_log_head(l)->batch;
    size_t from = 0;
    hmq_resp_item head;
    if (!hmq_resp_next(reply.data, reply.len, &from, &head)) return false;
    if (head.type == '-' || head.type == '!') {
        const bool is_unknown = lacks_pipeline(head.text);
        l->unpipelined |= is_unknown;
        for (; count > 0; count--) {
            if (is_unknown)
                return_unexecuted_visit(e, l);
            else if (!visit_replied(e, l, reply))
                return false;
        }
        return true;
    }
    if (head.type != '*' || head.number != count) return false;
    for (; count > 0; count--) {
        const int64_t size = hmq_resp_measure(reply.data + from, reply.len - from);
        if (size <= 0 || !visit_replied(e, l, (hmq_slice){reply.data + from, (size_t)size})) return false;
        from += (size_t)size;
    }
    return true;
}

/* ---- losses ---- */

static void visit_lost(hmq_engine *e, engine_link *l, const awaited *entry, const uint8_t *bytes, bool is_written) {
    if (entry->kind != COMMAND_VISIT) return;
    connection *c = hmq_engine_find(e, entry->conn);
    crossing *x = c == NULL || c->phase != PHASE_OPEN ? NULL : hmq_lane_find(c, entry->token);
    l->visits_answered++;
    if (x == NULL) return;
    x->under_way--;
    c->lane->under_way--;
    if (is_written && x->entry.qos == 0) {
        x->is_dropped = true;
        x->writes_first = false;
        hmq_lane_disturb(e, c);
    } else {
        x->losses += is_written;
        hmq_visits_return(e, c, x, (hmq_slice){bytes, entry->len});
    }
    if (x->losses < HMQ_PUBLISH_ATTEMPTS || x->refusal != 0) return;
    static const char text[] = "QUOTA the connection to the server broke each time a publish was sent";
    e->count.publishes_abandoned++;
    hmq_engine_raise(e, &(hmq_engine_event){.kind = HMQ_EVENT_ABANDONED,
                                            .conn = c->handle,
                                            .token = x->payload_len,
                                            .bytes = hmq_crossing_topic(x)});
    give_up(e, c, x, (hmq_slice){(const uint8_t *)text, sizeof text - 1});
}

void hmq_crossing_lost(hmq_engine *e, engine_link *l) {
    hmq_crossing_unconfirmed_lost(e, l);
    hmq_log_each(e, l, visit_lost);
    hmq_checks_lost(e, &l->asked);
    hmq_checks_lost(e, &l->checks);
    hmq_blocked_clear(e, l); /* the next connection has refused nothing */
}
