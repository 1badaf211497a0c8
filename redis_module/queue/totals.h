/* totals.h - how many messages are in the queues of sessions and shares, for INFO: counted by a walk, not with each
 * change.
 *
 *     pause 1 s ──► every 10 ms the next queues of one database after the other ──► the pass is complete ──► pause ...
 *
 * A counter would have to hear of every ZADD and ZREM of other programs, and to remember the length of every queue,
 * to be right after an expiry or a RENAME: that would be work in each publish.  The walk only reads lengths.
 *
 * Invariants:
 *  1. The reported numbers are of one complete pass, and never older than two passes and a pause.
 *  2. Sessions are those that were opened or have a subscription, shares ($share/...) those with a member, as the
 *     index knows them (index/index.h).  A pass is not a snapshot: a session that is opened or ends meanwhile is counted
 *     or not.
 *  3. The walk changes nothing: no key is touched, counted as a hit or miss, or expired by it (except before 7.2,
 *     where the server has no such read).
 *
 * Opened and subscribed sessions are read side by side in the order of their keys, so that none is counted twice.  A
 * step looks at 100 queues at most, whatever they hold; it runs on replicas, too.  It also counts the bytes of queues
 * that need it (queue/usage.h), a bounded number of messages per step; while there are such queues, it does not pause.
 */
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

void queue_totals_start(void);
/* O(1) */
queue_totals queue_totals_read(void);

#endif
