/* removal.h - removes what is no longer needed: routes without a subscriber, generations that are over.
 *
 *     ROUTE.TOKEN <filter> <slot>              the node that answers: [generation, token], or nothing
 *     ROUTE.UNUSED <filter> <slot>             the node of the slot: 1 if no session of the slot has the filter
 *     ROUTE.DEL <filter> <slot> <generation> <token>      the node that answers: 1 if it removed the route
 *     ROUTE.DROPHOME <node> <generation>       a node of sessions: a node without slots, which cannot be reached
 *     ROUTE.RENEW <generation>                 the node that answers takes a higher generation
 *
 * A route is removed only after a useless visit, in this order: its token is read, the node of the slot is asked, the
 * route is deleted.  A subscription between these adds the route again, which renews the token, and so the route stays.
 *
 * ROUTE.RENEW is for a node whose clock was set back while it was down: other nodes know a higher generation of it, and
 * refuse the current one forever. */
#ifndef HMQ_ROUTE_REMOVAL_H
#define HMQ_ROUTE_REMOVAL_H

#include "server/state.h"

int route_token_command(server_ctx *ctx, server_string **argv, int argc);
int route_unused_command(server_ctx *ctx, server_string **argv, int argc);
int route_del_command(server_ctx *ctx, server_string **argv, int argc);
int route_drophome_command(server_ctx *ctx, server_string **argv, int argc);
int route_renew_command(server_ctx *ctx, server_string **argv, int argc);

#endif
