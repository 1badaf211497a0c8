/* look.h - looks through a queue: which messages have expired, when more will, and how many bytes there are.
 *
 * A queue that has grown beyond a few messages is looked through once; from then on changes are noted
 * (queue/notes.h).  It is looked through again when its limit is reached after a message may have expired, and when
 * its notes were lost.
 *
 * Invariant: the looks at all queues together take LOOK_MOST references at once, and LOOK_PER_MS a millisecond.  An
 * unfinished look continues where it stopped.  So the server is not delayed by many queues that are full at the same
 * time, or by a long one whose messages expire now and then.
 *
 * O(references that are looked at). */
#ifndef HMQ_QUEUE_LOOK_H
#define HMQ_QUEUE_LOOK_H

#include "index/session_facts.h"
#include "queue/queue.h"

#define LOOK_MOST 2000
#define LOOK_PER_MS 200

/* Continues or begins a look.  With `facts`, removes the references of expired messages and returns their number.
 * Afterwards the queue's note has a count, if the look is complete. */
size_t queue_look_continue(queue *q, const session_facts *facts);

#endif
