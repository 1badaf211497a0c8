/* crossing.c - keeps the order of each publisher whose publishes cross the nodes of a cluster.
 *
 *      advance     begins publishes of an undisturbed publisher, in their order, without waiting for replies
 *      resolve     of a disturbed one: once nothing is under way, completes the first publish, then the next.  These visits
 *                  have the word RETRY: a node that holds the publisher back after a refusal need do so no longer
 *
 * A retained message goes to the slot of its topic first, and to all others with its check after that was taken. */
#include "engine/crossing.h"
#include "engine/checks.h"
#include "engine/visits.h"

static void release(hmq_engine *e, crossing *x) {
    hmq_answer_release(e, x->by);
    hmq_bytes_free(&e->allocator, &x->left);
    hmq_bytes_free(&e->allocator, &x->sent);
    hmq_crossing_forget_unconfirmed(e, x);
    e->crossings--;
    e->crossing_bytes -= hmq_crossing_size(x);
    e->allocator.release(x);
}

/* Checked, and taken by all slots. */
static bool is_stored(const crossing *x) {
    return x->is_begun && x->is_checked && !x->is_checking && x->under_way == 0 && !x->writes_first && x->left.len == 0;
}

static bool is_complete(const crossing *x) {
    if (x->is_denied) return true;
    if (x->is_checking || x->under_way > 0) return false;
    return x->refusal != 0 || (is_stored(x) && x->unconfirmed.len == 0);
}

/* Answers the publishes that are complete, in the order of the line. */
static void settle(hmq_engine *e, connection *c) {
    lane *n = c->lane;
    while (c->phase == PHASE_OPEN && hmq_lane_count(n) > 0 && is_complete(hmq_lane_at(n, 0))) {
        crossing *x = hmq_lane_at(n, 0);
        const bool was_begun = n->begun > 0;
        const awaited entry = x->entry;
        const int64_t reached = x->reached;
        const uint8_t refusal = x->refusal;
        const bool is_dropped = x->is_dropped;
        n->bytes -= hmq_crossing_size(x);
        c->under_way_bytes -= hmq_crossing_size(x);
        hmq_bytes_drop(&n->line, sizeof(crossing *));
        n->first++;
        if (was_begun) n->begun--;
        release(e, x);
        if (!c->publishes.waits) c->publishes.pause_ms = 0;
        e->count.publishes_dropped_qos0 += is_dropped;
        if (refusal == 0) {
            hmq_publish_settle(e, c, &entry, reached);
        } else {
            hmq_publish_answer(e, c, &entry, refusal);
            if (TRACE_OF(entry.token) != 0) hmq_trace_answered(e, c, &entry, HMQ_TRACE_REFUSED);
            hmq_publish_finish(e, c);
        }
    }
}

static uint32_t retained_slot(const crossing *x, hmq_engine *e, bool *ok) {
    static const char suffix[] = "}_retained";
    const hmq_slice topic = hmq_crossing_topic(x);
    hmq_bytes *key = &e->scratch;
    hmq_bytes_clear(key);
    *ok = hmq_bytes_append(&e->allocator, key, "{", 1) && hmq_bytes_append(&e->allocator, key, topic.data, topic.len) &&
          hmq_bytes_append(&e->allocator, key, suffix, sizeof suffix - 1);
    return *ok ? hmq_slot_of((const char *)hmq_bytes_at(key), key->len) : 0;
}

/* Sends it for the first time, by its answer. */
static void begin(hmq_engine *e, connection *c, crossing *x, uint64_t number, bool has_own_answer) {
    x->is_begun = true;
    x->started_at = has_own_answer ? x->by->serial : e->answers;
    c->lane->begun++;
    if (x->writes_first) { /* the others follow */
        bool ok;
        const uint32_t slot = retained_slot(x, e, &ok);
        const slot_range range = {(uint16_t)slot, (uint16_t)slot};
        x->is_checked = false;
        if (!ok || !hmq_crossing_add_range(e, &x->sent, slot, slot))
            hmq_engine_no_memory(e, c);
        else
            hmq_visits_send(e, c, x, number, &range, 1);
        return;
    }
    hmq_visits_send_all(e, c, x, number);
    if (!x->is_checked) hmq_checks_add(e, c, x, number);
}

