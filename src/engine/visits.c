/* visits.c - sends a publish to the nodes of its slots, and finds the slots that it has still to be sent to.
 *
 * A visit is one TOPIC.PUBLISH with SLOTS and HOME to one node.  If all links are up and no slot is blocked or moving, the
 * ends of its commands come from the answer's plan (engine/routes.c).  Otherwise each slot is looked at. */
#include "engine/visits.h"
#include "engine/blocked.h"

static void set_ranges(hmq_slot_set *set, const slot_range *ranges, size_t count) {
    for (size_t i = 0; i < count; i++) hmq_slot_set_add(set, ranges[i].first, ranges[i].last);
}

bool hmq_visits_add_missing(hmq_engine *e, crossing *x, const route_answer *now, const route_answer *former) {
    hmq_slot_set had = {{0}};
    size_t count;
    const slot_range *sent = hmq_crossing_ranges(&x->sent, &count);
    set_ranges(&had, sent, count);
    if (former != NULL) set_ranges(&had, former->ranges, former->range_count);
    for (uint32_t i = 0; i < now->range_count; i++) {
        for (uint32_t slot = now->ranges[i].first; slot <= now->ranges[i].last; slot++) {
            if (!hmq_slot_set_has(&had, slot) && !hmq_crossing_add_range(e, &x->left, slot, slot)) return false;
        }
    }
    return true;
}

static bool put_visit(hmq_engine *e, connection *c, crossing *x, uint64_t number, engine_link *l, uint8_t *begin,
                      uint8_t *out) {
    const awaited entry = {
        .conn = c->handle, .token = number, .len = (uint32_t)(out - begin), .kind = COMMAND_VISIT, .qos = x->entry.qos};
    if (!hmq_log_add(e, l, &entry)) return false;
    x->under_way++;
    c->lane->under_way++;
    l->visits_put++;
    e->count.visits_sent++;
    return true;
}

#define RETRY "RETRY"
#define RETRY_LEN (sizeof RETRY - 1)
#define HEAD_BYTES 32 /* the number of words, and RETRY */

/* The words of the client's publish, `more` of others follow. */
static uint8_t *put_words(uint8_t *out, const lane *n, const crossing *x, uint32_t more) {
    const bool says_retry = n->says_retry && x->entry.qos > 0;
    out = hmq_resp_put_header(out, '*', x->words + says_retry + more);
    memcpy(out, x->command + x->head, x->entry.len - x->head);
    out += x->entry.len - x->head;
    return says_retry ? hmq_resp_put_text(out, RETRY, RETRY_LEN) : out;
}

typedef struct sending {
    connection *c;
    crossing *x;
    uint64_t number;
    bool lacks_memory;
} sending;

/* May these slots be sent to on this link now?  0: yes; 1: later; 2: no link has them. */
static int state_of(hmq_engine *e, const engine_link *l, uint32_t slot) {
    if (l == NULL || !l->up) return 2;
    if (hmq_blocked_is_pending(l, slot)) return 1;
    return hmq_route_is_leaving(e, slot) ? 1 : 0;
}

/* Sends the slots that may be sent to; the others stay `left`. */
static bool send_slots(hmq_engine *e, void *context, uint32_t link, const slot_range *ranges, size_t count) {
    sending *s = context;
    engine_link *l = hmq_engine_link(e, link);
    slot_range ready[1024];
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t slot = ranges[i].first; slot <= ranges[i].last; slot++) {
            const int state = state_of(e, l, slot);
            if (state == 0) {
                if (used > 0 && ready[used - 1].last + 1U == slot)
                    ready[used - 1].last++;
                else
                    ready[used++] = (slot_range){(uint16_t)slot, (uint16_t)slot};
            } else if (state == 2 && s->x->entry.qos == 0) {
                s->x->is_dropped = true;
            } else if (!hmq_crossing_add_range(e, &s->x->left, slot, slot)) {
                s->lacks_memory = true;
            }
        }
    }
    if (used == 0) return true;
    uint32_t more;
    uint8_t *begin = hmq_blocked_resume(e, l, ready, used)
                         ? hmq_log_room(e, l, s->x->entry.len + HEAD_BYTES + hmq_route_tail_bytes(used))
                         : NULL;
    if (begin == NULL) {
        s->lacks_memory = true;
        return true;
    }
    /* The words come first, so their number is needed first: SLOTS count ... HOME node n. */
    more = (uint32_t)(5 + 2 * used);
    uint8_t *out = put_words(begin, s->c->lane, s->x, more);
    out = hmq_route_put_tail(out, s->x->by, ready, used, &more);
    if (!put_visit(e, s->c, s->x, s->number, l, begin, out)) s->lacks_memory = true;
    return true;
}

void hmq_visits_send(hmq_engine *e, connection *c, crossing *x, uint64_t number, const slot_range *ranges,
                     size_t count) {
    sending s = {c, x, number, false};
    const bool done = hmq_route_each(e, ranges, count, send_slots, &s);
    if (!done || s.lacks_memory) hmq_engine_no_memory(e, c);
    if (x->left.len > 0) hmq_lane_disturb(e, c);
}

