/* look.h - looks a queue through for what has expired, when more will, and how many bytes there are.
 *
 * A queue that has grown beyond a few messages is looked through once, and what comes and goes is noted from then on
 * (queue/notes.h).  It is looked through again when its limit is reached after a message may have expired, and when its
 * notes were lost.
 *
 * Invariant: the looks at all queues together take LOOK_MOST references at once, and LOOK_PER_MS a millisecond.  A look
 * that does not come to the end goes on from where it stood when the queue is looked at next.  So many queues that are
 * full at the same time, or a long one of which a message expires now and then, do not hold up the server.
 *
 * O(references that are looked at). */
#ifndef HMQ_QUEUE_LOOK_H
#define HMQ_QUEUE_LOOK_H

#include "index/session_hash.h"
#include "queue/queue.h"

#define LOOK_MOST 2000
#define LOOK_PER_MS 200

/* One under way; a part of the queue's note. */
typedef struct queue_look {
    uint64_t serial;      /* it has come so far; 0: none is under way */
    size_t bytes;         /* of the messages up to there */
    long long soonest_ms; /* when the first of them expires */
    size_t gone;          /* messages that went on their own meanwhile */
} queue_look;

/* Looks on, or begins to.  With `facts` the references of expired messages are removed, and their number is returned.
 * Afterwards the queue's note is counted, if the look came to its end. */
size_t queue_look_on(queue *q, const session_facts *facts);

#endif