void hmq_crossing_continue_after_write(hmq_engine *e, connection *c, crossing *x, uint64_t number) {
    x->writes_first = false;
    if (!hmq_visits_add_missing(e, x, x->by, NULL)) hmq_engine_no_memory(e, c);
    hmq_visits_send_left(e, c, x, number);
    hmq_checks_add(e, c, x, number);
}

static bool has_enough_copies(const connection *c) {
    return (double)c->lane->under_way * (double)c->reach >= c->link->copies_most;
}

static void advance(hmq_engine *e, connection *c) {
    lane *n = c->lane;
    while (!n->is_disturbed && !c->publishes.waits && c->next == NULL && c->link->up && c->phase == PHASE_OPEN &&
           n->begun < hmq_lane_count(n)) {
        crossing *x = hmq_lane_at(n, n->begun);
        const uint64_t number = n->first + n->begun;
        if (x->is_denied) {
            x->started_at = e->answers;
            n->begun++;
            continue;
        }
        if (n->begun > 0 && hmq_lane_at(n, n->begun - 1)->writes_first) return;
        if (x->is_checking) return;
        const bool has_own_answer = x->by != NULL;
        route_answer *a = has_own_answer ? x->by : hmq_route_find(e, c->link, hmq_crossing_topic(x));
        if (a == NULL) {
            hmq_checks_add(e, c, x, number);
            return;
        }
        if (n->begun > 0 && (a->serial > hmq_lane_at(n, 0)->started_at || has_enough_copies(c))) return;
        if (!has_own_answer) a->uses++;
        x->by = a;
        begin(e, c, x, number, has_own_answer);
    }
}

/* The first publish is checked again now, so all publishes after it must be, too.  A session that has subscribed meanwhile may
 * get the first one, and must then get the later ones. */
static void doubt_behind(lane *n) {
    for (uint32_t i = 1; i < n->begun; i++) {
        crossing *x = hmq_lane_at(n, i);
        if (x->entry.qos > 0) x->is_checked = false;
    }
}

static void check_again(hmq_engine *e, connection *c) {
    doubt_behind(c->lane);
    hmq_checks_add(e, c, hmq_lane_at(c->lane, 0), c->lane->first);
}

/* Nothing is under way: completes the first publish. */
static void resolve(hmq_engine *e, connection *c) {
    lane *n = c->lane;
    if (n->under_way > 0 || c->publishes.waits || c->next != NULL || !c->link->up) return;
    if (n->repeats_any) {
        memset(n->repeats, 0, sizeof n->repeats);
        n->repeats_any = false;
    }
    n->waits_for_routes = false;
    if (n->begun == 0) {
        n->is_disturbed = false;
        advance(e, c);
        return;
    }
    crossing *x = hmq_lane_at(n, 0);
    if (x->needs_new_answer) {
        check_again(e, c);
        return;
    }
    if (is_stored(x)) return; /* its replicas are being asked */
    n->says_retry = true;
    if (x->writes_first && x->left.len == 0) {
        doubt_behind(n);
        hmq_crossing_continue_after_write(e, c, x, n->first);
        n->says_retry = false;
        return;
    }
    x->is_retry = true;
    hmq_visits_send_left(e, c, x, n->first);
    n->says_retry = false;
    if (!x->is_checked && !x->writes_first) check_again(e, c);
    if (n->under_way == 0)
        hmq_engine_schedule_wake(e, c); /* no link has its slots now, or they wait for replies to other publishes */
}

void hmq_crossing_proceed(hmq_engine *e, connection *c) {
    const lane *n = c->lane;
    uint64_t first;
    settle(e, c);
    do { /* a publish that is complete at once lets the next ones begin */
        first = n->first;
        if (c->phase != PHASE_OPEN) return;
        if (n->is_disturbed)
            resolve(e, c);
        else
            advance(e, c);
        settle(e, c);
    } while (n->first != first);
    if (c->next != NULL && c->lane->under_way == 0) hmq_engine_schedule_wake(e, c);
}

