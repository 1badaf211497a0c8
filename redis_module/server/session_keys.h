/* session_keys.h - the keys of a session: their names, types and expiry. */
#ifndef HMQ_SESSION_KEYS_H
#define HMQ_SESSION_KEYS_H

#include "topic/session_key.h"
#include "server/state.h"

/* The counter of packet identifiers ends this much later than the other keys (queue/sweep.h). */
#define SWEEP_GRACE_MS 60000

/* Sets one field, replicated.  `expire_ms` applies if the hash is new.  False if the key has another type. */
bool session_fact_write(server_ctx *ctx, hmq_slice session, const char *field, uint64_t value, long long expire_ms);

/* The hash of a session that was never opened must not end before `expire_ms`. */
void session_hash_extend_expiry(server_ctx *ctx, hmq_slice session, long long expire_ms);

/* Do all keys of the session have their types?  False after replying WRONGTYPE. */
bool session_check_types(server_ctx *ctx, hmq_slice session);

/* The same without a reply. */
bool session_types_are_valid(server_ctx *ctx, hmq_slice session);

/* Replies WRONGTYPE for one key of the session; returns SERVER_OK. */
int session_reply_wrong_type(server_ctx *ctx, hmq_slice session, hmq_suffix suffix);

/* {c}: the session key of a client, or of a group's queue ($share/<group>/<filter>).  The caller frees it. */
server_string *session_key_of(hmq_slice client_id);
/* The bytes of that key, valid until the next call; len 0 if the id is empty or longer than 65535 bytes. */
hmq_slice session_key_text(hmq_slice client_id);
/* Is it the session key of this client?  False if the client id is empty. */
bool session_key_is_of(hmq_slice session, hmq_slice client_id);

/* A hash of a client id or user name.  Clients choose these, so it is only for tables in which a collision does no more
 * than cost fairness. */
uint64_t client_hash(hmq_slice name);

/* {c}<suffix>.  The caller frees it. */
server_string *session_key_name(hmq_slice session, int suffix);

/* Changes the key's expiry, replicated and announced.  SERVER_NO_EXPIRE: none. */
void key_set_expiry(server_ctx *ctx, server_key *key, server_string *name, long long expire_ms);

/* Is `expire_ms` later than `current`?  (SERVER_NO_EXPIRE is later than any time.) */
bool expiry_is_later(long long expire_ms, long long current);

/* Sets the expiry of all keys of an opened session, or, with `only_later`, extends it.  The counter of packet
 * identifiers ends SWEEP_GRACE_MS later. */
void session_keys_expire(server_ctx *ctx, hmq_slice session, long long expire_ms, bool only_later);

/* Removes one key of the session, of any type. */
void session_delete_key(server_ctx *ctx, hmq_slice session, hmq_suffix suffix);

#endif
