/* session_fence.h - fencing: a command of a former owner is refused. */
#ifndef HMQ_SESSION_FENCE_H
#define HMQ_SESSION_FENCE_H

#include "server/args.h"

/* "EPOCH e" right behind the session key: steps over it and compares.  False after replying FENCED, NOSESSION or a
 * syntax error. */
bool session_check_epoch(args *a, hmq_slice session);

/* Is this the session's current epoch (0: not asked)?  False after replying FENCED or NOSESSION. */
bool session_require_epoch(server_ctx *ctx, hmq_slice session, long long epoch);
/* The same by the key, whatever the index says, and for an epoch of 0, too. */
bool session_epoch_matches(server_ctx *ctx, hmq_slice session, long long epoch);
/* The usual case of it, without opening a key or replying: true if the index says so. */
bool session_is_owner(server_ctx *ctx, hmq_slice session, long long epoch);

/* Replies TRYAGAIN: what it was given through shares is on its way to others (routing/share_leave.h). */
int session_reply_leaving(server_ctx *ctx, hmq_slice session);
/* False after replying that: it is ending (session/life.h), and whatever it were given would go with it. */
bool session_check_ending(server_ctx *ctx, hmq_slice session);

#endif
