/* session_hash.h - the hash {c}_session as far as the queue needs it.
 *
 *     round      how often packet identifiers wrapped (src/topic/packet_id.h), written when it changes
 *     sent       serial: messages up to it were handed to the client and are in flight until they are acknowledged
 *     expiring   serial: no message behind it has an expiry of its own (queue/expiry.h)
 *     qos0_until serial: no message behind it has QoS 0 (routing/qos0.h)
 *     epoch      stands if the session was opened (session/session.h)
 *
 * A session that only SESSION.ADD knows gets the hash when it needs one; it then expires with the queue. */
#ifndef HMQ_SESSION_HASH_H
#define HMQ_SESSION_HASH_H

#include "server/state.h"

typedef struct session_facts {
    bool usable; /* false: the name holds another type */
    bool exists;
    bool opened;
    uint64_t round;
    uint64_t sent;
    uint64_t expiring;
    bool has_overflow; /* these four: queue/overflow.h */
    uint8_t overflow;
    uint64_t max_bytes; /* 0: the setting's */
    uint64_t dropped;
    long long expire_ms; /* of the hash; SERVER_NO_EXPIRE if it never ends or is not there */
} session_facts;

/* All zero but `usable` if there is no hash.  Of an opened session they are remembered (index/sessions.h): only type and
 * expiry are asked of the key then. */
session_facts session_facts_read(server_ctx *ctx, hmq_slice session);

/* Sets one field, replicated; `expire_ms` is for a hash that has to be made.  False if the name holds another type. */
bool session_fact_write(server_ctx *ctx, hmq_slice session, const char *field, uint64_t value, long long expire_ms);

/* The hash of a session that nobody opened must not end before `expire_ms`. */
void session_hash_outlive(server_ctx *ctx, hmq_slice session, long long expire_ms);

/* False after replying WRONGTYPE: a key of the session holds something else than it should. */
bool session_check_types(server_ctx *ctx, hmq_slice session);

/* The same without a reply. */
bool session_types_hold(server_ctx *ctx, hmq_slice session);

/* {c}<suffix> */
server_string *session_key_name(hmq_slice session, int suffix);

/* Moves the key's expiry; replicated and notified.  SERVER_NO_EXPIRE: none. */
void key_set_expiry(server_ctx *ctx, server_key *key, server_string *name, long long expire_ms);

/* Does `expire_ms` end later than `standing`?  (SERVER_NO_EXPIRE is later than all.) */
bool expires_later(long long expire_ms, long long standing);

/* Sets the expiry of all keys of an opened session: to the very time, or only if it is later than what stands.  The counter
 * of packet identifiers ends SWEEP_GRACE_MS later. */
void session_keys_expire(server_ctx *ctx, hmq_slice session, long long expire_ms, bool only_later);

#endif
