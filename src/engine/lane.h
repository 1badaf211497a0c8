/* lane.h - a publisher's publishes that cross the nodes of a cluster: the line that keeps their order.
 *
 * Each file may use the files listed below it, and none above it:
 *
 *      engine/crossing_replies.c  takes replies to visits and checks, refusals and losses
 *      engine/crossing_confirm.c  notes the visits that replicas have not confirmed
 *      engine/crossing.c          keeps the order of each publisher: what begins, what is complete, what waits
 *      engine/checks.c            asks the publisher's node which slots have subscribers
 *      engine/visits.c            sends a publish to the nodes of its slots
 *      engine/blocked.c           the slots that a node refuses until ROUTE.RESUME
 *      engine/lane.h              the line, and ranges of slots
 *
 *      line     | 4 complete | 5 visits under way | 6 check under way | 7 not begun | 8 |     of one publisher
 *                 ▲ first                                               ▲ begun
 *
 * A publish in the line owns its command.  It is begun with an answer (engine/routes.c): visits go to the links of the
 * answer's slots, and its check to the publisher's link.  Each reply to a visit says which slots did not take it: these are
 * `left`.  It is complete when it is checked and nothing is left, under way or unconfirmed.  It leaves the line after all
 * before it.
 *
 * Invariants: those of "publishes over a cluster" in engine/engine.h.
 *  1. `begun` publishes at the front of the line have been sent; all others have not, except for their first check.
 *  2. A slot of a publish is under way, or in `left`, or took it, or QoS 0 has no further right to it. */
#ifndef HMQ_ENGINE_LANE_H
#define HMQ_ENGINE_LANE_H

#include "engine/internal.h"

typedef struct crossing {
    awaited entry; /* of the client's packet; len: of `command` */
    route_answer *by; /* by which it is sent; NULL: by none yet */
    uint64_t started_at; /* answers with a larger serial are later than its beginning */
    int64_t reached;
    hmq_bytes left; /* slot_range: slots that it is to be sent to */
    hmq_bytes sent; /* slot_range: slots that it was sent to by other answers than `by`, or before it was begun */
    hmq_bytes unconfirmed; /* unconfirmed_visits: which replicas have not confirmed */
    uint32_t under_way; /* visits without a reply */
    uint32_t words; /* of the command */
    uint32_t head; /* bytes before the first word */
    uint32_t topic_at; /* in the command */
    uint32_t payload_len;
    uint16_t topic_len;
    uint8_t refusal; /* reason code of 5.0: it was given up; 0: not */
    uint8_t losses;
    bool is_denied, is_begun, is_checking, is_checked, is_dropped;
    bool is_retry; /* some slot gets it again */
    bool needs_new_answer; /* its answer is over */
    bool writes_first; /* its retained message is not written yet */
    uint8_t command[];
} crossing;

/* A visit that was taken; the ranges of its slots follow. */
typedef struct unconfirmed_visit {
    uint32_t link, count;
} unconfirmed_visit;

typedef struct lane {
    hmq_bytes line; /* crossing * */
    uint64_t first; /* number of the first one */
    uint32_t begun; /* of those in the line */
    uint32_t under_way; /* visits and checks without a reply */
    size_t bytes;
    bool is_disturbed, waits_for_routes;
    bool says_retry; /* the visits that are put now say that no earlier one is under way */
    uint32_t waits_for_link; /* whose routes */
    uint64_t unconfirmed[HMQ_MOST_LINKS / 64]; /* links with unconfirmed visits, whose `crossed` has the connection */
    bool repeats_any;
    uint64_t
        repeats[HMQ_MOST_LINKS / 64]; /* links on which a publish was refused as a whole: later ones go there again */
} lane;

typedef struct check_due {
    hmq_conn conn;
    uint64_t number;
    bool shares; /* once sent: the reply to the check before it is also the reply to this one */
} check_due;

static inline uint32_t hmq_lane_count(const lane *n) {
    return (uint32_t)(n->line.len / sizeof(crossing *));
}

static inline crossing *hmq_lane_at(const lane *n, uint32_t index) {
    crossing *x;
    memcpy(&x, hmq_bytes_at(&n->line) + index * sizeof(crossing *), sizeof(crossing *));
    return x;
}

/* NULL: it has left the line. */
static inline crossing *hmq_lane_find(const connection *c, uint64_t number) {
    const lane *n = c->lane;
    return n == NULL || number < n->first || number - n->first >= hmq_lane_count(n)
               ? NULL
               : hmq_lane_at(n, (uint32_t)(number - n->first));
}

static inline hmq_slice hmq_crossing_topic(const crossing *x) {
    return (hmq_slice){x->command + x->topic_at, x->topic_len};
}

static inline size_t hmq_crossing_size(const crossing *x) {
    return sizeof *x + x->entry.len;
}

static inline void hmq_lane_disturb(hmq_engine *e, connection *c) {
    c->lane->is_disturbed = true;
    hmq_engine_schedule_wake(e, c);
}

/* ---- unconfirmed visits ---- */

/* Takes the visit at this place of the notes, and steps over it. */
static inline const slot_range *hmq_crossing_next_unconfirmed(const crossing *x, size_t *at, unconfirmed_visit *visit) {
    const uint8_t *begin = hmq_bytes_at(&x->unconfirmed) + *at;
    memcpy(visit, begin, sizeof *visit);
    *at += sizeof *visit + visit->count * sizeof(slot_range);
    return (const slot_range *)(const void *)(begin + sizeof *visit);
}

/* One that is confirmed, lost, or of no interest any more. */
static inline void hmq_crossing_settle_unconfirmed(hmq_engine *e, uint32_t link) {
    hmq_assert(e->held > 0 && e->links[link].held > 0);
    e->held--;
    e->links[link].held--;
}

static inline void hmq_crossing_forget_unconfirmed(hmq_engine *e, crossing *x) {
    unconfirmed_visit visit;
    for (size_t at = 0; at < x->unconfirmed.len;) {
        hmq_crossing_next_unconfirmed(x, &at, &visit);
        hmq_crossing_settle_unconfirmed(e, visit.link);
    }
    hmq_bytes_free(&e->allocator, &x->unconfirmed);
}

/* ---- ranges of slots ---- */

static inline bool hmq_crossing_add_range(hmq_engine *e, hmq_bytes *ranges, uint32_t first, uint32_t last) {
    const slot_range range = {(uint16_t)first, (uint16_t)last};
    return hmq_bytes_append(&e->allocator, ranges, &range, sizeof range);
}

static inline const slot_range *hmq_crossing_ranges(const hmq_bytes *bytes, size_t *count) {
    *count = bytes->len / sizeof(slot_range);
    return *count == 0 ? NULL : (const slot_range *)(const void *)hmq_bytes_at(bytes);
}

#endif
