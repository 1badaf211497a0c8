/* usage.h - what queues count for in the usage of their users (index/usage.h), and how much more a queue may get.
 *
 *     holdmq.max-queue-bytes-per-user    bytes in the queues of all sessions of a user (0: no bound)
 *     {c}_session  user_bytes            the same for the user of this session (SESSION.OPEN ... USERBYTES)
 *     holdmq.max-queue-bytes             bytes in all queues of a database (0: no bound)
 *
 * The bound of the database is shared out as it fills: a queue may hold as many bytes as are still free, the queues of one user
 * together twice as many.  So one queue alone gets half of all, one user two thirds; each that comes to it leaves less for
 * those that have most, and something stays free for one that has nothing.
 *
 * Invariants:
 *  1. A bound stops growth, it takes nothing away: a queue may always keep as many bytes as it has.  What a new message costs,
 *     by the session's policy (index/overflow.h), it costs the receiving session, never another one.
 *  2. The queues that count are those of opened sessions and of groups; a group's belongs to no user.
 *  3. While a bound needs it, each change of a queue by the module changes its count in the same step: O(log n), without an
 *     allocation.  A queue that is not counted is, when it gets a message, or by the walk of queue/totals.c; so is one of
 *     which messages have expired.  Without a bound nothing is counted.
 *  4. A long queue is counted in portions (queue/look.h); until that is done it counts for nothing, and has its own bounds.
 *  5. Only a primary counts. */
#ifndef HMQ_QUEUE_USAGE_H
#define HMQ_QUEUE_USAGE_H

#include "index/index.h"
#include "index/sessions.h"
#include "index/usage.h"
#include "queue/queue.h"

/* How the queue stands in which usage. */
typedef struct queue_standing {
    usage *all;
    usage_queue *queue; /* NULL: it does not count */
    usage_user *user;   /* NULL: nobody's */
    const session_entry *entry; /* NULL: a group's */
} queue_standing;
queue_standing queue_standing_of(const queue *q);
/* Is it counted, as the queue is now? */
bool queue_standing_is_current(const queue_standing *s, const queue *q);
/* The queue has so many bytes. */
void queue_usage_set(const queue_standing *s, const queue *q, size_t bytes);

void queue_usage_added(const queue *q, size_t count, size_t bytes);
void queue_usage_removed(const queue *q, size_t count, size_t bytes);
void queue_usage_resized(const queue *q, size_t before, size_t now);
/* All messages that the queue has were counted. */
void queue_usage_counted(const queue *q, size_t bytes);
/* A message of the session was deleted or expired behind the module's back. */
void queue_usage_doubt(int db, hmq_slice session);

#endif
