/* cursor.h - where a page of ROUTE.EXPORT ends.
 *
 *     0                                                   before the first slot, or after the last
 *     <node>:<generation>:<slot>                          before this slot
 *     <node>:<generation>:<slot>:<vanished>:<filter>      within the slot, after this filter
 *
 * Node and generation are those of the exporting node: a cursor of another node, or from before it forgot, is refused. */
#ifndef HMQ_ROUTE_CURSOR_H
#define HMQ_ROUTE_CURSOR_H

#include "server/state.h"

typedef struct route_cursor {
    bool is_end; /* or the beginning: 0 */
    hmq_slice node;
    long long generation;
    unsigned slot;
    bool is_within;
    uint32_t vanished; /* if it is within the slot */
    hmq_slice filter;
} route_cursor;

/* False if the text is not a cursor. */
bool route_cursor_read(hmq_slice text, route_cursor *cursor);
server_string *route_cursor_text(const route_cursor *cursor);

#endif
