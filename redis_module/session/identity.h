/* identity.h - SESSION.OPEN ... IDENTITY name [ADOPT name] [REPLACE]: a session belongs to whom it was opened for.
 *
 *     {c}_session  identity   <name>    a name of the caller's making; bridges write user:<name>, anonymous or link:<name>
 *
 * Invariants:
 *  1. The check and the takeover are one step.  A refused OPEN changes nothing and disturbs no connection.
 *  2. A session without the field belongs to nobody yet: the first OPEN with IDENTITY writes it.
 *  3. An OPEN without IDENTITY is the operator's own program: it is not checked, and leaves the field as it is.
 *  4. A new session (CLEAN, REPLACE, or the last one ended with its connection) begins without the field of the last. */
#ifndef HMQ_SESSION_IDENTITY_H
#define HMQ_SESSION_IDENTITY_H

#include "server/args.h"
#include "server/state.h"
#include "index/session_state.h"

typedef struct identity_claim {
    hmq_slice name; /* len 0: the caller does not say */
    hmq_slice adopts; /* a session of this identity counts as one without; len 0: none */
    bool replaces; /* another identity's session is dropped, instead of refusing the OPEN */
} identity_claim;

/* One of the options, if the next argument is one (*taken).  False after replying an error. */
bool identity_parse(args *a, identity_claim *claim, bool *taken);
/* False after replying an error: options that need IDENTITY stand without it. */
bool identity_check(server_ctx *ctx, const identity_claim *claim);

/* Does the session belong to somebody else? */
bool identity_differs(const session_state *state, const identity_claim *claim);
/* Replies IDENTITY; always SERVER_OK. */
int identity_refuse(server_ctx *ctx, hmq_slice session, const session_state *state, const identity_claim *claim);

/* Writes the field, or removes that of the last session, if that changes anything.  `is_new`: the session is. */
void identity_write(server_ctx *ctx, server_key *key, server_string *name, const session_state *before,
                    const identity_claim *claim, bool is_new);

#endif
