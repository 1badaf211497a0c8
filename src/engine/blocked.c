/* blocked.c - the slots that a node refuses on a link until ROUTE.RESUME.
 *
 * Invariant: `blocked_count` of a link is the number of its slots whose entry in `blocked` is not 0; `blocked` of the engine
 * is their sum over all links. */
#include "engine/blocked.h"

bool hmq_blocked_add(hmq_engine *e, engine_link *l, uint32_t slot) {
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

void hmq_blocked_clear(hmq_engine *e, engine_link *l) {
    e->blocked -= l->blocked_count;
    l->blocked_count = 0;
    if (l->blocked != NULL) e->allocator.release(l->blocked);
    l->blocked = NULL;
}

bool hmq_blocked_resume(hmq_engine *e, engine_link *l, const slot_range *ranges, size_t count) {
    uint32_t slots = 0;
    for (size_t i = 0; i < count; i++)
        for (uint32_t slot = ranges[i].first; slot <= ranges[i].last; slot++) slots += hmq_blocked_has(l, slot);
    if (slots == 0) return true;
    uint8_t *begin = hmq_log_room(e, l, 64 + (size_t)slots * 16);
    if (begin == NULL) return false;
    uint8_t *out = hmq_resp_put_header(begin, '*', slots + 1);
    out = hmq_resp_put_text(out, "ROUTE.RESUME", 12);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t slot = ranges[i].first; slot <= ranges[i].last; slot++)
            if (hmq_blocked_has(l, slot)) out = hmq_resp_put_number(out, slot);
    }
    const awaited entry = {.len = (uint32_t)(out - begin), .kind = COMMAND_RESUME};
    if (!hmq_log_add(e, l, &entry)) return false;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t slot = ranges[i].first; slot <= ranges[i].last; slot++)
            if (hmq_blocked_has(l, slot)) unblock(e, l, slot);
    }
    return true;
}
