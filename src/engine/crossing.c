/* crossing.c - publishes that cross the nodes of a cluster.
 *
 *      line     | 4 whole | 5 visits under way | 6 check under way | 7 not begun | 8 |        of one publisher
 *                 ▲ first                                            ▲ begun
 *
 * A publish in the line owns its command.  It is begun with an answer (engine/routes.c): visits go to the links of the
 * answer's slots, and its check to the publisher's link.  Each reply to a visit says which slots did not take it: these are
 * `left`.  It is whole when it is checked and nothing is left or under way, and leaves the line when all before it have.
 *
 *      advance     begins publishes of an undisturbed publisher, in their order, without waiting for replies
 *      resolve     of a disturbed one: once nothing is under way, makes the first publish whole, then the next
 *
 * A retained message goes to the slot of its topic first, and to all others with its check after that was taken.
 *
 * Checks of a turn are collected for each link, and sent as ROUTE.MCHECK when its output is taken.
 *
 * Invariants: those of "publishes over a cluster" in engine/engine.h.
 *  1. `begun` publishes at the front of the line have been sent; all others have not, except for their first question.
 *  2. A slot of a publish is under way, or in `left`, or took it, or QoS 0 has no further right to it. */
#include "engine/internal.h"

#define CHECKS_MOST 1024U /* of one command */
#define MISSING_AGAIN_MS 1000

typedef struct crossing {
    awaited entry; /* of the client's packet; len: of `command` */
    route_answer *by; /* by which it is sent; NULL: by none yet */
    uint64_t started_at; /* answers with a larger serial are later than its beginning */
    int64_t reached;
    hmq_bytes left; /* slot_range: slots that it is to be sent to */
    hmq_bytes sent; /* slot_range: slots that it was sent to by other answers than `by`, or before it was begun */
    uint32_t under_way; /* visits without a reply */
    uint32_t words; /* of the command */
    uint32_t head; /* bytes before the first word */
    uint32_t topic_at; /* in the command */
    uint32_t payload_len;
    uint16_t topic_len;
    uint8_t refusal; /* reason code of 5.0: it was given up; 0: not */
    uint8_t losses;
    bool is_denied, is_begun, is_checking, is_checked, is_dropped;
    bool is_again; /* some slot gets it again */
    bool asks_anew; /* its answer is over */
    bool writes_first; /* its retained message is not written yet */
    uint8_t command[];
} crossing;

typedef struct lane {
    hmq_bytes line; /* crossing * */
    uint64_t first; /* number of the first one */
    uint32_t begun; /* of those in the line */
    uint32_t under_way; /* visits and checks without a reply */
    size_t bytes;
    bool is_disturbed, waits_for_routes;
    uint32_t waits_for_link; /* whose routes */
    bool repeats_any;
    uint64_t
        repeats[HMQ_MOST_LINKS / 64]; /* links on which a publish was refused as a whole: later ones go there again */
} lane;

typedef struct check_due {
    hmq_conn conn;
    uint64_t number;
} check_due;

static uint32_t count_of(const lane *n) {
    return (uint32_t)(n->line.len / sizeof(crossing *));
}

static crossing *at(const lane *n, uint32_t index) {
    crossing *x;
    memcpy(&x, hmq_bytes_at(&n->line) + index * sizeof(crossing *), sizeof(crossing *));
    return x;
}

/* NULL: it has left the line. */
static crossing *find(const connection *c, uint64_t number) {
    const lane *n = c->lane;
    return n == NULL || number < n->first || number - n->first >= count_of(n) ? NULL
                                                                              : at(n, (uint32_t)(number - n->first));
}

static hmq_slice topic_of(const crossing *x) {
    return (hmq_slice){x->command + x->topic_at, x->topic_len};
}

static size_t bytes_of(const crossing *x) {
    return sizeof *x + x->entry.len;
}

static void disturb(hmq_engine *e, connection *c) {
    c->lane->is_disturbed = true;
    hmq_engine_schedule_wake(e, c);
}

static void release(hmq_engine *e, crossing *x) {
    hmq_answer_release(e, x->by);
    hmq_bytes_free(&e->allocator, &x->left);
    hmq_bytes_free(&e->allocator, &x->sent);
    e->crossings--;
    e->crossing_bytes -= bytes_of(x);
    e->allocator.release(x);
}

/* ---- ranges ---- */

