/* share_crew.h - the connected members of a group, in turn: which one gets the next message?
 *
 * Members are found as they are needed, and each queue is looked at once, so that delivering many messages in one
 * step costs little more than storing them.  At most SHARE_CREW_MOST are looked at. */
#ifndef HMQ_SHARE_CREW_H
#define HMQ_SHARE_CREW_H

#include "server/state.h"
#include "index/filters.h"
#include "index/shares.h"
#include "routing/delivery.h"

#define SHARE_CREW_MOST 64

/* A connected member. */
typedef struct share_candidate {
    const indexed_session *member;
    size_t window, length; /* of its queue; SIZE_MAX - 1: not looked at yet */
    size_t refused;        /* bytes of the least message that its user had no room for */
} share_candidate;

/* Valid while the index is pinned and no other code adds to their queues. */
typedef struct share_crew {
    server_ctx *ctx;
    index_t *index;
    share *s; /* NULL: none yet */
    server_string *after;       /* the member that was looked at last */
    size_t count, looked, turn; /* whose turn it is; `looked` with those that are away */
    share_candidate list[SHARE_CREW_MOST];
} share_crew;

void share_crew_begin(share_crew *c, server_ctx *ctx, index_t *index, share *s);
void share_crew_end(share_crew *c);

/* Delivers to the member whose turn it is and who has room: less than its window, and than `most`.  If none has room,
 * to the one that has the fewest, unless there is a `most` (SIZE_MAX: none).  False: not delivered. */
bool share_crew_deliver(share_crew *c, message *m, size_t most);

/* Is a member connected? */
bool share_has_connected_member(server_ctx *ctx, index_t *index, const share *s);

/* How many messages a queue has; SIZE_MAX: it cannot be served. */
size_t share_length_of(server_ctx *ctx, hmq_slice session);

#endif
