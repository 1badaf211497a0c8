/* checks.c - asks the publisher's node which slots have subscribers of a topic.
 *
 * The checks of a turn are collected for each link, and sent as one ROUTE.MCHECK when the link's output is taken.  Consecutive
 * ones of one client and topic that know the same version are one check: it is made after all of their publishes arrived.
 *
 *      checks    due: not sent yet
 *      asked     sent, without a reply; in the order of the commands */
#include "engine/checks.h"

#define CHECKS_MOST 1024U /* of one command */
#define CHECK_BYTES ((size_t)112) /* without key and topic */

void hmq_checks_add(hmq_engine *e, connection *c, crossing *x, uint64_t number) {
    const check_due due = {.conn = c->handle, .number = number};
    if (x->is_checking) return;
    if (!hmq_bytes_append(&e->allocator, &c->link->checks, &due, sizeof due)) {
        hmq_engine_no_memory(e, c);
        return;
    }
    x->is_checking = true;
    c->lane->under_way++;
}

/* The version that the publisher's node is asked to confirm; -1: none. */
static int64_t known_version(const connection *c, const crossing *x) {
    if (x->by == NULL || x->needs_new_answer || !hmq_answer_is_current(c->link, x->by)) return -1;
    return x->by->version;
}

/* Is one check enough for two publishes of a client? */
static bool is_one_check(const connection *c, const crossing *former, const crossing *x) {
    return former->topic_len == x->topic_len &&
           memcmp(hmq_crossing_topic(former).data, hmq_crossing_topic(x).data, x->topic_len) == 0 &&
           known_version(c, former) == known_version(c, x);
}

static uint8_t *put_check(uint8_t *out, const connection *c, const crossing *x) {
    const hmq_slice key = hmq_conn_key(c), topic = hmq_crossing_topic(x);
    out = hmq_resp_put_text(out, key.data, key.len);
    out = hmq_resp_put_text(out, topic.data, topic.len);
    out = hmq_resp_put_number(out, c->epoch);
    const int64_t version = known_version(c, x);
    return version < 0 ? hmq_resp_put_text(out, "-1", 2) : hmq_resp_put_number(out, (uint64_t)version);
}

crossing *hmq_checks_find(const hmq_engine *e, const hmq_bytes *checks, size_t index, connection **c,
                          uint64_t *number) {
    check_due due;
    memcpy(&due, hmq_bytes_at(checks) + index * sizeof due, sizeof due);
    *c = hmq_engine_find(e, due.conn);
    *number = due.number;
    return *c == NULL || (*c)->phase != PHASE_OPEN ? NULL : hmq_lane_find(*c, due.number);
}

bool hmq_checks_share(const hmq_bytes *checks) {
    check_due due;
    if (checks->len == 0) return false;
    memcpy(&due, hmq_bytes_at(checks), sizeof due);
    return due.shares;
}

/* Marks the checks that share the reply of the one before them, until CHECKS_MOST are to be sent.  Returns how many of those
 * that are due are then sent or gone.  *counted: to be sent; *sent: the due ones that they answer; *bytes: bound. */
static size_t plan_checks(hmq_engine *e, engine_link *l, size_t *counted, size_t *sent, size_t *bytes) {
    const size_t all = l->checks.len / sizeof(check_due);
    const crossing *former = NULL;
    const connection *of = NULL;
    size_t taken = 0;
    for (; taken < all; taken++) {
        connection *c;
        check_due due;
        const crossing *x = hmq_checks_find(e, &l->checks, taken, &c, &due.number);
        if (x == NULL) continue;
        uint8_t *at = hmq_bytes_at(&l->checks) + taken * sizeof due;
        memcpy(&due, at, sizeof due);
        due.shares = former != NULL && c == of && is_one_check(c, former, x);
        if (!due.shares && *counted == CHECKS_MOST) break;
        memcpy(at, &due, sizeof due);
        ++*sent;
        if (due.shares) continue;
        ++*counted;
        *bytes += CHECK_BYTES + c->key_len + x->topic_len;
        former = x;
        of = c;
    }
    return taken;
}

/* Sends the first checks that are due as one command.  False: no memory; they stay due. */
static bool send_some(hmq_engine *e, engine_link *l) {
    static const char nobody[] = "0000000000000000000000000000000000000000";
    size_t most = 128, counted = 0, sent = 0;
    connection *c;
    uint64_t number;
    const size_t taken = plan_checks(e, l, &counted, &sent, &most);
    uint8_t *begin = hmq_log_room(e, l, most), *out = begin;
    if (begin == NULL || hmq_bytes_room(&e->allocator, &l->asked, sent * sizeof(check_due)) == NULL) return false;
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
        const crossing *x = hmq_checks_find(e, &l->checks, i, &c, &number);
        if (x == NULL) continue;
        check_due due;
        memcpy(&due, hmq_bytes_at(&l->checks) + i * sizeof due, sizeof due);
        if (!due.shares) out = put_check(out, c, x);
        hmq_bytes_append(&e->allocator, &l->asked, &due, sizeof due);
    }
    const awaited entry = {.len = (uint32_t)(out - begin), .token = counted, .kind = COMMAND_CHECKS};
    if (counted > 0 && !hmq_log_add(e, l, &entry)) {
        l->asked.len -= sent * sizeof(check_due);
        return false;
    }
    hmq_bytes_drop(&l->checks, taken * sizeof(check_due));
    return true;
}

void hmq_checks_send(hmq_engine *e, engine_link *l) {
    while (l->up && l->checks.len > 0 && send_some(e, l)) continue;
}

void hmq_checks_lost(hmq_engine *e, hmq_bytes *checks) {
    connection *c;
    uint64_t number;
    for (size_t i = 0; i < checks->len / sizeof(check_due); i++) {
        crossing *x = hmq_checks_find(e, checks, i, &c, &number);
        if (x == NULL) continue;
        x->is_checking = false;
        c->lane->under_way--;
        hmq_lane_disturb(e, c);
    }
    hmq_bytes_clear(checks);
}
