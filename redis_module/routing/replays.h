/* replays.h - subscriptions that read history: the place of each, as the keys have it.
 *
 *     {c}_subscriptions   field <filter>   value <options>@ or <options>@!    says that it does (index/subscription.h)
 *     {c}_replays         field <filter>   value <kind> <store> <cursor>,<cursor>...
 *
 *     <kind>     replay, or application
 *     <cursor>   one for each shard (src/history/cursor.h), in the order in which they are read next
 *
 *         SESSION.SUBSCRIBE f 1@earliest ──► replays ──SESSION.REPLAY reads the last message──► live
 *         SESSION.SUBSCRIBE f 1@earliest! ──► application, always
 *         SESSION.SUBSCRIBE f 1 leaves the kind unchanged; UNSUBSCRIBE ends any of them
 *
 * Invariants:
 *  1. A subscription that reads history is not in the index, so no publish is routed to it.  {c}_subscriptions alone
 *     decides whether it is.
 *  2. The store keeps every topic of the filter, so messages that are published during the replay come from there.
 *  3. A cursor moves in the step that delivers, and a subscription becomes live in the step that has read everything:
 *     no message is lost in between, and none comes twice.
 *
 * Nothing of it is kept in memory. */
#ifndef HMQ_SESSION_REPLAYS_H
#define HMQ_SESSION_REPLAYS_H

#include "server/state.h"
#include "index/index.h"
#include "index/subscription.h"
#include "history/page.h"

#define SESSION_REPLAYS_MAX 64 /* of one session */

typedef struct session_replay {
    subscription_kind kind;
    hmq_slice store_name;       /* a part of the text that it was read from */
    const history_store *store; /* NULL: there is no store of this name (any more) */
    size_t shards;
    hmq_cursor cursors[HISTORY_SHARDS_MAX];
} session_replay;

/* Reads the value of a field; false if it is not valid. */
bool session_replay_read(const index_t *index, const server_string *value, session_replay *r);
/* The value, the cursors from `first` on and then those before it. */
server_string *session_replay_text(const session_replay *r, size_t first);

/* Makes the value for a replay of this (inner) filter that begins where the request says.  NULL after replying why
 * that is not possible. */
server_string *session_replay_begin(server_ctx *ctx, hmq_slice filter, const subscription_request *request);

/* What SESSION.SUBSCRIBE must write for one filter.  `*value` NULL: nothing.  False after replying an error; nothing
 * was written. */
bool session_replays_prepare(server_ctx *ctx, hmq_slice session, server_string *filter,
                             const subscription_request *request, server_string **value);
/* Has the session room for this many more?  False after replying FULL. */
bool session_replays_have_room(server_ctx *ctx, hmq_slice session, size_t more);

/* The cursor of a filter; NULL if there is none. */
server_string *session_replays_get(server_ctx *ctx, hmq_slice session, server_string *filter);
/* Sets (or with NULL removes) the cursor of a filter; replicated.  The key has the right type. */
void session_replays_write(server_ctx *ctx, hmq_slice session, server_string *filter, server_string *value);
/* Ends all of them. */
void session_replays_expire(server_ctx *ctx, hmq_slice session, long long expire_ms);

/* Visits all of them, in no order; the key must be a hash or not exist.  Values belong to the visit, if it takes them
 * (returns true). */
typedef void (*session_replays_visit)(void *context, server_string *filter, server_string *value);
void session_replays_each(server_ctx *ctx, hmq_slice session, session_replays_visit visit, void *context);

#endif
