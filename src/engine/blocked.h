/* blocked.h - the slots that a node refuses on a link until ROUTE.RESUME. */
#ifndef HMQ_ENGINE_BLOCKED_H
#define HMQ_ENGINE_BLOCKED_H

#include "engine/internal.h"

static inline bool hmq_blocked_has(const engine_link *l, uint32_t slot) {
    return l->blocked_count > 0 && l->blocked[slot] != 0;
}

/* Do visits that were sent before the slot was refused still wait for their replies? */
static inline bool hmq_blocked_is_pending(const engine_link *l, uint32_t slot) {
    return hmq_blocked_has(l, slot) && l->visits_answered < l->blocked[slot];
}

/* The node refuses the slot on this link until ROUTE.RESUME.  True: it did not before.  Without memory the slot is sent to again,
 * refused again, and so blocked later. */
bool hmq_blocked_add(hmq_engine *e, engine_link *l, uint32_t slot);
void hmq_blocked_clear(hmq_engine *e, engine_link *l);
/* Sends ROUTE.RESUME for those of these slots that are blocked.  False: no memory. */
bool hmq_blocked_resume(hmq_engine *e, engine_link *l, const slot_range *ranges, size_t count);

#endif
