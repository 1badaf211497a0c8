/* delivery_parts.h - what the files of delivery (delivery*.c) share, and nobody else needs. */
#ifndef HMQ_DELIVERY_PARTS_H
#define HMQ_DELIVERY_PARTS_H

#include "index/filters.h"
#include "queue/queue.h"
#include "routing/delivery.h"

/* The record with QoS, retain flag and identifiers of the delivery, as whoever fetches it has to send it.  Belongs to the
 * message. */
server_string *delivery_encoded(message *m, const delivery_how *how);

/* Will the delivery be stored?  False also if nobody may get it: *nobody. */
bool delivery_is_stored(server_ctx *ctx, const indexed_session *session, const message *m, const delivery_how *how,
                        bool *nobody);

/* Into the session's queue.  False, with packet identifier 0, if its keys hold something else, or it is full of messages
 * in flight: that session cannot be served, the others can.  A message of a share may go to another member, and is not
 * dropped by one that refuses it. */
bool delivery_store(server_ctx *ctx, const indexed_session *session, queue_item *item, bool may_go_elsewhere);
/* The item was to be stored: counts what became of it; true if it was. */
bool delivery_count(const queue_item *item);

/* To whoever listens on the session's inbox; true if somebody does. */
bool delivery_push(server_ctx *ctx, const indexed_session *session, const server_string *value,
                   const hmq_delivery *delivery);

/* A message of QoS 0: pushed, or put into the queue if it cannot be now (routing/qos0.h). */
bool delivery_qos0(server_ctx *ctx, const indexed_session *session, server_string *value, bool retain,
                   long long expire_ms);

/* What is pushed of an item that was stored. */
hmq_delivery delivery_of(const queue_item *item, uint8_t qos, bool retain);

#endif
