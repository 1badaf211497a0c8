/* fan_out_ahead.h - what is on its way to a queue: a queue that refuses has no room for more than it has and will get. */
#ifndef HMQ_FAN_OUT_AHEAD_H
#define HMQ_FAN_OUT_AHEAD_H

#include "index/filters.h"
#include "index/index.h"
#include "index/shares.h"
#include "queue/queue.h"
#include "routing/judging_pending.h"

/* What pending fan-outs, and publishes whose queues are being judged, may still put into a queue. */
typedef struct fan_out_ahead {
    const index_t *index;
    const judging *before; /* of those that are judged, only the ones before this one count; NULL: all */
    size_t looks; /* that are left: at filters, or at what is pending */
    size_t messages, bytes;
} fan_out_ahead;
void fan_out_ahead_begin(fan_out_ahead *ahead, const index_t *index, const judging *before);
/* May the queue of the session refuse messages? */
bool fan_out_ahead_may_refuse(const index_t *index, const indexed_session *session);
/* Has the queue of a session, or of a group, room for a message of this size after all of that?  When no looks
 * are left, everything that is pending counts. */
queue_status fan_out_ahead_judge(fan_out_ahead *ahead, server_ctx *ctx, const indexed_session *session, size_t bytes);
queue_status fan_out_ahead_judge_group(fan_out_ahead *ahead, server_ctx *ctx, const share *group, size_t bytes);

#endif
