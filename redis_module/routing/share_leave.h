/* share_leave.h - a member of a group leaves: messages that its client did not get go to others, in order.
 *
 *     CLOSE, UNSUBSCRIBE ──► up to 200 messages in the same step ──► `gives` ──► in portions, by the module's clock
 *     the session ends   ──► the same ──► session/life.h: `ending`
 *
 * Field of {c}_session:
 *
 *     gives     serial + 1: later messages from shares go to others.  Until all are gone, SESSION.FETCH hands out nothing
 *               after them, and a session that is away cannot be opened.
 *
 * Invariants:
 *  1. No step moves more than some hundred messages, or takes longer than about a millisecond.
 *  2. A message leaves the member's queue in the step in which it enters another one.  Messages without room
 *     elsewhere stay, unless the session ends.
 *  3. Messages that are published to the group meanwhile are queued after them: in the queue of the member that
 *     leaves (share.c). */
#ifndef HMQ_SHARE_LEAVE_H
#define HMQ_SHARE_LEAVE_H

#include "server/state.h"

/* The session is not connected, or not subscribed to a share, any more. */
void share_member_left(server_ctx *ctx, hmq_slice session);
/* Continues that, and what a session that ends (`ended`) gives back.  False: it is complete, or no member has room. */
bool share_leave_continue(server_ctx *ctx, hmq_slice session, bool ended, long long until_ms);

/* Has the session so few messages that they can be given back in one step?  If so, that is done when it ends;
 * messages in flight with QoS 1 go to others, too (MQTT 5.0 section 4.8.2). */
bool share_ends_at_once(server_ctx *ctx, hmq_slice session);
void share_give_back(server_ctx *ctx, hmq_slice session);

#endif
