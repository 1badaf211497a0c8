/* answer.h - ROUTE.CHECK, ROUTE.MCHECK and ROUTE.INFO: what a node that answers knows.
 *
 *     ROUTE.CHECK <key> <topic> [EPOCH <epoch>] [KNOWN <node> <generation> <version>]
 *     reply: OK, or [node, generation, version, [first, last, first, last ...] slots]
 *
 *     ROUTE.MCHECK <node> <generation> <key> <topic> <epoch> <version> [<key> <topic> <epoch> <version> ...]
 *     reply: [node, generation, [OK, or [version, [first, last ...]], or an error, for each]]
 *
 * The key is that of the publisher's session.  The command is a write, although it writes nothing: so the server refuses
 * it where it would refuse to store a message. */
#ifndef HMQ_ROUTE_ANSWER_H
#define HMQ_ROUTE_ANSWER_H

#include "server/state.h"

/* Does no session of the cluster have a filter for this topic?  False, too, if this node has not been fed all routes. */
bool route_reaches_nobody(server_ctx *ctx, hmq_slice topic);

int route_check_command(server_ctx *ctx, server_string **argv, int argc);
int route_mcheck_command(server_ctx *ctx, server_string **argv, int argc);
int route_info_command(server_ctx *ctx, server_string **argv, int argc);

#endif
