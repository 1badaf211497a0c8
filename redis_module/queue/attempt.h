/* attempt.h - SESSION.OPEN ... ATTEMPT token: an open whose reply was lost can be sent again.
 *
 *     {c}_session  attempt   <epoch>:<present>:<token>    the reply to the last OPEN with a token
 *
 * A client that lost the reply cannot know whether the session existed before, or was created by that very OPEN.
 * With the same token it gets the same reply.  The field is valid only while its epoch is the session's. */
#ifndef HMQ_SESSION_ATTEMPT_H
#define HMQ_SESSION_ATTEMPT_H

#include "server/state.h"

#define ATTEMPT_MAX_BYTES 255

/* Was this attempt carried out, and is its epoch still the session's?  Then *present is the reply. */
bool attempt_is_repeated(server_ctx *ctx, hmq_slice session, hmq_slice token, long long epoch, bool *present);

/* Notes the reply to the attempt; the hash exists. */
void attempt_note(server_ctx *ctx, hmq_slice session, hmq_slice token, long long epoch, bool present);

#endif
