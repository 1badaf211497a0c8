/* session_facts.h - the fields of the hash {c}_session that the queue needs.
 *
 *     round      how often packet identifiers wrapped (src/topic/packet_id.h), written when it changes
 *     sent       serial: messages up to it were handed to the client, and are in flight until they are acknowledged
 *     expiring   serial: no later message has an expiry of its own (queue/expiry.h)
 *     qos0_until serial: no later message has QoS 0 (routing/qos0.h)
 *     gives      serial + 1: later messages from shares go to other members (routing/share_leave.h)
 *     epoch      present if the session was opened (session/session.h)
 *
 * A session that only SESSION.ADD knows gets the hash when it needs one; the hash then expires with the queue. */
#ifndef HMQ_SESSION_FACTS_H
#define HMQ_SESSION_FACTS_H

#include "server/state.h"

#define QUEUE_MAX_SERIAL (1LL << 53) /* scores are doubles, which cannot represent every larger serial */

typedef struct session_facts {
    bool usable; /* false: the name holds another type */
    bool exists;
    bool opened;
    uint64_t round;
    uint64_t sent;
    uint64_t expiring;
    uint64_t gives_back_from; /* 0: nothing */
    bool has_overflow; /* these four: index/overflow.h */
    uint8_t overflow;
    uint64_t max_bytes; /* 0: the setting's */
    uint64_t dropped;
    long long expire_ms; /* of the hash; SERVER_NO_EXPIRE if it never ends or does not exist */
} session_facts;

#endif
