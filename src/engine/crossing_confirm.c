/* crossing_confirm.c - withholds the answers to publishes that cross nodes until replicas have confirmed each visit.
 *
 *      link A   visit of 5 | visit of 6 | WAIT      replies: taken, taken, 1     5 waits for link B, 6 for 5
 *      link B   visit of 5 | WAIT                   replies: taken, 0            B's replicas are asked again
 *
 * The WAITs are those of engine/confirm.c.  The reply to a WAIT follows those to all earlier commands of its link: if enough
 * replicas have confirmed, all visits that are noted for the link are done.
 *
 * Invariants
 *  1. With wait_replicas, a publish with QoS 1 or 2 has a note of each visit that was taken, until it is confirmed or lost.
 *  2. While a link has notes, a WAIT is under way or due there.
 *  3. The slots of a lost note are sent to again, and the publish is checked again: a session may have come meanwhile.
 *
 * Memory: 8 bytes for each visit and 4 for each range of its slots. */
#include "engine/crossing_confirm.h"
#include "engine/crossing.h"
#include "engine/visits.h"

/* ---- notes ---- */

typedef struct noting {
    hmq_engine *e;
    crossing *x;
    const hmq_slot_set *refused; /* NULL: none was */
    uint32_t count;
    bool lacks_memory;
} noting;

static void note(noting *n, uint32_t first, uint32_t last) {
    n->lacks_memory |= !hmq_crossing_add_range(n->e, &n->x->unconfirmed, first, last);
    n->count++;
}

static void note_named(void *context, uint32_t first, uint32_t last) {
    noting *n = context;
    if (n->refused == NULL) {
        note(n, first, last);
        return;
    }
    for (uint32_t slot = first; slot <= last; slot++)
        if (!hmq_slot_set_has(n->refused, slot)) note(n, slot, slot);
}

/* The reply is valid: [reached, [[first, last, reason] ...]].  False: no slot was refused. */
static bool read_refused(hmq_slice reply, hmq_slot_set *refused) {
    size_t from = 0;
    hmq_resp_item item, first, last;
    for (int i = 0; i < 3; i++) hmq_resp_next(reply.data, reply.len, &from, &item); /* head, reached, list */
    const int64_t count = item.number;
    if (count > 0) *refused = (hmq_slot_set){{0}};
    for (int64_t i = 0; i < count; i++) {
        hmq_resp_next(reply.data, reply.len, &from, &item);
        hmq_resp_next(reply.data, reply.len, &from, &first);
        hmq_resp_next(reply.data, reply.len, &from, &last);
        hmq_resp_next(reply.data, reply.len, &from, &item);
        hmq_slot_set_add(refused, (unsigned)first.number, (unsigned)last.number);
    }
    return count > 0;
}

static void join(hmq_engine *e, connection *c, engine_link *l) {
    uint64_t *word = &c->lane->unconfirmed[l->number / 64];
    const uint64_t bit = 1ULL << (l->number % 64);
    bool is_listed = (*word & bit) != 0;
    hmq_engine_list_add(e, &l->crossed, c->handle, &is_listed);
    if (is_listed)
        *word |= bit;
    else
        hmq_engine_no_memory(e, c);
}

void hmq_crossing_taken(hmq_engine *e, connection *c, crossing *x, engine_link *l, hmq_slice reply) {
    if (e->settings.wait_replicas == 0 || x->entry.qos == 0 || x->refusal != 0 || c->phase != PHASE_OPEN) return;
    const hmq_slice command = hmq_log_head_command(l);
    const size_t begin = x->unconfirmed.len;
    hmq_slot_set refused;
    noting n = {.e = e, .x = x, .refused = read_refused(reply, &refused) ? &refused : NULL};
    unconfirmed_visit visit = {.link = l->number};
    n.lacks_memory = !hmq_bytes_append(&e->allocator, &x->unconfirmed, &visit, sizeof visit);
    if (!n.lacks_memory) hmq_visits_each_slot(command.data, command.len, x->words, note_named, &n);
    if (n.lacks_memory || n.count == 0) {
        x->unconfirmed.len = begin;
        if (n.lacks_memory) hmq_engine_no_memory(e, c);
        return;
    }
    visit.count = n.count;
    memcpy(hmq_bytes_at(&x->unconfirmed) + begin, &visit, sizeof visit);
    e->held++;
    l->held++;
    join(e, c, l);
}

/* Drops the notes of a link.  With `to`, their slots become `left`.  False: no memory. */
static bool drop_notes(hmq_engine *e, crossing *x, const engine_link *l, hmq_bytes *to) {
    hmq_bytes kept = {0};
    bool fits = true;
    for (size_t at = 0; at < x->unconfirmed.len;) {
        unconfirmed_visit visit;
        const size_t begin = at;
        const slot_range *ranges = hmq_crossing_next_unconfirmed(x, &at, &visit);
        if (visit.link != l->number) {
            fits &= hmq_bytes_append(&e->allocator, &kept, hmq_bytes_at(&x->unconfirmed) + begin, at - begin);
            continue;
        }
        hmq_crossing_settle_unconfirmed(e, visit.link);
        if (to != NULL) fits &= hmq_bytes_append(&e->allocator, to, ranges, visit.count * sizeof *ranges);
    }
    if (!fits) {
        hmq_bytes_free(&e->allocator, &kept);
        return false;
    }
    hmq_bytes_free(&e->allocator, &x->unconfirmed);
    x->unconfirmed = kept;
    return true;
}

/* ---- the reply to a WAIT, and its loss ---- */

static connection *next_crossed(hmq_engine *e, const engine_link *l, conn_list *list) {
    hmq_conn conn;
    while (hmq_engine_list_pop(list, &conn)) {
        connection *c = hmq_engine_find(e, conn);
        if (c == NULL || c->lane == NULL || c->phase != PHASE_OPEN) continue;
        c->lane->unconfirmed[l->number / 64] &= ~(1ULL << (l->number % 64));
        return c;
    }
    return NULL;
}

void hmq_crossing_confirmed(hmq_engine *e, engine_link *l) {
    connection *c;
    conn_list confirmed = l->crossed;
    l->crossed = (conn_list){0};
    while ((c = next_crossed(e, l, &confirmed)) != NULL) {
        bool fits = true;
        for (uint32_t i = 0; i < c->lane->begun; i++) fits &= drop_notes(e, hmq_lane_at(c->lane, i), l, NULL);
        if (fits)
            hmq_crossing_proceed(e, c);
        else
            hmq_engine_no_memory(e, c);
    }
    hmq_bytes_free(&e->allocator, &confirmed.bytes);
}

void hmq_crossing_unconfirmed_lost(hmq_engine *e, engine_link *l) {
    connection *c;
    while ((c = next_crossed(e, l, &l->crossed)) != NULL) {
        bool fits = true;
        for (uint32_t i = 0; i < c->lane->begun; i++) {
            crossing *x = hmq_lane_at(c->lane, i);
            const size_t before = x->unconfirmed.len;
            fits &= drop_notes(e, x, l, x->refusal == 0 ? &x->left : NULL);
            if (x->unconfirmed.len != before && x->refusal == 0) x->is_checked = false;
        }
        hmq_lane_disturb(e, c);
        if (!fits) hmq_engine_no_memory(e, c);
    }
}
