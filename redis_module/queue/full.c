/* full.c - counts and logs dropped messages of full queues, and refuses publishes. */
#include "queue/full.h"

#include <string.h>

#include "server/errors.h"
#include "server/session_keys.h"
#include "queue/notes.h"

#define SAVE_EVERY_MS 1000
/* Names in the log, of all sessions together. */
#define LOGGED_MOST 10
#define LOGGED_EVERY_MS 10000

/* ---- dropping ---------------------------------------------------------------------------------------------- */

/* False: the log has enough names at present, and gets this one later. */
static bool log_once(queue *q, const session_facts *facts) {
    static long long begun_ms;
    static unsigned logged;
    long long now_ms = sv.Milliseconds();
    if (now_ms - begun_ms >= LOGGED_EVERY_MS) begun_ms = now_ms, logged = 0;
    if (logged++ >= LOGGED_MOST) return false;
    sv.Log(q->ctx, "warning",
           "the queue of the session %s is full with %zu messages: overflow is %s, so messages are dropped; "
           "SESSION.INFO counts them; logged once per session",
           shown_slice(q->session), queue_length(q), overflow_name(overflow_of_session(facts)));
    return true;
}

void overflow_note(queue *q, const session_facts *facts, size_t dropped) {
    queue_note *note = queue_note_make(q);
    long long now_ms = sv.Milliseconds();
    if (note->saved != facts->dropped) note->dropped = 0, note->is_logged = false, note->saved_ms = 0;
    note->saved = facts->dropped;
    note->is_logged = note->is_logged || log_once(q, facts);
    note->dropped += dropped;
    if (!facts->opened || now_ms - note->saved_ms < SAVE_EVERY_MS) return;
    note->saved_ms = now_ms;
    note->saved = facts->dropped + note->dropped;
    note->dropped = 0;
    session_fact_write(q->ctx, q->session, "dropped", note->saved, SERVER_NO_EXPIRE);
}

long long overflow_dropped(queue *q, const session_facts *facts) {
    const queue_note *note = queue_note_find(q);
    bool is_same_session = note != NULL && note->saved == facts->dropped;
    return (long long)facts->dropped + (is_same_session ? (long long)note->dropped : 0);
}

/* ---- refusing ---------------------------------------------------------------------------------------------- */

int overflow_refuse(server_ctx *ctx, hmq_slice session, overflow policy) {
    if (policy == OVERFLOW_WAIT) {
        counters.queue_full_delayed++;
        return reply_error(ctx, ERROR_QUEUE_WAITS, shown_slice(session));
    }
    counters.queue_full_refused++;
    return reply_error(ctx, ERROR_QUEUE_REFUSES, shown_slice(session));
}
