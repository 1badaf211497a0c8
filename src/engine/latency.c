/* latency.c - measures how long publishes and deliveries take, in ms.
 *
 *      PUBLISH arrives ──► its acknowledgement is in the output     a publish: one per connection at a time
 *      a message was published ──► its PUBLISH is in the output     a delivery: each one that did not wait in a queue
 *
 * A publish is timed if no other of its connection is.  So the cost is two comparisons per publish, and a client that
 * sends many at once counts less than one that sends them singly. */
#include "engine/internal.h"

#define BOUNDS (sizeof((hmq_engine_counters *)NULL)->latency_below_ms / sizeof(uint64_t))

static void add(uint64_t *below, uint64_t *sum, uint64_t ms) {
    static const uint64_t bounds[BOUNDS - 1] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000};
    size_t at = 0;
    while (at < BOUNDS - 1 && ms >= bounds[at]) at++;
    below[at]++;
    *sum += ms;
}

void hmq_latency_delivered(hmq_engine *e, int64_t published_ms) {
    int64_t ms = e->now_ms > published_ms ? e->now_ms - published_ms : 0;
    add(e->count.latency_below_ms, &e->count.latency_ms_sum, (uint64_t)ms);
    e->count.latency_count++;
}

void hmq_latency_end(hmq_engine *e, connection *c) {
    uint32_t ms = (uint32_t)e->now_ms - c->timed_ms;
    c->timed_id = 0;
    if (ms > INT32_MAX) ms = 0; /* the clock was set back */
    add(e->count.acknowledge_below_ms, &e->count.acknowledge_ms_sum, ms);
}
