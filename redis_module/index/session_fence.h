/* session_fence.h - fencing: a command of a former owner is refused. */
#ifndef HMQ_SESSION_FENCE_H
#define HMQ_SESSION_FENCE_H

#include "server/args.h"

/* "EPOCH e" directly after the session key: steps over it and compares.  False after replying FENCED, NOSESSION or a
 * syntax error. */
bool session_check_epoch(args *a, hmq_slice session);

/* Is this the session's current epoch (0: not compared)?  False after replying FENCED or NOSESSION. */
bool session_require_epoch(server_ctx *ctx, hmq_slice session, long long epoch);
/* The same, always by the key, and also for an epoch of 0. */
bool session_epoch_matches(server_ctx *ctx, hmq_slice session, long long epoch);
/* The usual case, without opening a key or replying: true if the index says so. */
bool session_is_owner(server_ctx *ctx, hmq_slice session, long long epoch);

/* Replies TRYAGAIN: messages that the session got through shares are moving to others (routing/share_leave.h). */
int session_reply_leaving(server_ctx *ctx, hmq_slice session);
/* False after that reply, if the session is ending (session/life.h): anything that it got now would be lost with it. */
bool session_check_ending(server_ctx *ctx, hmq_slice session);

#endif
