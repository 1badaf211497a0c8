/* life.h - how a session goes on and ends: lost connections, wills, the end itself.
 *
 *        OPEN ──► connected ──CLOSE, or lost──► away ──ends──► over
 *
 * Fields of {c}_session that this is about, beside those of session/session.h and session/will.h:
 *
 *     ends          ms since 1970: the session is over then, though its keys stay for KEPT_GRACE_MS: they are needed for
 *                   what the module has to do at the end (a will, messages of a share).  Without it: with its keys.
 *     owner_lease   s: its owner beats (session/owner.h), so it does not end as long as that one does
 *     shares        1: it had a shared subscription (routing/share.h); window: the largest that SESSION.FETCH … WINDOW asked for
 *     ending        1: it is over, and what its groups gave it goes to their other members (routing/share_leave.h)
 *
 * Invariants:
 *  1. From `ends` on nobody finds the session, whether the module has ended it yet or not.
 *  2. What is due is done by whoever comes first: the module's timer (due.h), or the next SESSION.OPEN.
 *  3. A connection that is lost loses its epoch, too: whoever held it is refused from then on. */
#ifndef HMQ_SESSION_LIFE_H
#define HMQ_SESSION_LIFE_H

#include "topic/session_key.h"
#include "server/state.h"
#include "index/session_state.h"

#define KEPT_GRACE_MS (24LL * 3600 * 1000)

/* All sessions end by this: `end_ms` (SERVER_NO_EXPIRE: not by themselves); `kept`: the module has something to do then.
 * `only_later`: not sooner than what stands. */
void session_set_end(server_ctx *ctx, hmq_slice session, long long end_ms, bool kept, bool only_later);

/* It has a shared subscription from now on: the module has something to do when it ends. */
void session_mark_shares(server_ctx *ctx, hmq_slice session, const session_state *state);

/* Messages up to `sent` were handed to the client (UINT64_MAX: all that are there may have been). */
void session_note_sent(server_ctx *ctx, hmq_slice session, uint64_t sent);
/* The connection is over, and its owner did not say what it had handed to the client: all that it can have heard of counts
 * as in flight (owner_deaf_since), so that it is sent again with DUP, and what came later without [MQTT-3.3.1-3]. */
void session_presume_sent(server_ctx *ctx, hmq_slice session, hmq_slice owner);

typedef struct disconnection {
    long long expiry_s;
    bool with_will;  /* the will is published, after its delay; else it is discarded */
    long long epoch; /* the session gets this one; 0: it keeps its own */
} disconnection;
/* The connection is gone: the session is away, or over if its expiry is 0.  Its keys have the right types. */
void session_disconnect(server_ctx *ctx, hmq_slice session, const session_state *state, const disconnection *how);

/* Its owner is gone without a word: all that is queued counts as handed out. */
void session_lose(server_ctx *ctx, hmq_slice session, const session_state *state);

/* Does what the session has go in one step?  Not what many messages of its groups are a part of: they go to other members,
 * some at a time, and the session is `ending` until then.  It has no subscriptions any more, and nobody can open it. */
bool session_ends_at_once(server_ctx *ctx, hmq_slice session, const session_state *state);
/* It is ending from now on; its hash has this epoch.  How many messages it has. */
size_t session_begin_end(server_ctx *ctx, hmq_slice session, const session_state *state, long long epoch);

/* The session is over: its will is published, all that it has is removed, or it is ending.  How many messages those were. */
size_t session_finish(server_ctx *ctx, hmq_slice session, const session_state *state);

/* Removes the data, and the hash if `whole`; the keys have the right types.  How many messages there were. */
size_t session_drop_data(server_ctx *ctx, hmq_slice session, bool whole);

/* Larger than the session's last one, than all that this server gave out, and than those of sessions dropped long ago. */
long long session_next_epoch(long long last);

/* Whoever listens on the session's inbox learns that it has this epoch now. */
void session_notify_takeover(server_ctx *ctx, hmq_slice session, long long epoch);

/* ... that it is no more: this was its last epoch. */
void session_notify_dropped(server_ctx *ctx, hmq_slice session, long long epoch);

/* The deadline of a session has passed.  When to look again (ms since 1970), 0: when the session says so.  Long work ends
 * at `until_ms`. */
long long session_do_due(server_ctx *ctx, hmq_slice session, long long until_ms);

#endif
