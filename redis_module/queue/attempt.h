/* attempt.h - SESSION.OPEN ... ATTEMPT token: an open whose reply was lost can be sent again.
 *
 *     {c}_session  attempt   <epoch>:<present>:<token>    what the last OPEN with a token was answered
 *
 * Whoever lost the reply cannot know whether the session was there before or was made by the very OPEN that it lost.  With
 * the same token it is told what it would have been told.  The field counts only while its epoch is the session's. */
#ifndef HMQ_SESSION_ATTEMPT_H
#define HMQ_SESSION_ATTEMPT_H

#include "server/state.h"

#define ATTEMPT_MAX_BYTES 255

/* Was this attempt carried out, and is the session still its?  Then *present is what was replied. */
bool attempt_is_repeated(server_ctx *ctx, hmq_slice session, hmq_slice token, long long epoch, bool *present);

/* Notes what is replied to the attempt; the hash is there. */
void attempt_note(server_ctx *ctx, hmq_slice session, hmq_slice token, long long epoch, bool present);

#endif