bool hmq_crossing_add(hmq_engine *e, connection *c, const awaited *entry, const uint8_t *command,
                      const hmq_mqtt_packet *p) {
    if (c->lane == NULL) {
        c->lane = e->allocator.alloc(sizeof *c->lane);
        if (c->lane == NULL) return false;
        *c->lane = (lane){0};
    }
    lane *n = c->lane;
    crossing *x = hmq_bytes_room(&e->allocator, &n->line, sizeof(crossing *)) == NULL
                      ? NULL
                      : e->allocator.alloc(sizeof *x + entry->len);
    if (x == NULL) return false;
    *x = (crossing){.entry = *entry, .is_denied = entry->kind == COMMAND_DENIED};
    if (!x->is_denied) {
        size_t end = 0;
        hmq_resp_item words, item;
        memcpy(x->command, command, entry->len);
        hmq_resp_next(x->command, entry->len, &end, &words);
        x->words = (uint32_t)words.number;
        x->head = (uint32_t)end;
        hmq_resp_next(x->command, entry->len, &end, &item);
        hmq_resp_next(x->command, entry->len, &end, &item);
        x->topic_at = (uint32_t)(item.text.data - x->command);
        x->topic_len = (uint16_t)item.text.len;
        hmq_resp_next(x->command, entry->len, &end, &item);
        x->payload_len = (uint32_t)item.text.len;
        x->writes_first = p->retain;
    }
    hmq_bytes_append(&e->allocator, &n->line, &x, sizeof(crossing *));
    n->bytes += hmq_crossing_size(x);
    c->under_way_bytes += hmq_crossing_size(x);
    e->crossings++;
    e->crossing_bytes += hmq_crossing_size(x);
    c->outstanding++;
    if (!n->is_disturbed) hmq_crossing_proceed(e, c);
    return true;
}

bool hmq_crossing_is_busy(const connection *c) {
    return c->lane != NULL && c->lane->under_way > 0;
}

size_t hmq_crossing_bytes(const connection *c) {
    return c->lane == NULL ? 0 : c->lane->bytes;
}

void hmq_crossing_changed_link(connection *c) {
    if (c->lane != NULL) c->lane->is_disturbed = true;
}

void hmq_crossing_wake(hmq_engine *e, connection *c) {
    if (c->lane != NULL && !c->publishes.waits) hmq_crossing_proceed(e, c);
}

void hmq_crossing_wake_all(hmq_engine *e) {
    e->routes_due = false;
    for (uint32_t i = 0; i < e->slot_count; i++) {
        connection *c = e->slots[i];
        if (c == NULL || c->lane == NULL || c->phase != PHASE_OPEN || !c->lane->is_disturbed) continue;
        if (c->publishes.waits) c->publishes.at_ms = e->now_ms;
        hmq_engine_schedule_wake(e, c);
    }
}

void hmq_engine_routes_fed(hmq_engine *e, uint32_t link) {
    for (uint32_t i = 0; i < e->slot_count; i++) {
        connection *c = e->slots[i];
        if (c == NULL || c->lane == NULL || c->phase != PHASE_OPEN || !c->lane->waits_for_routes) continue;
        if (c->lane->waits_for_link != link && c->link->number != link) continue;
        if (c->publishes.waits) c->publishes.at_ms = e->now_ms;
        hmq_engine_schedule_wake(e, c);
    }
}

bool hmq_crossing_uses(const connection *c, uint16_t packet_id) {
    if (c->lane == NULL) return false;
    for (uint32_t i = 0; i < hmq_lane_count(c->lane); i++)
        if (hmq_lane_at(c->lane, i)->entry.qos > 0 && hmq_lane_at(c->lane, i)->entry.packet_id == packet_id)
            return true;
    return false;
}

void hmq_crossing_forget(hmq_engine *e, connection *c) {
    if (c->lane == NULL) return;
    for (uint32_t i = 0; i < hmq_lane_count(c->lane); i++) release(e, hmq_lane_at(c->lane, i));
    hmq_bytes_free(&e->allocator, &c->lane->line);
    e->allocator.release(c->lane);
    c->lane = NULL;
}
