/* feed.h - ROUTE.FEED and ROUTE.ADD: give routes to the node that answers publishers.
 *
 *     ROUTE.FEED <node> <generation> <cursor> <next> [SLOTS <count> <first> <last> ...] [ROUTES <filter> <slot> ...]
 *     ROUTE.ADD <filter> <slot> [<filter> <slot> ...]       reply: [node, generation]
 *
 * A page of an export is fed with the cursor that asked for it, and the one that it returned.  Slots are covered when all
 * their routes are here.  A page that begins within a slot is refused (GAP) if the page before it was not fed. */
#ifndef HMQ_ROUTE_FEED_H
#define HMQ_ROUTE_FEED_H

#include "server/state.h"

int route_feed_command(server_ctx *ctx, server_string **argv, int argc);
int route_add_command(server_ctx *ctx, server_string **argv, int argc);

#endif
