/* judging.h - a publish that a queue may refuse, and whose sessions are not found in one step: its queues are judged in steps,
 * before anything is stored.
 *
 *     TOPIC.PUBLISH ──► QUEUEFULL, send it again      end of each turn: finds some sessions, judges their queues
 *     TOPIC.PUBLISH ──► QUEUEFULL, send it again      ...
 *     TOPIC.PUBLISH ──► all have room: it is delivered in steps (routing/fan_out.h)
 *                       one refuses: QUOTA; one waits: QUEUEFULL
 *
 * The answer depends on all queues, and a command in a TOPIC.PIPELINE, a transaction or a script cannot be answered later.  So
 * the publisher sends again, as it does for every temporary refusal.  What is judged is known by publisher and topic.
 *
 * Invariants:
 *  1. Until the answer, the room is kept: publishes that are judged later, and those that are judged in their own step, leave it
 *     (routing/fan_out_ahead.h).
 *  2. A publish that is not sent again keeps it for JUDGING_KEPT_MS; a client that publishes to another topic gives it up at once.
 *  3. A user has a bounded number of them.  One at a time is judged, in the order in which they began.
 *
 * The sessions are those that subscribed when the publish was sent first.  One that subscribes since may get the message (then
 * its queue is not judged), and one that unsubscribes may not. */
#ifndef HMQ_JUDGING_H
#define HMQ_JUDGING_H

#include "routing/fan_out_pending.h"

typedef enum judging_answer {
    JUDGING_ROOM, /* all have room: the publish is to be stored in this step */
    JUDGING_LATER, /* ask again; QUEUEFULL was replied */
    JUDGING_REFUSED, /* QUOTA or QUEUEFULL was replied */
} judging_answer;
judging_answer judging_ask(server_ctx *ctx, index_t *index, const hmq_record *record);

/* The client publishes something else, or this publish could be judged in its step. */
void judging_forget(const index_t *index, const hmq_record *record);

bool judging_is_under_way(const fan_outs *all);
/* A part of a millisecond. */
void judging_step(server_ctx *ctx, index_t *index);

#endif
