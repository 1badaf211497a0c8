/* delivery.h - hands one message to one session: into its queue (QoS 1, 2) and to whoever listens on its inbox. */
#ifndef HMQ_DELIVERY_H
#define HMQ_DELIVERY_H

#include "../src/record.h"
#include "index.h"
#include "module.h"

/* A message on its way to any number of sessions: encoded once for each QoS and retain flag with which it is delivered,
 * and shared by all sessions that get it so. */
typedef struct message {
    hmq_record record;            /* as published */
    server_string *encoded[3][2]; /* by QoS and retain flag of the delivery; NULL: not needed yet */
    long long expire_ms;          /* when it leaves a queue */
} message;

/* The record must outlive the message. */
void message_begin(message *m, const hmq_record *record, long long now_ms);
void message_end(message *m);

/* QoS and retain flag are those of this delivery.  True if it was stored, or somebody heard it. */
bool deliver(server_ctx *ctx, const indexed_session *session, message *m, uint8_t qos, bool retain);

#endif
