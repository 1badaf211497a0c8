/* bytes.h - how many bytes a queue holds: as remembered (queue/notes.h), or counted. */
#ifndef HMQ_QUEUE_BYTES_H
#define HMQ_QUEUE_BYTES_H

#include "queue/parts.h"

/* The bytes of the queue before `count` messages are added, the largest of `largest` bytes.  0 if the queue is and
 * stays small, or could not be counted yet (invariant 4 of queue/notes.h). */
size_t queue_bytes_before(queue *q, size_t count, size_t largest, size_t bound);
/* The same, always counted.  O(messages) */
size_t queue_count_bytes(queue *q);
/* For INFO: counted if needed.  Of a long queue that is not counted, the first messages are, and the rest is estimated. */
size_t queue_bytes(queue *q);

/* Reports each queue of the context's database whose remembered bytes differ from a count. */
void queue_notes_check(server_ctx *ctx, void (*differ)(void *context, const char *what, hmq_slice name), void *context);

#endif
