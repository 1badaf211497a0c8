/* places.c - how many messages that were sent may be in the session's queue (invariant 3 of engine.h).
 *
 *      narrow: `window`      ── a message waits, only for acknowledgements on their way ──►  wide: `most_places`
 *                            ◄────────────── not needed for WIDE_MS ───────────────────
 *
 * If this process is killed, that many messages of the queue, the oldest, may have been sent, and the server marks them
 * with DUP.  So a low number is better, but a client that acknowledges faster than the server replies needs more than its
 * window.
 *
 * Invariant: the server knows `places` or a higher number, except while it is told again after a loss.  A higher number
 * is sent to the server before more messages are sent, a lower one after fewer are allowed. */
#include "engine/internal.h"

#define WIDE_MS 10000 /* at least: otherwise there would be two commands for each burst */
#define MOST_LOOKS 4U /* of a flush */

void hmq_places_wait(hmq_engine *e, connection *c) {
    bool waits = c->inflight.unacknowledged < c->window && c->inflight.count >= c->places;
    if (!waits || c->widens || c->places >= c->most_places) return;
    c->widens = c->window_due = true;
    hmq_engine_schedule_flush(e, c);
}

void hmq_places_used(hmq_engine *e, connection *c) {
    if (c->inflight.count <= c->window || c->most_places == UINT32_MAX) return;
    c->crowded_ms = e->now_ms;
    hmq_engine_list_add(e, &e->wide, c->handle, &c->in_wide);
}

void hmq_places_announced(hmq_engine *e, connection *c, uint16_t places, bool done) {
    if (places == 0) return;
    c->window_due |= !done;
    if (!done || !c->widens || places != c->most_places) return;
    c->widens = false;
    c->places = places;
    c->crowded_ms = e->now_ms;
    hmq_engine_list_add(e, &e->wide, c->handle, &c->in_wide);
}

void hmq_places_lost(connection *c) {
    c->widens = false;
    c->window_due = c->places > c->window && c->places < UINT32_MAX; /* it may return with an older state */
}

static bool may_narrow(const hmq_engine *e, const connection *c) {
    int64_t quiet_ms = e->now_ms - c->crowded_ms;
    return c->link->up && c->inflight.count <= c->window && (quiet_ms >= WIDE_MS || quiet_ms < 0);
}

void hmq_places_narrow_idle(hmq_engine *e) {
    hmq_conn conn;
    size_t listed = e->wide.bytes.len / sizeof conn;
    for (size_t left = listed < MOST_LOOKS ? listed : MOST_LOOKS; left > 0; left--) {
        hmq_engine_list_pop(&e->wide, &conn);
        connection *c = hmq_engine_find(e, conn);
        if (c == NULL) continue;
        c->in_wide = false;
        if (!may_narrow(e, c)) {
            hmq_engine_list_add(e, &e->wide, conn, &c->in_wide);
            continue;
        }
        c->places = c->window;
        c->window_due = true;
        hmq_engine_schedule_flush(e, c);
    }
}
