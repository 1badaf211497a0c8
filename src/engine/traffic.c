/* traffic.c - measures how much each connection sent and received.
 *
 * The hot path only adds to counters in the connection.  The caller pays for everything else, one part of the connections
 * per call. */
#include "engine/internal.h"

static void describe(const connection *c, hmq_engine_traffic *row) {
    *row = (hmq_engine_traffic){
        .conn = c->handle,
        .received = c->traffic.received,
        .bytes_received = c->traffic.bytes_received,
        .sent = c->traffic.sent,
        .bytes_sent = c->traffic.bytes_sent,
        .inflight = c->inflight.unacknowledged,
        .ready = c->ready_count,
        .received_lately = c->traffic.received_lately,
        .sent_lately = c->traffic.sent_lately,
    };
}

/* What a client publishes counts first; what it is sent decides between equals. */
static uint64_t recent_rank(const hmq_engine_traffic *row) {
    return (uint64_t)row->received_lately << 32 | row->sent_lately;
}

/* Keeps the rows sorted by traffic, highest first; drops the last row if there is no room. */
static void insert(hmq_engine_traffic *loudest, uint32_t *count, uint32_t most, const hmq_engine_traffic *row) {
    uint32_t at = *count;
    if (at == most && recent_rank(row) <= recent_rank(&loudest[at - 1])) return;
    if (at == most) at--;
    for (; at > 0 && recent_rank(&loudest[at - 1]) < recent_rank(row); at--) loudest[at] = loudest[at - 1];
    loudest[at] = *row;
    if (*count < most) ++*count;
}

uint32_t hmq_engine_measure(hmq_engine *e, uint32_t from, uint32_t places, hmq_engine_traffic *loudest, uint32_t *count,
                            uint32_t most) {
    uint32_t end = e->slot_count - from < places ? e->slot_count : from + places;
    for (uint32_t i = from; i < end; i++) {
        connection *c = e->slots[i];
        if (c == NULL || c->phase != PHASE_OPEN || c->is_member) continue; /* a member counts with its client */
        hmq_engine_traffic row;
        c->traffic.received_lately = (uint32_t)(c->traffic.received - c->traffic.received_before);
        c->traffic.sent_lately = (uint32_t)(c->traffic.sent - c->traffic.sent_before);
        c->traffic.received_before = c->traffic.received;
        c->traffic.sent_before = c->traffic.sent;
        if (c->traffic.received_lately == 0 && c->traffic.sent_lately == 0) continue;
        describe(c, &row);
        insert(loudest, count, most, &row);
    }
    return end < e->slot_count ? end : 0;
}

uint32_t hmq_engine_list(const hmq_engine *e, uint32_t from, hmq_engine_traffic *rows, uint32_t *count, uint32_t most) {
    uint32_t at = from;
    *count = 0;
    for (; at < e->slot_count && *count < most; at++) {
        const connection *c = e->slots[at];
        if (c != NULL && c->phase == PHASE_OPEN && !c->is_member) describe(c, &rows[(*count)++]);
    }
    return at < e->slot_count ? at : 0;
}

bool hmq_engine_traffic_of(const hmq_engine *e, hmq_slice inbox, hmq_engine_traffic *row) {
    const connection *c = hmq_engine_find_inbox(e, inbox);
    if (c == NULL) return false;
    describe(c, row);
    return true;
}
