/* delivery.h - hands one message to one session: into its queue (QoS 1, 2) and to whoever listens on its inbox. */
#ifndef HMQ_DELIVERY_H
#define HMQ_DELIVERY_H

#include "topic/record.h"
#include "server/state.h"
#include "index/filters.h"

/* How one session gets it. */
typedef struct delivery_how {
    uint8_t qos;
    bool retain;
    const uint32_t *identifiers; /* of the subscriptions that match, as properties in front of the publisher's */
    size_t identifier_count;
    hmq_slice share; /* through this shared subscription; len 0: none */
    bool quietly;    /* only stored, not pushed to the inbox */
    bool in_steps;   /* a part of a publish that is delivered in steps (routing/fan_out.h) */
} delivery_how;

/* A message on its way to any number of sessions: encoded once for each QoS and retain flag with which it is delivered,
 * and shared by all sessions that get it so.  With identifiers, or through a share, the last form is remembered. */
typedef struct message {
    hmq_record record;            /* as published */
    server_string *encoded[3][2]; /* by QoS and retain flag of the delivery; NULL: not needed yet */
    server_string *special;       /* the last with identifiers or a share, NULL: none */
    uint8_t special_qos;
    bool special_retain;
    server_string *special_mark;  /* its identifiers, as properties, and the share */
    long long expire_ms;          /* when it leaves a queue */
} message;

/* The record must outlive the message. */
void message_begin(message *m, const hmq_record *record, long long now_ms);
void message_end(message *m);

/* True if it was stored, or somebody heard it. */
bool deliver(server_ctx *ctx, const indexed_session *session, message *m, const delivery_how *how);

/* ---- routing/gather.c: what several publishes of one command have for the same session is handed over together ---- */

/* Notes the delivery; *reached is raised when it is handed over, if it was stored or somebody heard it.  Until then the
 * sessions of the index are pinned, and nothing else may be done to a queue. */
void gather(server_ctx *ctx, index_t *index, indexed_session *session, message *m, const delivery_how *how,
            long long *reached);
/* Hands over all that was noted: to each session in the order in which it was. */
void gather_settle(server_ctx *ctx);

#endif
