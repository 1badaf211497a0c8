/* totals.h - how much waits in the queues of sessions and shares, for INFO: counted by a walk, not kept where queues
 * change.
 *
 *     rest 1 s ──► every 10 ms the next queues of one database after the other ──► the pass is whole: told ──► rest ...
 *
 * A counter would have to hear of every ZADD and ZREM of others, and to remember the length of every queue, to be right
 * after an expiry or a RENAME: work in each publish.  The walk only asks for lengths.
 *
 * Invariants:
 *  1. What is told is of one whole pass, and never older than two passes and a rest.
 *  2. Sessions are those that were opened or have a subscription, shares ($share/...) those with a member: what the index
 *     knows (index/index.h).  A pass is no snapshot: a session that comes or goes meanwhile is counted or not.
 *  3. The walk changes nothing: no key is touched, counted as a hit or miss, or expired by it (but before 7.2: there the
 *     server knows no such reading).
 *
 * Opened and subscribed sessions are read side by side in the order of their keys, so that who is both is counted once.
 * A step looks at 100 queues at most, whatever they hold; on replicas it walks, too.  On its way it counts the bytes of queues
 * that have to be (queue/usage.h), a bounded number of messages in a step; as long as there are such, it does not rest. */
#ifndef HMQ_QUEUE_TOTALS_H
#define HMQ_QUEUE_TOTALS_H

#include "server/state.h"

typedef struct queue_totals {
    bool known; /* a pass has ended since the start, and the server is not loading */
    unsigned long long
        messages; /* references: one whose message has expired counts until a reader or writer finds it */
    unsigned long long longest; /* messages of the longest queue */
    unsigned long long age_s; /* since the pass began */
} queue_totals;

void queue_totals_start(server_ctx *ctx);
/* O(1) */
queue_totals queue_totals_read(void);

#endif
