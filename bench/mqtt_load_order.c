/* mqtt_load_order.c - see mqtt_load_order.h. */
#include "mqtt_load_order.h"

#include <string.h>

static void remove_gap(load_route *route, uint32_t index) {
    route->gap_count--;
    memmove(&route->gaps[index], &route->gaps[index + 1], (route->gap_count - index) * sizeof route->gaps[0]);
}

static void add_gap(load_route *route, uint64_t begin, uint64_t end) {
    if (route->gap_count == ROUTE_GAPS) {
        route->written_off += route->gaps[0].end - route->gaps[0].begin;
        remove_gap(route, 0);
    }
    route->gaps[route->gap_count++] = (load_gap){begin, end};
}

static load_verdict fill_gap(load_route *route, uint64_t sequence) {
    for (uint32_t i = 0; i < route->gap_count; i++) {
        load_gap gap = route->gaps[i];
        if (sequence < gap.begin || sequence >= gap.end) continue;
        remove_gap(route, i);
        if (gap.begin < sequence) add_gap(route, gap.begin, sequence);
        if (sequence + 1 < gap.end) add_gap(route, sequence + 1, gap.end);
        return ROUTE_LATE;
    }
    return ROUTE_DUPLICATE;
}

load_verdict load_route_take(load_route *route, uint64_t sequence) {
    if (sequence == route->next) {
        route->next++;
        return ROUTE_IN_ORDER;
    }
    if (sequence < route->next) return fill_gap(route, sequence);
    add_gap(route, route->next, sequence);
    route->next = sequence + 1;
    return ROUTE_SKIPPED;
}

uint64_t load_route_missing(const load_route *route, uint64_t sent) {
    uint64_t missing = route->written_off + (sent > route->next ? sent - route->next : 0);
    for (uint32_t i = 0; i < route->gap_count; i++) missing += route->gaps[i].end - route->gaps[i].begin;
    return missing;
}
