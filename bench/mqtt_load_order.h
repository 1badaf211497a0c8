/* mqtt_load_order.h - did every message of one publisher arrive at one subscriber, once and in order?
 *
 * Sequence numbers begin with 0.  What was skipped is remembered as gaps, so that a message that comes late is told
 * from one that comes twice.  A route takes no memory beside itself: with more than ROUTE_GAPS gaps the oldest is
 * written off as lost. */
#ifndef MQTT_LOAD_ORDER_H
#define MQTT_LOAD_ORDER_H

#include <stdint.h>

#define ROUTE_GAPS 16

typedef struct load_gap {
    uint64_t begin;
    uint64_t end; /* behind the last */
} load_gap;

typedef struct load_route {
    uint64_t next;
    uint64_t written_off;
    uint32_t gap_count;
    load_gap gaps[ROUTE_GAPS];
} load_route;

typedef enum load_verdict { ROUTE_IN_ORDER, ROUTE_SKIPPED, ROUTE_LATE, ROUTE_DUPLICATE } load_verdict;

/* A message has arrived.  SKIPPED: it is new, but some before it are missing. */
load_verdict load_route_take(load_route *route, uint64_t sequence);

/* How many of the first `sent` messages have not arrived. */
uint64_t load_route_missing(const load_route *route, uint64_t sent);

#endif
