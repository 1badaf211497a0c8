/* allowance.h - how much more a queue may get, by the bounds of its user and of the database (queue/usage.h). */
#ifndef HMQ_QUEUE_ALLOWANCE_H
#define HMQ_QUEUE_ALLOWANCE_H

#include "index/index.h"
#include "queue/queue.h"

/* What a queue has, and may have at most. */
typedef struct queue_allowance {
    bool counts;      /* false: no bound needs to know, and the rest says nothing */
    size_t has, most; /* bytes */
    queue_cause cause; /* whose bound `most` is */
} queue_allowance;
queue_allowance queue_usage_allowance(queue *q);

/* A message met the bound: it is counted, and the log has the user's name, once in a while. */
void queue_usage_full(queue *q, queue_cause cause);

/* May the session have one more message of so many bytes? */
bool queue_usage_allows(server_ctx *ctx, hmq_slice session, size_t bytes);

/* Between these two calls the queues that a publish is judged for are to have room for all of it, not each by itself. */
void queue_usage_judge_begin(void);
void queue_usage_reserve(queue *q, size_t bytes);
void queue_usage_judge_end(void);

/* Counts the queue if it has to be.  False: that is not done yet (queue/look.h), it is to be asked for again soon. */
bool queue_usage_look(queue *q);

/* Tells each counted queue of the context's database that has other bytes, and each sum that is another. */
void queue_usage_check(server_ctx *ctx, index_t *index, void (*differ)(void *context, const char *what, hmq_slice name),
                       void *context);

#endif