static bool add_range(hmq_engine *e, hmq_bytes *ranges, uint32_t first, uint32_t last) {
    const slot_range range = {(uint16_t)first, (uint16_t)last};
    return hmq_bytes_append(&e->allocator, ranges, &range, sizeof range);
}

static void set_ranges(hmq_slot_set *set, const slot_range *ranges, size_t count) {
    for (size_t i = 0; i < count; i++) hmq_slot_set_add(set, ranges[i].first, ranges[i].last);
}

static const slot_range *ranges_of(const hmq_bytes *bytes, size_t *count) {
    *count = bytes->len / sizeof(slot_range);
    return *count == 0 ? NULL : (const slot_range *)(const void *)hmq_bytes_at(bytes);
}

/* Those slots of the answer that it was not sent to become `left`.  `former`: the answer that it was sent by; or NULL. */
static bool add_missing(hmq_engine *e, crossing *x, const route_answer *now, const route_answer *former) {
    hmq_slot_set had = {{0}};
    size_t count;
    const slot_range *sent = ranges_of(&x->sent, &count);
    set_ranges(&had, sent, count);
    if (former != NULL) set_ranges(&had, former->ranges, former->range_count);
    for (uint32_t i = 0; i < now->range_count; i++) {
        for (uint32_t slot = now->ranges[i].first; slot <= now->ranges[i].last; slot++) {
            if (!hmq_slot_set_has(&had, slot) && !add_range(e, &x->left, slot, slot)) return false;
        }
    }
    return true;
}

/* ---- blocked slots ---- */

static bool is_blocked(const engine_link *l, uint32_t slot) {
    return l->blocked_count > 0 && l->blocked[slot] != 0;
}

/* Do visits wait for their replies that were sent before the slot was refused? */
static bool is_blocked_still(const engine_link *l, uint32_t slot) {
    return is_blocked(l, slot) && l->visits_answered < l->blocked[slot];
}

/* The node refuses the slot on this link until ROUTE.RESUME.  True: that is news.  Without memory the slot is asked again,
 * refused again, and so blocked later. */
static bool block(hmq_engine *e, engine_link *l, uint32_t slot) {
    if (l->blocked == NULL) {
        l->blocked = e->allocator.alloc(HMQ_SLOTS * sizeof *l->blocked);
        if (l->blocked == NULL) return false;
        memset(l->blocked, 0, HMQ_SLOTS * sizeof *l->blocked);
    }
    const bool is_news = l->blocked[slot] == 0;
    l->blocked[slot] = l->visits_put; /* not 0: one was refused */
    l->blocked_count += is_news;
    e->blocked += is_news;
    return is_news;
}

static void unblock(hmq_engine *e, engine_link *l, uint32_t slot) {
    l->blocked[slot] = 0;
    e->blocked--;
    if (--l->blocked_count > 0) return;
    e->allocator.release(l->blocked);
    l->blocked = NULL;
}

static void unblock_all(hmq_engine *e, engine_link *l) {
    e->blocked -= l->blocked_count;
    l->blocked_count = 0;
    if (l->blocked != NULL) e->allocator.release(l->blocked);
    l->blocked = NULL;
}

/* Sends ROUTE.RESUME for those of these slots that are blocked.  False: no memory. */
static bool resume(hmq_engine *e, engine_link *l, const slot_range *ranges, size_t count) {
    uint32_t slots = 0;
    for (size_t i = 0; i < count; i++)
        for (uint32_t slot = ranges[i].first; slot <= ranges[i].last; slot++) slots += is_blocked(l, slot);
    if (slots == 0) return true;
    uint8_t *begin = hmq_log_room(e, l, 64 + (size_t)slots * 16);
    if (begin == NULL) return false;
    uint8_t *out = hmq_resp_put_header(begin, '*', slots + 1);
    out = hmq_resp_put_text(out, "ROUTE.RESUME", 12);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t slot = ranges[i].first; slot <= ranges[i].last; slot++)
            if (is_blocked(l, slot)) out = hmq_resp_put_number(out, slot);
    }
    const awaited entry = {.len = (uint32_t)(out - begin), .kind = COMMAND_RESUME};
    if (!hmq_log_add(e, l, &entry)) return false;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t slot = ranges[i].first; slot <= ranges[i].last; slot++)
            if (is_blocked(l, slot)) unblock(e, l, slot);
    }
    return true;
}

/* ---- sending ---- */

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

