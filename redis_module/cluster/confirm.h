/* confirm.h - ROUTE.CONFIRM, and what SESSION.SUBSCRIBE replies with ROUTES: which nodes have the routes of a subscription.
 *
 *     SESSION.SUBSCRIBE <key> ROUTES ...   [new ...], homes, primaries, [[serial, place, place ...] ...]
 *     ROUTE.CONFIRM <filter> <slot> <serial> <node> <generation> [<node> <generation> ...]
 *
 * A route has a serial from the first subscription that asked for it to the last that leaves.  A subscriber tells it to
 * every home and primary that has not confirmed it, and then confirms what they answered, so that later subscribers of
 * the slot need not tell them again.
 *
 * Invariants:
 *  1. A route has another serial after each time in which this node may have missed something of it: the last
 *     subscription left, its slot was not this node's, this node was promoted, or it forgot its homes.
 *  2. A confirmation with another serial, or of a generation that is not the one in `homes`, has no effect.
 *  3. A serial is used once in the life of a process. */
#ifndef HMQ_ROUTE_CONFIRM_H
#define HMQ_ROUTE_CONFIRM_H

#include "server/args.h"

#define CONFIRM_MOST_PAIRS 256 /* of filter and options, with ROUTES: bounds the reply */

/* Steps over the word ROUTES before pairs (*given); false after replying why it is refused.  A filter may have that name:
 * then the number of arguments is even. */
bool confirm_parse(args *a, bool *given);
/* Replies homes and primaries. */
void confirm_reply_nodes(server_ctx *ctx);
/* After it, for each subscription: replies the serial of its route (0: it has none), and the places in `homes` of the nodes
 * that have the route. */
void confirm_reply_route(server_ctx *ctx, hmq_slice session, hmq_slice filter);

int route_confirm_command(server_ctx *ctx, server_string **argv, int argc);

#endif
