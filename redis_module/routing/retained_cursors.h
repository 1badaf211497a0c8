/* retained_cursors.h - how far the retained messages of a subscription were handed over to its session.
 *
 *     {c}_cursors   HASH   filter:<filter>   <options> <number> <since ms> <topic>    handed over up to this topic
 *                          topic:<topic>     <number>    handed over ahead of the cursors up to this number
 *                          full              1           there were too many such topics
 *
 *      SESSION.SUBSCRIBE ──► cursor ──first page, in the same step──► complete: nothing is kept
 *                                └──else──► {c}_cursors ──SESSION.ACK, SESSION.FETCH: the queue is nearly empty──► next page
 *
 * The queue gets a page when most of the previous page is acknowledged.  So a session needs room for two pages,
 * however many messages there are.  Pages are handed over outside the limit of the queue.
 *
 * Invariants:
 *  1. A cursor moves in the step that puts messages into the queue: after a restart none is lost, and none of QoS 1
 *     and 2 is stored twice.
 *  2. Before a publish is routed to a session, the retained message of its topic is handed over if a cursor has not
 *     reached it yet, and the topic is noted.  So a later message never passes it, and a message that the publish
 *     retains is not handed over again.  Per session, RETAINED_AHEAD_MAX topics are noted.  Beyond that, nothing is
 *     handed over ahead: an older message that a publish replaced is not handed over, and one that was not replaced
 *     comes after what was published meanwhile.  A cursor then skips messages of QoS 1 and 2 that were retained after
 *     the subscription, because they were delivered live.
 *     If the publish is delivered in steps (routing/fan_out.h), this happens in the step that delivers it to the session.
 *     A cursor that reaches the topic meanwhile waits there: what is retained now may be newer than what is pending.
 *  3. The state in memory is a pure function of the hash.  A reader pins it (INDEX_CURSORS).
 *  4. An opened session is fed while it is connected.  Messages of QoS 0 are pending in its queue, too
 *     (routing/qos0.h).
 *
 * Not in a cluster: each node has a part of the retained messages, and the subscriber hands them over. */
#ifndef HMQ_RETAINED_CURSORS_H
#define HMQ_RETAINED_CURSORS_H

#include "topic/record.h"
#include "index/filters.h"
#include "index/subscription.h"

#define RETAINED_AHEAD_MAX 1000

/* The session subscribed to the filter: its retained messages will be handed over, from the first one. */
void retained_cursors_begin(server_ctx *ctx, hmq_slice session, hmq_slice filter, subscription options);
/* ... unsubscribed. */
void retained_cursors_end(server_ctx *ctx, hmq_slice session, hmq_slice filter);
/* The session is over, or begins again. */
void retained_cursors_drop(server_ctx *ctx, hmq_slice session);

/* Hands over the next page, if there is one and the queue is nearly empty.  The queue's keys are closed. */
void retained_cursors_feed(server_ctx *ctx, hmq_slice session);

/* The same at the end of this turn of the event loop, so that a long command does not take longer. */
void retained_cursors_feed_soon(server_ctx *ctx, hmq_slice session);

/* The message is about to be published to the session, with this QoS. */
void retained_cursors_before_delivery(server_ctx *ctx, index_t *index, const indexed_session *session,
                                      const hmq_record *record, uint8_t qos);

/* The same in a step of a fan-out, for subscriptions from before the publish.  `older`: what the topic had retained then;
 * without a topic: nothing. */
void retained_cursors_before_late_delivery(server_ctx *ctx, index_t *index, const indexed_session *session,
                                           const hmq_record *record, uint8_t qos, const hmq_record *older);
/* Has the session any? */
bool retained_cursors_has_any(const index_t *index, hmq_slice session);

/* After a page without messages, the next one is read in the next turn of the event loop. */
void retained_cursors_before_sleep(void);
bool retained_cursors_any_due(void);

/* ---- the index ---- */

/* The hash has changed, or is gone: reads it again. */
void retained_cursors_refresh(server_ctx *ctx, index_t *index, hmq_slice session);
void retained_cursors_free_all(server_dict *cursors);
/* Reports each difference: `differ` gets a sentence and the name. */
void retained_cursors_compare(server_dict *a, server_dict *b,
                              void (*differ)(void *context, const char *what, hmq_slice name), void *context);

extern const index_kind retained_cursors_kind;

#endif
