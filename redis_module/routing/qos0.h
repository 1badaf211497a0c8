/* qos0.h - messages of QoS 0 that are pending in the queue of their session, because its link or its client is slower
 * than the messages.
 *
 *     {c}_session   field qos0_until   serial: no later entry has QoS 0; missing: the queue has none
 *
 *      delivery ──fits the link, no QoS 0 is pending──► pushed, not stored
 *         └──else──► an entry of the queue, whose record has QoS 0; acknowledged by the bridge that handed it to the client
 *
 * While a message of QoS 0 is pending, all later ones become pending, too, so that those of one topic keep their
 * order.
 *
 * Invariants:
 *  1. Only connected sessions get such entries.
 *  2. An entry of QoS 0 drops no other message from a queue: if the queue has no room, the entry itself is dropped.
 *  3. `qos0_until` runs ahead of the last entry, so that the hash is not written for each of them. */
#ifndef HMQ_QOS0_H
#define HMQ_QOS0_H

#include "index/filters.h"
#include "queue/queue.h"

/* Must a message of QoS 0 with this many bytes become pending?  If not, the bytes count as pushed.  One look at a
 * dictionary that is mostly empty. */
bool qos0_must_wait(server_ctx *ctx, const indexed_session *session, size_t bytes);

/* Puts it into the queue.  False if the session is not connected, or the queue takes no more. */
bool qos0_store(server_ctx *ctx, hmq_slice session, queue_item *item);

/* An entry of QoS 0 with this serial was added to the queue. */
void qos0_note(server_ctx *ctx, hmq_slice session, uint64_t serial);

/* Messages were removed from the queue: if none of QoS 0 is left, the session's hash says so. */
void qos0_removed(queue *q);

#endif
