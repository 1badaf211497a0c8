/* push_budget.h - how many bytes may be pushed to the inboxes of sessions now, so that no output buffer limit closes
 * the link of a bridge.
 *
 *      delivery ──fits──► header and record are pushed
 *         └──does not──► header alone: the listener fetches the message from the queue at its own pace
 *
 * The server writes at most 64 KiB per turn of its event loop to a client, so the pushes of one command stay in the
 * output buffer for a while.  A link whose buffer holds PUSH_LINK_BYTES gets headers only.  SESSION.OWNER says which
 * connection is an owner's link.  All other inboxes share PUSH_TURN_BYTES per turn.  Records above PUSH_SMALL_BYTES get
 * a quarter of either: so those of one client do not hold up, or turn into headers, the small ones of all others.
 *
 * Cost: one comparison for most pushes; every PUSH_LOOK_BYTES a look at the output buffer of each link. */
#ifndef HMQ_PUSH_BUDGET_H
#define HMQ_PUSH_BUDGET_H

#include "server/state.h"
#include "index/filters.h"

#define PUSH_LINK_BYTES ((size_t)4 << 20)
#define PUSH_TURN_BYTES ((size_t)4 << 20)
#define PUSH_SMALL_BYTES ((size_t)16 << 10)
#define PUSH_LOOK_BYTES ((size_t)256 << 10)

/* May this many bytes be pushed to the session's inbox?  If so, they are counted. */
bool push_budget_allows(server_ctx *ctx, const indexed_session *session, size_t bytes);

/* A turn of the event loop is over.  `continues`: publishes of it are delivered further in later turns (routing/fan_out.h), as if
 * it went on. */
void push_budget_before_sleep(bool continues);

#endif
