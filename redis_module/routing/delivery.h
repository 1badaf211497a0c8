/* delivery.h - delivers one message to one session: to its queue (QoS 1, 2) and to the listeners on its inbox. */
#ifndef HMQ_DELIVERY_H
#define HMQ_DELIVERY_H

#include "topic/record.h"
#include "server/state.h"
#include "index/filters.h"

/* The form in which one session gets a message. */
typedef struct delivery_how {
    uint8_t qos;
    bool retain;
    const uint32_t *identifiers; /* of the matching subscriptions; written before the publisher's properties */
    size_t identifier_count;
    hmq_slice share; /* the shared subscription that it is delivered through; len 0: none */
    bool quietly;    /* store only, without a push to the inbox */
    bool in_steps;   /* a part of a publish that is delivered in steps (routing/fan_out.h) */
} delivery_how;

/* A message for any number of sessions.  It is encoded once per QoS and retain flag, and all sessions with the same two share
 * the bytes.  Of the forms with identifiers or a share, only the last one is kept. */
typedef struct message {
    hmq_record record;            /* as published */
    server_string *encoded[3][2]; /* by QoS and retain flag of the delivery; NULL: not needed yet */
    server_string *special;       /* the last form with identifiers or a share; NULL: none */
    uint8_t special_qos;
    bool special_retain;
    server_string *special_mark;  /* its identifiers, as properties, and the share */
    long long expire_ms;          /* when it expires in a queue */
} message;

/* The record must outlive the message. */
void message_begin(message *m, const hmq_record *record, long long now_ms);
void message_end(message *m);

/* True if it was stored or a listener received it. */
bool deliver(server_ctx *ctx, const indexed_session *session, message *m, const delivery_how *how);

/* ---- routing/gather.c: delivers several publishes of one command to each session together ---- */

/* Notes the delivery for later.  *reached is increased by gather_settle if the message is stored or a listener receives it.
 * Until then the sessions of the index are pinned, and no other code may change a queue. */
void gather(server_ctx *ctx, index_t *index, indexed_session *session, message *m, const delivery_how *how,
            long long *reached);
/* Makes all noted deliveries; each session gets its messages in the order of the publishes. */
void gather_settle(server_ctx *ctx);

#endif
