/* life.h - what happens to a session until its end: lost connections, wills, the end itself.
 *
 *        OPEN ──► connected ──CLOSE, or lost──► away ──ends──► over
 *
 * Further fields of {c}_session, besides those of session/session.h and session/will.h:
 *
 *     ends          ms since 1970: the session is over then.  Its keys stay for KEPT_GRACE_MS, because the module needs them
 *                   for its work at the end (a will, messages of a share).  Without it the session ends with its keys.
 *     owner_lease   s: its owner has a heartbeat (session/owner.h), so it does not end before its owner
 *     shares        1: it had a shared subscription (routing/share.h); window: the largest of SESSION.FETCH … WINDOW
 *     most_sent     WINDOW of its OPEN, or of a later SESSION.SENT; see session_presume_sent
 *     ending        1: it is over, and its messages from groups go to their other members (routing/share_leave.h)
 *
 * Invariants:
 *  1. From `ends` on the session counts as gone, whether the module has ended it yet or not.
 *  2. Due work is done by the module's timer (due.h) or by the next SESSION.OPEN, whichever comes first.
 *  3. A lost connection also loses its epoch: commands with that epoch are refused from then on. */
#ifndef HMQ_SESSION_LIFE_H
#define HMQ_SESSION_LIFE_H

#include "topic/session_key.h"
#include "server/state.h"
#include "index/session_state.h"

#define KEPT_GRACE_MS (24LL * 3600 * 1000)

/* Every session's end is set by this: `end_ms` (SERVER_NO_EXPIRE: no end); `kept`: the module has work then.
 * `only_later`: only if it is later than before. */
void session_set_end(server_ctx *ctx, hmq_slice session, long long end_ms, bool kept, bool only_later);

/* The session has a shared subscription from now on: the module has work when it ends. */
void session_mark_shares(server_ctx *ctx, hmq_slice session, const session_state *state);

/* Messages up to `sent` were handed to the client (UINT64_MAX: perhaps all). */
void session_note_sent(server_ctx *ctx, hmq_slice session, uint64_t sent);
/* Sets most_sent, if somebody has opened the session.  False: its hash has another type. */
bool session_set_most_sent(server_ctx *ctx, hmq_slice session, long long window);
/* The connection is over, and its owner did not say what it had handed to the client.  All messages that it can have
 * received (owner_disconnected_since) count as in flight, so that they are sent again with DUP, and later ones without
 * [MQTT-3.3.1-3].  With WINDOW these are the oldest so many at most: the owner sent none while so many before it were
 * in the queue, as far as it knew. */
void session_presume_sent(server_ctx *ctx, hmq_slice session, hmq_slice owner);

typedef struct disconnection {
    long long expiry_s;
    bool with_will;  /* the will is published, after its delay; else it is discarded */
    long long epoch; /* the session's new epoch; 0: it keeps its own */
} disconnection;
/* The connection is gone: the session is away, or over if its expiry is 0.  Its keys have the right types. */
void session_disconnect(server_ctx *ctx, hmq_slice session, const session_state *state, const disconnection *how);

/* Its owner vanished: all queued messages count as handed out. */
void session_mark_lost(server_ctx *ctx, hmq_slice session, const session_state *state);

/* Can everything that the session has be removed in one step?  Not if it has many messages of its groups: these go to
 * other members in portions.  Until that is done the session is `ending`: it has no subscriptions any more, and cannot
 * be opened. */
bool session_ends_at_once(server_ctx *ctx, hmq_slice session, const session_state *state);
/* The session is ending from now on; its hash has this epoch.  Returns how many messages it has. */
size_t session_begin_end(server_ctx *ctx, hmq_slice session, const session_state *state, long long epoch);

/* The session is over: publishes its will, and removes all that it has, or begins to.  Returns how many messages
 * those were. */
size_t session_finish(server_ctx *ctx, hmq_slice session, const session_state *state);

/* Removes the data, and the hash if `whole`; the keys have the right types.  Returns how many messages there were. */
size_t session_drop_data(server_ctx *ctx, hmq_slice session, bool whole);

/* Larger than the session's last epoch, than all that this server gave out, and than those of sessions dropped long
 * ago. */
long long session_next_epoch(long long last);

/* Announces the session's new epoch on its inbox. */
void session_notify_takeover(server_ctx *ctx, hmq_slice session, long long epoch);

/* Announces on its inbox that it ended; this was its last epoch. */
void session_notify_dropped(server_ctx *ctx, hmq_slice session, long long epoch);

/* The deadline of a session has passed.  Returns when to look again (ms since 1970), 0: at the session's next deadline.
 * Long work stops at `until_ms`. */
long long session_do_due(server_ctx *ctx, hmq_slice session, long long until_ms);

#endif
