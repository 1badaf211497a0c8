/* full.h - the effects of a full queue: messages are dropped, or publishes are refused (index/overflow.h). */
#ifndef HMQ_QUEUE_FULL_H
#define HMQ_QUEUE_FULL_H

#include "index/overflow.h"
#include "queue/queue.h"

/* Counts dropped messages for the session, and logs its name the first time. */
void overflow_note(queue *q, const session_facts *facts, size_t dropped);
/* How many messages were dropped since the session was created, as far as this server knows. */
long long overflow_dropped(queue *q, const session_facts *facts);

/* Replies QUOTA or QUEUEFULL, and counts it; always SERVER_OK. */
int overflow_refuse(server_ctx *ctx, hmq_slice session, overflow policy);

#endif