static uint8_t *put_words(uint8_t *out, const crossing *x, uint32_t more) {
    out = hmq_resp_put_header(out, '*', x->words + more);
    memcpy(out, x->command + x->head, x->entry.len - x->head);
    return out + (x->entry.len - x->head);
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
    if (is_blocked_still(l, slot)) return 1;
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
            } else if (!add_range(e, &s->x->left, slot, slot)) {
                s->lacks_memory = true;
            }
        }
    }
    if (used == 0) return true;
    uint32_t more;
    uint8_t *begin =
        resume(e, l, ready, used) ? hmq_log_room(e, l, s->x->entry.len + 32 + hmq_route_tail_bytes(used)) : NULL;
    if (begin == NULL) {
        s->lacks_memory = true;
        return true;
    }
    /* The words come first, so their number is needed first: SLOTS count ... HOME node n. */
    more = (uint32_t)(5 + 2 * used);
    uint8_t *out = put_words(begin, s->x, more);
    out = hmq_route_put_tail(out, s->x->by, ready, used, &more);
    if (!put_visit(e, s->c, s->x, s->number, l, begin, out)) s->lacks_memory = true;
    return true;
}

/* Sends to slots one by one, as they may be sent to. */
static void send_to(hmq_engine *e, connection *c, crossing *x, uint64_t number, const slot_range *ranges,
                    size_t count) {
    sending s = {c, x, number, false};
    const bool done = hmq_route_each(e, ranges, count, send_slots, &s);
    if (!done || s.lacks_memory) hmq_engine_no_memory(e, c);
    if (x->left.len > 0) disturb(e, c);
}

static void send_left(hmq_engine *e, connection *c, crossing *x, uint64_t number) {
    hmq_bytes left = x->left;
    size_t count;
    x->left = (hmq_bytes){0};
    const slot_range *ranges = ranges_of(&left, &count);
    if (count > 0) send_to(e, c, x, number, ranges, count);
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
        uint8_t *begin = hmq_log_room(e, l, x->entry.len + 32 + part.len);
        if (begin == NULL) {
            hmq_engine_no_memory(e, c);
            return;
        }
        uint8_t *out = put_words(begin, x, part.words);
        memcpy(out, hmq_bytes_at(plan) + i, part.len);
        i += part.len;
        if (!put_visit(e, c, x, number, l, begin, out + part.len)) {
            hmq_engine_no_memory(e, c);
            return;
        }
    }
}

/* ---- checks ---- */

static void check(hmq_engine *e, connection *c, crossing *x, uint64_t number) {
    const check_due due = {c->handle, number};
    if (x->is_checking) return;
    if (!hmq_bytes_append(&e->allocator, &c->link->checks, &due, sizeof due)) {
        hmq_engine_no_memory(e, c);
        return;
    }
    x->is_checking = true;
    c->lane->under_way++;
}

#define CHECK_BYTES ((size_t)112) /* without key and topic */

static uint8_t *put_check(uint8_t *out, const connection *c, const crossing *x) {
    const hmq_slice key = hmq_conn_key(c), topic = topic_of(x);
    out = hmq_resp_put_text(out, key.data, key.len);
    out = hmq_resp_put_text(out, topic.data, topic.len);
    out = hmq_resp_put_number(out, c->epoch);
    if (x->by == NULL || x->asks_anew || !hmq_answer_is_present(c->link, x->by)) return hmq_resp_put_text(out, "-1", 2);
    return hmq_resp_put_number(out, (uint64_t)x->by->version);
}

/* Its check, if its client is still there. */
static crossing *check_of(const hmq_engine *e, const hmq_bytes *checks, size_t index, connection **c,
                          uint64_t *number) {
    check_due due;
    memcpy(&due, hmq_bytes_at(checks) + index * sizeof due, sizeof due);
    *c = hmq_engine_find(e, due.conn);
    *number = due.number;
    return *c == NULL || (*c)->phase != PHASE_OPEN ? NULL : find(*c, due.number);
}

