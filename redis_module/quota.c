/* quota.c - how much there may be of what clients make. */
#include "quota.h"

#include "errors.h"
#include "retained.h"

bool quota_allows_session(server_ctx *ctx, hmq_slice session) {
    size_t count = session_index_count(index_of(ctx)->opened);
    if (settings.max_sessions == 0 || count < (size_t)settings.max_sessions) return true;
    if (session_index_find(index_of(ctx)->opened, session) != NULL) return true; /* it is counted already */
    counters.sessions_refused++;
    reply_error(ctx, ERROR_QUOTA, "the session %s would be one too many: there are %zu, holdmq.max-sessions is %lld",
                shown_slice(session), count, settings.max_sessions);
    return false;
}

bool quota_allows_retained(server_ctx *ctx, const index_t *index, hmq_slice topic, bool reply) {
    size_t count = sv.DictSize(index->retained_keys);
    if (settings.max_retained == 0 || count < (size_t)settings.max_retained) return true;
    if (retained_is_known(index, topic)) return true;
    counters.retained_refused++;
    if (reply)
        reply_error(ctx, ERROR_QUOTA,
                    "the retained message of %s would be one too many: there are %zu, holdmq.max-retained is %lld",
                    shown_slice(topic), count, settings.max_retained);
    return false;
}
