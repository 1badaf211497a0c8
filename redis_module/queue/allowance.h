/* allowance.h - how much a queue may grow, by the maxima of its user and of the database (queue/usage.h). */
#ifndef HMQ_QUEUE_ALLOWANCE_H
#define HMQ_QUEUE_ALLOWANCE_H

#include "index/index.h"
#include "queue/queue.h"

/* The bytes that a queue has, and its maximum. */
typedef struct queue_allowance {
    bool counts;      /* false: no maximum applies, and the other fields are not set */
    size_t has, most; /* bytes */
    queue_cause cause; /* whose maximum `most` is */
} queue_allowance;
queue_allowance queue_usage_allowance(queue *q);

/* A message reached the maximum: counts it, and logs the user's name (index/usage.h says how often). */
void queue_usage_full(queue *q, queue_cause cause);

/* May the session have one more message of this size? */
bool queue_usage_allows(server_ctx *ctx, hmq_slice session, size_t bytes);

/* Between these two calls, the queues that are judged for a publish must have room for all of it together. */
void queue_usage_judge_begin(void);
/* The same for a publish that is judged in several steps, whose number is another one each time.  One at a time. */
void queue_usage_judge_continue(unsigned long long number);
void queue_usage_reserve(queue *q, size_t bytes);
void queue_usage_judge_end(void);

/* Counts the queue if needed.  False: the count is not complete yet (queue/look.h); call it again soon. */
bool queue_usage_look(queue *q);

/* Reports each counted queue of the context's database that has another number of bytes, and each wrong sum. */
void queue_usage_check(server_ctx *ctx, index_t *index, void (*differ)(void *context, const char *what, hmq_slice name),
                       void *context);

#endif
