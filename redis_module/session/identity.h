/* identity.h - SESSION.OPEN ... IDENTITY name [ADOPT name] [REPLACE]: a session belongs to the identity for which it
 * was opened.
 *
 *     {c}_session  identity   <name>    chosen by the caller; bridges write user:<name>, anonymous or link:<name>
 *
 * Invariants:
 *  1. The check and the takeover are one step.  A refused OPEN changes nothing and closes no connection.
 *  2. A session without the field belongs to nobody yet: the first OPEN with IDENTITY writes it.
 *  3. An OPEN without IDENTITY comes from the operator's own program: it is not checked, and leaves the field unchanged.
 *  4. A new session (CLEAN, REPLACE, or the former one ended with its connection) begins without the former field. */
#ifndef HMQ_SESSION_IDENTITY_H
#define HMQ_SESSION_IDENTITY_H

#include "server/args.h"
#include "server/state.h"
#include "index/session_state.h"

typedef struct identity_claim {
    hmq_slice name; /* len 0: not given */
    hmq_slice adopts; /* a session of this identity counts as one without an identity; len 0: none */
    bool replaces; /* drop another identity's session, instead of refusing the OPEN */
} identity_claim;

/* Reads the next argument if it is one of the options (*taken).  False after replying an error. */
bool identity_parse(args *a, identity_claim *claim, bool *taken);
/* False after replying an error: an option that needs IDENTITY was given without it. */
bool identity_check(server_ctx *ctx, const identity_claim *claim);

/* Does the session belong to another identity? */
bool identity_differs(const session_state *state, const identity_claim *claim);
/* Replies IDENTITY; always SERVER_OK. */
int identity_refuse(server_ctx *ctx, hmq_slice session, const session_state *state, const identity_claim *claim);

/* Writes the field, or removes that of the former session, if that changes anything.  `is_new`: the session is new. */
void identity_write(server_ctx *ctx, server_key *key, server_string *name, const session_state *before,
                    const identity_claim *claim, bool is_new);

#endif