/* Sends the first checks that are due as one command.  False: no memory; they stay due. */
static bool ask_some(hmq_engine *e, engine_link *l) {
    static const char nobody[] = "0000000000000000000000000000000000000000";
    size_t most = 128, counted = 0, taken = 0;
    const size_t all = l->checks.len / sizeof(check_due);
    connection *c;
    uint64_t number;
    for (; taken < all && counted < CHECKS_MOST; taken++) {
        const crossing *x = check_of(e, &l->checks, taken, &c, &number);
        if (x == NULL) continue;
        counted++;
        most += CHECK_BYTES + c->key_len + x->topic_len;
    }
    uint8_t *begin = hmq_log_room(e, l, most), *out = begin;
    if (begin == NULL || hmq_bytes_room(&e->allocator, &l->asked, counted * sizeof(check_due)) == NULL) return false;
    out = hmq_resp_put_header(out, '*', 3 + 4 * counted);
    out = hmq_resp_put_text(out, "ROUTE.MCHECK", 12);
    if (l->cache.n != 0)
        out = hmq_resp_put_text(out, l->cache.node, l->cache.node_len);
    else if (l->id_len > 0)
        out = hmq_resp_put_text(out, l->id, l->id_len);
    else
        out = hmq_resp_put_text(out, nobody, sizeof nobody - 1);
    out = hmq_resp_put_number(out, l->cache.n != 0 ? (uint64_t)l->cache.n : 1);
    for (size_t i = 0; i < taken; i++) {
        const crossing *x = check_of(e, &l->checks, i, &c, &number);
        if (x == NULL) continue;
        out = put_check(out, c, x);
        hmq_bytes_append(&e->allocator, &l->asked, hmq_bytes_at(&l->checks) + i * sizeof(check_due), sizeof(check_due));
    }
    const awaited entry = {.len = (uint32_t)(out - begin), .token = counted, .kind = COMMAND_CHECKS};
    if (counted > 0 && !hmq_log_add(e, l, &entry)) {
        l->asked.len -= counted * sizeof(check_due);
        return false;
    }
    hmq_bytes_drop(&l->checks, taken * sizeof(check_due));
    return true;
}

void hmq_crossing_ask(hmq_engine *e, engine_link *l) {
    while (l->up && l->checks.len > 0 && ask_some(e, l)) continue;
}

/* ---- the line ---- */

static bool is_whole(const crossing *x) {
    if (x->is_denied) return true;
    if (x->is_checking || x->under_way > 0) return false;
    return x->refusal != 0 || (x->is_begun && x->is_checked && !x->writes_first && x->left.len == 0);
}

/* Answers what is whole, in the order of the line. */
static void settle(hmq_engine *e, connection *c) {
    lane *n = c->lane;
    while (c->phase == PHASE_OPEN && count_of(n) > 0 && is_whole(at(n, 0))) {
        crossing *x = at(n, 0);
        const bool was_begun = n->begun > 0;
        const awaited entry = x->entry;
        const int64_t reached = x->reached;
        const uint8_t refusal = x->refusal;
        const bool is_dropped = x->is_dropped;
        n->bytes -= bytes_of(x);
        c->under_way_bytes -= bytes_of(x);
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
    const hmq_slice topic = topic_of(x);
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
        if (!ok || !add_range(e, &x->sent, slot, slot))
            hmq_engine_no_memory(e, c);
        else
            send_to(e, c, x, number, &range, 1);
        return;
    }
    const hmq_bytes *plan = hmq_route_plan(e, x->by);
    if (is_clear(e, plan))
        send_by_plan(e, c, x, number, plan);
    else
        send_to(e, c, x, number, x->by->ranges, x->by->range_count);
    if (!x->is_checked) check(e, c, x, number);
}

/* The retained message is written: the others follow. */
static void go_on_after_write(hmq_engine *e, connection *c, crossing *x, uint64_t number) {
    x->writes_first = false;
    if (!add_missing(e, x, x->by, NULL)) hmq_engine_no_memory(e, c);
    send_left(e, c, x, number);
    check(e, c, x, number);
}

static bool has_enough_copies(const connection *c) {
    return (double)c->lane->under_way * (double)c->reach >= c->link->copies_most;
}

static void advance(hmq_engine *e, connection *c) {
    lane *n = c->lane;
    while (!n->is_disturbed && !c->publishes.waits && c->next == NULL && c->link->up && c->phase == PHASE_OPEN &&
           n->begun < count_of(n)) {
        crossing *x = at(n, n->begun);
        const uint64_t number = n->first + n->begun;
        if (x->is_denied) {
            x->started_at = e->answers;
            n->begun++;
            continue;
        }
        if (n->begun > 0 && at(n, n->begun - 1)->writes_first) return;
        if (x->is_checking) return;
        const bool has_own_answer = x->by != NULL;
        route_answer *a = has_own_answer ? x->by : hmq_route_find(e, c->link, topic_of(x));
        if (a == NULL) {
            check(e, c, x, number);
            return;
        }
        if (n->begun > 0 && (a->serial > at(n, 0)->started_at || has_enough_copies(c))) return;
        if (!has_own_answer) a->uses++;
        x->by = a;
        begin(e, c, x, number, has_own_answer);
    }
}

