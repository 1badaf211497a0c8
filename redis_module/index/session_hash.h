/* session_hash.h - the hash {c}_session as far as the queue needs it.
 *
 *     round      how often packet identifiers wrapped (src/topic/packet_id.h), written when it changes
 *     sent       serial: messages up to it were handed to the client and are in flight until they are acknowledged
 *     expiring   serial: no message behind it has an expiry of its own (queue/expiry.h)
 *     qos0_until serial: no message behind it has QoS 0 (routing/qos0.h)
 *     gives      serial + 1: what it was given through shares behind that goes to others (routing/share_leave.h)
 *     epoch      stands if the session was opened (session/session.h)
 *
 * A session that only SESSION.ADD knows gets the hash when it needs one; it then expires with the queue. */
#ifndef HMQ_SESSION_HASH_H
#define HMQ_SESSION_HASH_H

#include "server/state.h"

#define QUEUE_MAX_SERIAL (1LL << 53) /* scores are doubles: beyond, not every serial has one */

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
    long long expire_ms; /* of the hash; SERVER_NO_EXPIRE if it never ends or is not there */
} session_facts;

/* All zero but `usable` if there is no hash.  Of an opened session they are remembered (index/sessions.h): only type and
 * expiry are asked of the key then. */
session_facts session_facts_read(server_ctx *ctx, hmq_slice session);

struct index_kind;
extern const struct index_kind session_facts_kind;

#endif
