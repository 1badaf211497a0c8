/* member.h - members of groups over the nodes of a cluster.
 *
 *     {<client>}                          the client's session, in its own slot: keeps $share/... as a note
 *     <client>:{$share/<group>/<filter>}  its member session, in the slot of the group: subscribes to $share/...
 *
 * All members of a group, and its queue, are then on one node, where they are a group as on a single server.
 *
 * A member session has a claim: the epoch of the client's session whose connection opened it.  A connection with an older
 * one can no longer open it.  Its own epochs are as those of any session: a connection may open it again. */
#ifndef HMQ_MEMBER_H
#define HMQ_MEMBER_H

#include "server/state.h"

/* Is it the key of a member session? */
bool member_is(hmq_slice session);

/* May a session with this key be opened, with this claim (0: none)?  False after replying an error. */
bool member_check_open(server_ctx *ctx, hmq_slice session, long long claim);

/* May a session with this key be dropped with this claim (0: none)?  False after replying an error. */
bool member_check_drop(server_ctx *ctx, hmq_slice session, long long claim);

/* Has no later connection claimed it?  False after replying an error. */
bool member_check_claim(server_ctx *ctx, hmq_slice session, long long claim);

#endif
