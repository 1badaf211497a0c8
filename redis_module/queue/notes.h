/* notes.h - what is remembered of queues beside their keys, and how many bytes each holds.
 *
 * Invariants:
 *  1. Forgetting a note costs only time: a queue whose bytes are not known is counted when that matters.
 *  2. `bytes` is never less than the bytes of the queue's messages.  It is exact, unless messages have expired since
 *     the last count (`unknown`).  Before a message is dropped because of it, expired references are searched for,
 *     and it is exact again.
 *  3. A note is valid for a queue with as many references as it says.  Any other number means that another program
 *     changed the queue, which is then counted again.
 *  4. A queue without a count has at most SMALL_QUEUE messages, each of at most 1/SMALL_QUEUE of its maximum: it is
 *     within its maximum.  So no queue of a client that keeps up needs a note.  The exception is a queue whose note
 *     was lost (a restart, another role): it is counted as quickly as queue/look.h allows, and within its maximum
 *     from then on.
 *
 * Everything costs O(log notes), except counting (queue/look.h). */
#ifndef HMQ_QUEUE_NOTES_H
#define HMQ_QUEUE_NOTES_H

#include "queue/parts.h"

/* A look at the queue that is under way (queue/look.h). */
typedef struct queue_look {
    uint64_t serial;      /* the last serial that was looked at; 0: no look is under way */
    size_t bytes;         /* of the messages up to that serial */
    long long soonest_ms; /* when the first of them expires */
    size_t gone;          /* messages of these that expired or were deleted since */
} queue_look;

typedef struct queue_note {
    long long calm_until_ms; /* no message in the queue expires before; 0: not known */
    bool is_counted;         /* bytes, length and unknown are valid */
    size_t bytes;            /* of the messages' values */
    size_t length;           /* references */
    size_t unknown;          /* messages that are gone but still in `bytes` */
    uint64_t dropped;        /* messages dropped since {c}_session was written */
    uint64_t saved;          /* its field `dropped` then; another number means another session */
    long long saved_ms;      /* when the field was written */
    bool is_logged;               /* the log has the session's name */
    queue_look look;
} queue_note;

/* NULL: there is none.  Valid until the next queue_note_make. */
queue_note *queue_note_find(const queue *q);
queue_note *queue_note_make(queue *q);
/* The session is over. */
void queue_note_forget(queue *q);

/* Messages with this many bytes were added or removed.  `unknown`: how many of the removed ones had an unknown size. */
void queue_note_added(queue *q, size_t count, size_t bytes);
void queue_note_removed(queue *q, size_t count, size_t bytes, size_t unknown);
/* A message is about to be removed, which an unfinished look may have counted. */
void queue_note_leaving(queue *q, server_string *member);
/* A message has another value now. */
void queue_note_resized(queue *q, uint64_t serial, size_t before, size_t now);
/* Are the queue's bytes counted? */
bool queue_note_counts(const queue *q);

/* The sessions of one database that have a note.  The caller frees the names and the list. */
size_t queue_notes_names(int db, server_string ***list);

#endif
