/* delivery_parts.h - the steps of a delivery, shared by the files that deliver messages themselves. */
#ifndef HMQ_DELIVERY_PARTS_H
#define HMQ_DELIVERY_PARTS_H

#include "index/filters.h"
#include "queue/queue.h"
#include "routing/delivery.h"

/* The record with QoS, retain flag and identifiers of the delivery, as the bridge must send it.  The message owns it. */
server_string *delivery_encoded(message *m, const delivery_how *how);

/* Will the delivery be stored?  If it may not be delivered at all, the result is false and *nobody is true. */
bool delivery_is_stored(server_ctx *ctx, const indexed_session *session, const message *m, const delivery_how *how,
                        bool *nobody);

/* Stores the item in the session's queue.  False, with packet identifier 0, if its keys have other types or the queue is
 * full of messages in flight; other sessions are not affected.  `may_go_elsewhere`: the message of a share may go to
 * another member, so a queue that refuses it does not count it as dropped. */
bool delivery_store(server_ctx *ctx, const indexed_session *session, queue_item *item, bool may_go_elsewhere);
/* Counts the outcome of storing an item; true if it was stored. */
bool delivery_count(const queue_item *item);

/* Pushes to the listeners on the session's inbox; true if there is one. */
bool delivery_push(server_ctx *ctx, const indexed_session *session, const server_string *value,
                   const hmq_delivery *delivery);

/* Pushes a message of QoS 0, or queues it if it cannot be pushed now (routing/qos0.h). */
bool delivery_qos0(server_ctx *ctx, const indexed_session *session, server_string *value, bool retain,
                   long long expire_ms);

/* The push for a stored item. */
hmq_delivery delivery_of(const queue_item *item, uint8_t qos, bool retain);

#endif