/* Nothing is under way: makes the first publish whole. */
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
    crossing *x = at(n, 0);
    if (x->asks_anew) {
        check(e, c, x, n->first);
        return;
    }
    if (x->writes_first && x->left.len == 0) {
        go_on_after_write(e, c, x, n->first);
        return;
    }
    x->is_again = true;
    send_left(e, c, x, n->first);
    if (!x->is_checked && !x->writes_first) check(e, c, x, n->first);
    if (n->under_way == 0)
        hmq_engine_schedule_wake(e, c); /* its slots are nobody's now, or wait for replies to others */
}

/* Continues after a reply, or when something may have changed. */
static void proceed(hmq_engine *e, connection *c) {
    const lane *n = c->lane;
    uint64_t first;
    settle(e, c);
    do { /* what is whole at once lets the next ones begin */
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
    n->bytes += bytes_of(x);
    c->under_way_bytes += bytes_of(x);
    e->crossings++;
    e->crossing_bytes += bytes_of(x);
    c->outstanding++;
    if (!n->is_disturbed) proceed(e, c);
    return true;
}

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

static void drop(crossing *x) {
    x->is_dropped = true;
}

/* A visit or a check was refused as a whole. */
static void refused(hmq_engine *e, connection *c, crossing *x, hmq_slice error) {
    e->count.refusals[hmq_refusal_index(error)]++;
    if (hmq_session_is_gone(error)) {
        hmq_publish_failed(e, c, error);
        return;
    }
    disturb(e, c);
    const bool is_at_once = c->version == 5 && x->entry.qos > 0 && hmq_refusal_is_answered_at_once(error);
    if (!hmq_refusal_passes(e, error) || is_at_once || hmq_refusal_lasts(e, &c->publishes))
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
    if (x->under_way == 0) drop(x);
}

static void check_refused(hmq_engine *e, connection *c, crossing *x, hmq_slice error) {
    if (hmq_error_begins(error, "NOROUTES")) report_missing(e, c, c->link, 0, NULL);
    if (x->entry.qos == 0 && hmq_refusal_passes(e, error)) {
        e->count.refusals[hmq_refusal_index(error)]++;
        if (!x->is_begun) { /* it is the next one to begin */
            c->lane->begun++;
            x->started_at = e->answers;
            drop(x);
        }
        end_unchecked(x);
        return;
    }
    refused(e, c, x, error);
}

/* The node has another set of slots, or the first one. */
static void is_answered(hmq_engine *e, connection *c, crossing *x, route_answer *now) {
    const bool is_first = x->by == NULL;
    route_answer *former = x->by;
    e->count.routes_asked += is_first;
    e->count.routes_changed += !is_first;
    x->by = now;
    x->is_checked = true;
    x->asks_anew = false;
    if (is_first) return;
    if (x->writes_first) { /* it goes to the first slot by the new route_answer */
        x->is_checked = false;
        hmq_answer_release(e, former);
        return;
    }
    const bool had_left = x->left.len > 0;
    bool fits = add_missing(e, x, now, former);
    for (uint32_t i = 0; fits && i < former->range_count; i++)
        fits = add_range(e, &x->sent, former->ranges[i].first, former->ranges[i].last);
    hmq_answer_release(e, former);
    if (!fits) hmq_engine_no_memory(e, c);
    if (!had_left && x->left.len > 0) disturb(e, c);
}

/* Takes the reply to the oldest check.  False: it is not a valid reply. */
static bool check_replied(hmq_engine *e, engine_link *l, const route_home *home, hmq_slice reply) {
    connection *c;
    uint64_t number;
    size_t from = 0;
    hmq_resp_item item;
    crossing *x = check_of(e, &l->asked, 0, &c, &number);
    hmq_bytes_drop(&l->asked, sizeof(check_due));
    if (!hmq_resp_next(reply.data, reply.len, &from, &item)) return false;
    e->count.replies_received++;
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
        route_answer *now = hmq_route_learn(e, l, home, topic_of(x), reply, &from);
        if (now == NULL) return false;
        is_answered(e, c, x, now);
    } else {
        return false;
    }
    proceed(e, c);
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

/* The slots that a visit named. */
static void each_named(const uint8_t *command, size_t len, uint32_t body_words,
                       void (*take)(void *, uint32_t, uint32_t), void *context) {
    size_t from = 0;
    hmq_resp_item item, last;
    for (uint32_t i = 0; i < body_words + 2; i++) hmq_resp_next(command, len, &from, &item); /* header, body, SLOTS */
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
        for (uint32_t slot = first; slot <= last; slot++) block(s->e, s->l, slot);
    }
    if (s->x->entry.qos == 0)
        drop(s->x);
    else if (s->x->refusal == 0 && !add_range(s->e, &s->x->left, first, last))
        hmq_engine_no_memory(s->e, s->c);
}

