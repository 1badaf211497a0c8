/* session_hash.h - reads the fields of the hash {c}_session that the queue needs (index/session_facts.h). */
#ifndef HMQ_SESSION_HASH_H
#define HMQ_SESSION_HASH_H

#include "index/session_facts.h"

/* All zero except `usable` if there is no hash.  The facts of an opened session are remembered (index/sessions.h):
 * then only type and expiry of the key are read. */
session_facts session_facts_read(server_ctx *ctx, hmq_slice session);

struct index_kind;
extern const struct index_kind session_facts_kind;

#endif