void hmq_visits_send_left(hmq_engine *e, connection *c, crossing *x, uint64_t number) {
    hmq_bytes left = x->left;
    size_t count;
    x->left = (hmq_bytes){0};
    const slot_range *ranges = hmq_crossing_ranges(&left, &count);
    if (count > 0) hmq_visits_send(e, c, x, number, ranges, count);
    hmq_bytes_free(&e->allocator, &left);
}

/* Are all links of the plan there, and may all slots be sent to? */
static bool is_clear(const hmq_engine *e, const hmq_bytes *plan) {
    if (plan == NULL || e->blocked > 0 || e->leaving.len > 0) return false;
    for (size_t i = 0; i < plan->len;) {
        plan_part part;
        memcpy(&part, hmq_bytes_at(plan) + i, sizeof part);
        if (!e->links[part.link].up) return false;
        i += sizeof part + part.len;
    }
    return true;
}

static void send_by_plan(hmq_engine *e, connection *c, crossing *x, uint64_t number, const hmq_bytes *plan) {
    for (size_t i = 0; i < plan->len;) {
        plan_part part;
        memcpy(&part, hmq_bytes_at(plan) + i, sizeof part);
        i += sizeof part;
        engine_link *l = &e->links[part.link];
        uint8_t *begin = hmq_log_room(e, l, x->entry.len + HEAD_BYTES + part.len);
        if (begin == NULL) {
            hmq_engine_no_memory(e, c);
            return;
        }
        uint8_t *out = put_words(begin, c->lane, x, part.words);
        memcpy(out, hmq_bytes_at(plan) + i, part.len);
        i += part.len;
        if (!put_visit(e, c, x, number, l, begin, out + part.len)) {
            hmq_engine_no_memory(e, c);
            return;
        }
    }
}

void hmq_visits_send_all(hmq_engine *e, connection *c, crossing *x, uint64_t number) {
    const hmq_bytes *plan = hmq_route_plan(e, x->by);
    if (is_clear(e, plan))
        send_by_plan(e, c, x, number, plan);
    else
        hmq_visits_send(e, c, x, number, x->by->ranges, x->by->range_count);
}

void hmq_visits_each_slot(const uint8_t *command, size_t len, uint32_t body_words,
                          void (*take)(void *, uint32_t, uint32_t), void *context) {
    size_t from = 0;
    hmq_resp_item item = {0}, last;
    for (uint32_t i = 0; i < body_words + 2; i++) hmq_resp_next(command, len, &from, &item); /* header, body, SLOTS */
    if (item.text.len == RETRY_LEN && memcmp(item.text.data, RETRY, RETRY_LEN) == 0)
        hmq_resp_next(command, len, &from, &item); /* SLOTS */
    hmq_resp_next(command, len, &from, &item);
    uint64_t count = 0;
    for (size_t i = 0; i < item.text.len; i++) count = count * 10 + (uint64_t)(item.text.data[i] - '0');
    for (; count > 0; count--) {
        uint32_t first = 0, end = 0;
        if (!hmq_resp_next(command, len, &from, &item) || !hmq_resp_next(command, len, &from, &last)) return;
        for (size_t i = 0; i < item.text.len; i++) first = first * 10 + (uint32_t)(item.text.data[i] - '0');
        for (size_t i = 0; i < last.text.len; i++) end = end * 10 + (uint32_t)(last.text.data[i] - '0');
        take(context, first, end);
    }
}

typedef struct named {
    hmq_engine *e;
    connection *c;
    crossing *x;
    engine_link *l; /* NULL: they are not blocked */
} named;

static void leave_named(void *context, uint32_t first, uint32_t last) {
    named *s = context;
    if (s->l != NULL) {
        for (uint32_t slot = first; slot <= last; slot++) hmq_blocked_add(s->e, s->l, slot);
    }
    if (s->x->entry.qos == 0)
        s->x->is_dropped = true;
    else if (s->x->refusal == 0 && !hmq_crossing_add_range(s->e, &s->x->left, first, last))
        hmq_engine_no_memory(s->e, s->c);
}

void hmq_visits_leave(hmq_engine *e, connection *c, crossing *x, engine_link *blocking, hmq_slice command) {
    named s = {e, c, x, blocking};
    hmq_visits_each_slot(command.data, command.len, x->words, leave_named, &s);
    hmq_lane_disturb(e, c);
}

void hmq_visits_return(hmq_engine *e, connection *c, crossing *x, hmq_slice command) {
    named s = {e, c, x, NULL};
    const uint8_t qos = x->entry.qos;
    x->entry.qos = 1; /* also of QoS 0: it was not sent */
    hmq_visits_each_slot(command.data, command.len, x->words, leave_named, &s);
    x->entry.qos = qos;
    hmq_lane_disturb(e, c);
}