/* All slots of the visit are left. */
static void leave_all(hmq_engine *e, connection *c, crossing *x, engine_link *blocking, hmq_slice command) {
    named s = {e, c, x, blocking};
    each_named(command.data, command.len, x->words, leave_named, &s);
    disturb(e, c);
}

/* Nothing of the visit was stored. */
static void visit_refused(hmq_engine *e, connection *c, crossing *x, engine_link *l, hmq_slice error) {
    const hmq_slice command = hmq_log_head_command(l);
    const bool is_over = hmq_error_begins(error, "STALEHOME"), is_unknown = hmq_error_begins(error, "NOHOME");
    if (is_over || is_unknown || (hmq_refusal_passes(e, error) && x->entry.qos > 0 && x->refusal == 0))
        leave_all(e, c, x, is_over || is_unknown ? l : NULL, command);
    if (is_unknown) {
        report_missing(e, c, l, 1, x->by);
        x->is_checked = false;
    }
    if (is_over) {
        x->asks_anew = true;
        x->is_checked = false;
        if (hmq_answer_is_present(c->link, x->by)) hmq_route_forget(e, c->link);
    }
    if (!is_over && !is_unknown) {
        c->lane->repeats[l->number / 64] |= 1ULL << (l->number % 64);
        c->lane->repeats_any = true;
    }
    if (x->entry.qos == 0 && hmq_refusal_passes(e, error)) {
        e->count.refusals[hmq_refusal_index(error)]++;
        drop(x);
        x->is_checked = x->is_checked || !x->is_checking;
        x->asks_anew = false;
        x->writes_first = false;
        return;
    }
    if (x->refusal == 0) refused(e, c, x, error);
}

/* Reads one range that did not take the publish, and the reason.  False: it is not a valid reply. */
static bool next_left(hmq_slice reply, size_t *from, slot_range *range, hmq_slice *reason) {
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
        const bool is_news = block(e, l, slot);
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
        drop(x);
        return;
    }
    if (x->refusal != 0) return;
    disturb(e, c);
    if (!add_range(e, &x->left, range.first, range.last))
        hmq_engine_no_memory(e, c);
    else if (hmq_refusal_lasts(e, &c->publishes))
        give_up(e, c, x, reason);
    else if (is_moved)
        hmq_refusal_wait(e, c, &c->publishes, reason); /* SLOT_MOVED tells it */
    else if (x->is_again || !hmq_error_begins(reason, "REFUSED"))
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
        if (!next_left(reply, &from, &range, &reason)) return false;
        if (c->phase == PHASE_OPEN) slots_refused(e, c, x, l, range, reason);
    }
    const lane *n = c->lane;
    if (list.number == 0 && n->repeats_any && x->entry.qos == 1 &&
        (n->repeats[l->number / 64] >> (l->number % 64) & 1) != 0)
        leave_all(e, c, x, NULL, hmq_log_head_command(l));
    return true;
}

/* Handles the reply to the visit at the head, and drops it. */
static bool visit_replied(hmq_engine *e, engine_link *l, hmq_slice reply) {
    const awaited entry = *hmq_log_head(l);
    connection *c = hmq_engine_find(e, entry.conn);
    crossing *x = c == NULL || c->phase != PHASE_OPEN ? NULL : find(c, entry.token);
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
            go_on_after_write(e, c, x, entry.token);
    }
    hmq_log_drop_head(e, l);
    if (x != NULL && is_right) proceed(e, c);
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
static bool is_unpipelined(hmq_slice error) {
    return hmq_error_begins(error, "ERR unknown command") || hmq_error_begins(error, "NOPERM");
}

