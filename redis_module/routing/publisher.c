/* publisher.c - checks whether a publisher may publish, and whether the message is a repetition. */
#include "routing/publisher.h"

#include "server/errors.h"
#include "server/session_keys.h"
#include "server/slots.h"
#include "index/session_fence.h"
#include "queue/received.h"

/* In a cluster only the node of the session has it. */
static bool is_here(server_ctx *ctx, hmq_slice session) {
    unsigned slot = slots_of_key(session);
    if (slots_state(slot) != SLOT_ELSEWHERE) return slots_check_session(ctx, session);
    return slots_reply_elsewhere(ctx, slot);
}

publisher_verdict publisher_judge(server_ctx *ctx, publisher *from, long long qos) {
    if (from->epoch == 0 && from->packet_id == 0) return PUBLISHER_MAY;
    if (from->client_id.len == 0) {
        reply_error(ctx, ERROR_PUBLISHER_MISSING);
        return PUBLISHER_REFUSED;
    }
    if (from->packet_id != 0 && qos != 2) {
        reply_error(ctx, ERROR_PACKET_NEEDS_QOS2, qos);
        return PUBLISHER_REFUSED;
    }
    from->session = session_key_of(from->client_id);
    hmq_slice session = slice_of(from->session);
    if (!is_here(ctx, session)) return PUBLISHER_REFUSED;
    if (!session_require_epoch(ctx, session, from->epoch)) return PUBLISHER_REFUSED;
    if (from->packet_id == 0) return PUBLISHER_MAY;
    switch (qos2_find_received(ctx, session, (uint16_t)from->packet_id)) {
    case QOS2_NEW: return PUBLISHER_MAY;
    case QOS2_RECEIVED: return PUBLISHER_REPEATS;
    case QOS2_WRONG_TYPE: break;
    }
    return PUBLISHER_REFUSED;
}

void publisher_note(server_ctx *ctx, const publisher *from) {
    if (from->packet_id != 0) qos2_mark_received(ctx, slice_of(from->session), (uint16_t)from->packet_id);
}

void publisher_end(publisher *from) {
    if (from->session != NULL) sv.FreeString(NULL, from->session);
    from->session = NULL;
}
