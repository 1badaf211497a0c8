/* publisher.h - FROM, EPOCH and PACKET of TOPIC.PUBLISH: who publishes, and whether that is allowed and not a
 * repetition.
 *
 * Invariants: nothing is written before everything was checked.  The identifier of a QoS 2 message is noted in the
 * same atomic step in which the message is published, so neither exists without the other. */
#ifndef HMQ_PUBLISHER_H
#define HMQ_PUBLISHER_H

#include "base/base.h"
#include "server/state.h"

typedef struct publisher {
    hmq_slice client_id;   /* len 0: not named */
    long long epoch;       /* 0: not asked */
    long long packet_id;   /* 0: none */
    server_string *session; /* session key, made by publisher_judge; NULL if neither EPOCH nor PACKET was given */
} publisher;

typedef enum publisher_verdict { PUBLISHER_MAY, PUBLISHER_REPEATS, PUBLISHER_REFUSED } publisher_verdict;
/* PUBLISHER_REFUSED after replying an error.  Call publisher_end in any case. */
publisher_verdict publisher_judge(server_ctx *ctx, publisher *from, long long qos);
/* After PUBLISHER_MAY: notes the packet identifier, if there is one. */
void publisher_note(server_ctx *ctx, const publisher *from);
void publisher_end(publisher *from);

#endif
