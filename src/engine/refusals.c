/* refusals.c - which refusals of the server are temporary, and the pauses after them. */
#include "engine/internal.h"

/* Codes of temporary errors: the same command may succeed a little later. */
static const char *const temporary_codes[] = {"OOM",        "READONLY",   "LOADING",     "MISCONF",
                                              "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN",
                                              "BUSY",       "QUOTA",      "QUEUEFULL"};
#define TEMPORARY_CODES (sizeof temporary_codes / sizeof temporary_codes[0])
_Static_assert(sizeof((hmq_engine_counters){0}.refusals) == (TEMPORARY_CODES + 1) * sizeof(uint64_t),
               "one for each, and others");

const char *hmq_engine_refusal_code(size_t index) {
    return index < TEMPORARY_CODES ? temporary_codes[index] : index == TEMPORARY_CODES ? "other" : NULL;
}

/* The index of the error's code; TEMPORARY_CODES for all other codes. */
size_t hmq_refusal_index(hmq_slice error) {
    size_t i = 0;
    while (i < TEMPORARY_CODES && !hmq_error_begins(error, temporary_codes[i])) i++;
    return i;
}

/* Another node has the session's slot (MOVED), or is about to get it (ASK).  The owner learns it by REFUSED, and moves the
 * session to another link.  With one link no session moves. */
static bool is_elsewhere(const hmq_engine *e, hmq_slice error) {
    return e->link_count > 1 && (hmq_error_begins(error, "MOVED") || hmq_error_begins(error, "ASK"));
}

/* What feeding a node, or another answer, ends. */
static bool is_about_routes(const hmq_engine *e, hmq_slice error) {
    static const char *const codes[] = {"NOROUTES", "UNKNOWN", "NOHOME", "STALEHOME", "REFUSED"};
    for (size_t i = 0; e->settings.cluster != 0 && i < sizeof codes / sizeof codes[0]; i++)
        if (hmq_error_begins(error, codes[i])) return true;
    return false;
}

bool hmq_refusal_is_temporary(const hmq_engine *e, hmq_slice error) {
    return hmq_refusal_index(error) < TEMPORARY_CODES || is_elsewhere(e, error) || is_about_routes(e, error);
}

bool hmq_refusal_is_answered_at_once(hmq_slice error) {
    return hmq_error_begins(error, "OOM") || hmq_error_begins(error, "QUOTA");
}

uint8_t hmq_refusal_reason(hmq_slice error) {
    if (hmq_refusal_is_answered_at_once(error) || hmq_error_begins(error, "QUEUEFULL")) return REASON_QUOTA;
    return hmq_error_begins(error, "NOPERM") ? REASON_NOT_AUTHORIZED : REASON_UNSPECIFIED;
}

#define RETRY_LEAST 4 /* publishes that are sent again first after QUEUEFULL */

void hmq_refusal_wait(hmq_engine *e, connection *c, retry *r, hmq_slice error) {
    const hmq_engine_settings *s = &e->settings;
    if (r->waits) return;
    uint64_t pause = r->pause_ms == 0 ? s->retry_first_ms : (uint64_t)r->pause_ms * 2;
    if (r->pause_ms == 0) r->since_ms = e->now_ms;
    r->pause_ms = (uint32_t)(pause < s->retry_most_ms ? pause : s->retry_most_ms);
    if (r->pause_ms == 0) r->pause_ms = 1;
    r->at_ms = e->now_ms + r->pause_ms;
    r->waits = true;
    if (hmq_error_begins(error, "QUEUEFULL")) r->most = RETRY_LEAST;
    hmq_engine_schedule_wake(e, c);
}

void hmq_refusal_pause(hmq_engine *e, connection *c, retry *r, hmq_slice error) {
    if (r->waits) return;
    hmq_refusal_wait(e, c, r, error);
    hmq_engine_raise(e, &(hmq_engine_event){.kind = HMQ_EVENT_REFUSED, .conn = c->handle, .bytes = error});
}

bool hmq_refusal_lasts_too_long(const hmq_engine *e, const retry *r) {
    return r->pause_ms != 0 && e->now_ms - r->since_ms > e->settings.retry_total_ms;
}
