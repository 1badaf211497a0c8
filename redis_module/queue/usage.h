/* usage.h - counts the bytes of queues for their users (index/usage.h), and bounds them.
 *
 *     holdmq.max-queue-bytes-per-user    bytes in the queues of all sessions of a user (0: no maximum)
 *     {c}_session  user_bytes            the same for the user of this session (SESSION.OPEN ... USERBYTES)
 *     holdmq.max-queue-bytes             bytes in all queues of a database (0: no maximum)
 *
 * The maximum of the database is shared out as it fills: a queue may hold as many bytes as are still free, the queues
 * of one user together twice as many.  So one queue alone gets half of it, one user two thirds.  Each further queue
 * leaves less for those that have most, and some bytes stay free for one that has none.
 *
 * Invariants:
 *  1. A maximum stops growth and removes nothing: a queue may always keep the bytes that it has.  If a new message has
 *     no room, the policy of the receiving session (index/overflow.h) decides; no other session loses anything.
 *  2. Only queues of opened sessions and of groups count; a group's belongs to no user.
 *  3. While a maximum applies, each change of a queue by the module changes its count in the same step: O(log n),
 *     without an allocation.  A queue that is not counted yet is counted when it gets a message, or by the walk of
 *     queue/totals.c; so is one whose messages have expired.  Without a maximum nothing is counted.
 *  4. A long queue is counted in portions (queue/look.h).  Until that is complete it counts as nothing, and has its
 *     own limits only.
 *  5. Only a primary counts. */
#ifndef HMQ_QUEUE_USAGE_H
#define HMQ_QUEUE_USAGE_H

#include "index/index.h"
#include "index/sessions.h"
#include "index/usage.h"
#include "queue/queue.h"

/* The count of a queue, and the sums that it is part of. */
typedef struct queue_account {
    usage *all;
    usage_queue *queue; /* NULL: it does not count */
    usage_user *user;   /* NULL: nobody's */
    const session_entry *entry; /* NULL: a group's */
} queue_account;
queue_account queue_account_of(const queue *q);
/* Is the count that of the queue as it is now? */
bool queue_account_is_current(const queue_account *s, const queue *q);
/* The queue has this many bytes. */
void queue_usage_set(const queue_account *s, const queue *q, size_t bytes);

void queue_usage_added(const queue *q, size_t count, size_t bytes);
void queue_usage_removed(const queue *q, size_t count, size_t bytes);
void queue_usage_resized(const queue *q, size_t before, size_t now);
/* All messages that the queue has were counted. */
void queue_usage_counted(const queue *q, size_t bytes);
/* A message of the session was deleted by another program, or expired. */
void queue_usage_mark_stale(int db, hmq_slice session);

#endif
