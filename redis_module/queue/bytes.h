/* bytes.h - how many bytes a queue holds: as it is remembered (queue/notes.h), or counted. */
#ifndef HMQ_QUEUE_BYTES_H
#define HMQ_QUEUE_BYTES_H

#include "queue/parts.h"

/* The bytes of the queue before `count` messages, the largest of `largest` bytes, are added; 0 if it is a small one, and
 * stays one, or they could not be counted yet (invariant 4). */
size_t queue_bytes_before(queue *q, size_t count, size_t largest, size_t bound);
/* The same, counted at once, whatever is remembered.  O(messages) */
size_t queue_count_bytes(queue *q);
/* For INFO: counted, if it must be. */
size_t queue_bytes(queue *q);

/* Tells each queue of the context's database whose bytes are others than a count finds. */
void queue_notes_check(server_ctx *ctx, void (*differ)(void *context, const char *what, hmq_slice name), void *context);

#endif
