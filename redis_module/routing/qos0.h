/* qos0.h - messages of QoS 0 that wait in the queue of their session, because its link or its client is slower than they
 * come.
 *
 *     {c}_session   field qos0_until   serial: no entry behind it has QoS 0; not there: the queue has none
 *
 *      delivery ──fits the link, nothing of QoS 0 waits──► pushed, not stored
 *         └──else──► an entry of the queue, whose record has QoS 0; whoever handed it to the client acknowledges it
 *
 * While a message of QoS 0 waits, all that follow wait, too: so those of one topic keep their order.
 *
 * Invariants:
 *  1. Only connected sessions get such entries.
 *  2. An entry of QoS 0 pushes no other message out of a queue: where the queue has no room it is dropped.
 *  3. `qos0_until` runs ahead of the last entry, so that the hash is not written for each of them. */
#ifndef HMQ_QOS0_H
#define HMQ_QOS0_H

#include "index/filters.h"
#include "queue/queue.h"

/* Must a message of QoS 0 and so many bytes wait in the session's queue?  If not, the bytes count as pushed.  One look at
 * a dictionary that is mostly empty. */
bool qos0_waits(server_ctx *ctx, const indexed_session *session, size_t bytes);

/* Puts it into the queue.  False if the session is not connected, or the queue takes no more. */
bool qos0_store(server_ctx *ctx, hmq_slice session, queue_item *item);

/* An entry of QoS 0 with this serial came to the queue. */
void qos0_note(server_ctx *ctx, hmq_slice session, uint64_t serial);

/* Messages were removed from the queue: if none of QoS 0 is left the session is told so. */
void qos0_removed(queue *q);

#endif