/* The visit at the head was certainly not executed. */
static void take_back(hmq_engine *e, engine_link *l) {
    const awaited entry = *hmq_log_head(l);
    connection *c = hmq_engine_find(e, entry.conn);
    crossing *x = c == NULL || c->phase != PHASE_OPEN ? NULL : find(c, entry.token);
    e->count.replies_received++;
    l->visits_answered++;
    if (x != NULL) {
        named s = {e, c, x, NULL};
        const hmq_slice command = hmq_log_head_command(l);
        const uint8_t qos = x->entry.qos;
        x->under_way--;
        c->lane->under_way--;
        x->entry.qos = 1; /* also of QoS 0: it was not sent */
        each_named(command.data, command.len, x->words, leave_named, &s);
        x->entry.qos = qos;
        disturb(e, c);
    }
    hmq_log_drop_head(e, l);
}

bool hmq_crossing_batch_replied(hmq_engine *e, engine_link *l, hmq_slice reply) {
    uint16_t count = hmq_log_head(l)->batch;
    size_t from = 0;
    hmq_resp_item head;
    if (!hmq_resp_next(reply.data, reply.len, &from, &head)) return false;
    if (head.type == '-' || head.type == '!') {
        const bool is_unknown = is_unpipelined(head.text);
        l->unpipelined |= is_unknown;
        for (; count > 0; count--) {
            if (is_unknown)
                take_back(e, l);
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

/* ---- losses, moves, the end ---- */

static void visit_lost(hmq_engine *e, engine_link *l, const awaited *entry, const uint8_t *bytes, bool is_written) {
    if (entry->kind != COMMAND_VISIT) return;
    connection *c = hmq_engine_find(e, entry->conn);
    crossing *x = c == NULL || c->phase != PHASE_OPEN ? NULL : find(c, entry->token);
    l->visits_answered++;
    if (x == NULL) return;
    named s = {e, c, x, NULL};
    x->under_way--;
    c->lane->under_way--;
    if (is_written && x->entry.qos == 0) {
        x->is_dropped = true;
        x->writes_first = false;
    } else {
        const uint8_t qos = x->entry.qos;
        x->entry.qos = 1;
        each_named(bytes, entry->len, x->words, leave_named, &s);
        x->entry.qos = qos;
        x->losses += is_written;
    }
    disturb(e, c);
    if (x->losses < HMQ_PUBLISH_ATTEMPTS || x->refusal != 0) return;
    static const char text[] = "QUOTA the connection to the server broke each time a publish was sent";
    e->count.publishes_abandoned++;
    hmq_engine_raise(
        e, &(hmq_engine_event){
               .kind = HMQ_EVENT_ABANDONED, .conn = c->handle, .token = x->payload_len, .bytes = topic_of(x)});
    give_up(e, c, x, (hmq_slice){(const uint8_t *)text, sizeof text - 1});
}

static void check_lost(hmq_engine *e, hmq_bytes *checks) {
    connection *c;
    uint64_t number;
    for (size_t i = 0; i < checks->len / sizeof(check_due); i++) {
        crossing *x = check_of(e, checks, i, &c, &number);
        if (x == NULL) continue;
        x->is_checking = false;
        c->lane->under_way--;
        disturb(e, c);
    }
    hmq_bytes_clear(checks);
}

void hmq_crossing_lost(hmq_engine *e, engine_link *l) {
    hmq_log_each(e, l, visit_lost);
    check_lost(e, &l->asked);
    check_lost(e, &l->checks);
    unblock_all(e, l); /* the next connection has refused nothing */
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
    if (c->lane != NULL && !c->publishes.waits) proceed(e, c);
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
    for (uint32_t i = 0; i < count_of(c->lane); i++)
        if (at(c->lane, i)->entry.qos > 0 && at(c->lane, i)->entry.packet_id == packet_id) return true;
    return false;
}

void hmq_crossing_forget(hmq_engine *e, connection *c) {
    if (c->lane == NULL) return;
    for (uint32_t i = 0; i < count_of(c->lane); i++) release(e, at(c->lane, i));
    hmq_bytes_free(&e->allocator, &c->lane->line);
    e->allocator.release(c->lane);
    c->lane = NULL;
}
