/* delivery.h - hands one message to one session: into its queue (QoS 1, 2) and to whoever listens on its inbox. */
#ifndef HMQ_DELIVERY_H
#define HMQ_DELIVERY_H

#include "../src/record.h"
#include "index.h"
#include "module.h"

/* A message on its way to any number of sessions: encoded once, shared by all. */
typedef struct message {
    hmq_record record;
    server_string *stored;  /* the encoded record */
    long long expire_ms;    /* when it leaves a queue */
} message;

/* Encodes the record.  `expire_ms` 0: after the default time to live. */
void message_begin(message *m, const hmq_record *record, long long now_ms);
void message_end(message *m);

/* QoS and retain flag are those of this delivery.  True if it was stored, or somebody heard it. */
bool deliver(server_ctx *ctx, const indexed_session *session, const message *m, uint8_t qos, bool retain);

#endif
