/* session.h - SESSION.OPEN, TOUCH, CLOSE, DROP and INFO.
 *
 * {c}_session is a hash: owner, epoch, connected (0/1), expiry (s), lease (s), and the fields of
 * index/session_hash.h, session/life.h, session/identity.h and session/will.h.
 *
 * Invariants:
 *  1. Epochs only grow, also after a drop: each is the larger of the last one + 1 and the clock in ms.
 *  2. While a session is open, its keys end at now + expiry + lease, renewed by SESSION.TOUCH; or, if its owner has a
 *     heartbeat (session/owner.h), not before the owner is lost.  After a close they end at now + expiry.  So no key
 *     stays forever, whatever crashes. */
#ifndef HMQ_SESSION_H
#define HMQ_SESSION_H

#include "server/state.h"
#include "queue/queue.h"

int session_open_command(server_ctx *ctx, server_string **argv, int argc);
int session_touch_command(server_ctx *ctx, server_string **argv, int argc);
int session_close_command(server_ctx *ctx, server_string **argv, int argc);
int session_drop_command(server_ctx *ctx, server_string **argv, int argc);
int session_info_command(server_ctx *ctx, server_string **argv, int argc);

#endif
