/* notes.h - what is remembered of queues beside their keys, and how many bytes each holds.
 *
 * Invariants:
 *  1. Forgetting a note changes nothing but time: a queue whose bytes are not known is counted when that matters.
 *  2. `bytes` is never less than what the queue's messages have.  It is exact, unless messages have expired since the last
 *     count (`unknown`).  Before a message is dropped for it, expired references are searched for, and it is exact again.
 *  3. A note tells of a queue with as many references as it says.  Any other number means that others changed the queue:
 *     it is counted anew.
 *  4. A queue without a count has at most SMALL_QUEUE messages, each of at most 1/SMALL_QUEUE of its bound: it is within
 *     its bound.  So no queue of a client that keeps up costs a note.  The exception is a queue whose notes were lost (a
 *     restart, another role): it is counted as quickly as queue/look.h allows, and is within its bound from then on.
 *
 * All is O(log notes), but counting (queue/look.h). */
#ifndef HMQ_QUEUE_NOTES_H
#define HMQ_QUEUE_NOTES_H

#include "queue/look.h"
#include "queue/parts.h"

typedef struct queue_note {
    long long calm_until_ms; /* no message in the queue expires before; 0: not known */
    bool is_counted;         /* bytes, length and unknown are valid */
    size_t bytes;            /* of the messages' values */
    size_t length;           /* references */
    size_t unknown;          /* messages that are gone, and are in `bytes` still */
    uint64_t dropped;        /* messages, since {c}_session was written */
    uint64_t saved;          /* what it said then: if it says another number, it is another session's */
    long long saved_ms;      /* when that was */
    bool is_logged;               /* the log has the session's name */
    queue_look look;
} queue_note;

/* NULL: there is none.  Valid until the next queue_note_make. */
queue_note *queue_note_find(const queue *q);
queue_note *queue_note_make(queue *q);
/* The session is over. */
void queue_note_forget(queue *q);

/* Messages of these bytes came, or went; of so many that went nobody knows the size. */
void queue_note_added(queue *q, size_t count, size_t bytes);
void queue_note_removed(queue *q, size_t count, size_t bytes, size_t unknown);
/* A message is about to go, of which a look under way may know. */
void queue_note_leaving(queue *q, server_string *member);
/* A message has got another value. */
void queue_note_resized(queue *q, uint64_t serial, size_t before, size_t now);
/* Does somebody count the queue's bytes? */
bool queue_note_counts(const queue *q);

/* The sessions of one database of which there are notes; the caller frees them and the list. */
size_t queue_notes_names(int db, server_string ***list);

#endif
