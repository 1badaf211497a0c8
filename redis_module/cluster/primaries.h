/* primaries.h - the nodes that have slots, as this server sees the cluster.
 *
 * A node that still has the slot with which it was last seen has slots: where the server can be asked for the owner of a
 * slot (server/internals.h), nothing else is read.  Otherwise CLUSTER NODES is read at most every PRIMARIES_OLD_MS, and once
 * after primaries_forget.  So the answers here are at most that much older than what the server has heard, which is itself
 * older by the delay of the cluster bus. */
#ifndef HMQ_ROUTE_PRIMARIES_H
#define HMQ_ROUTE_PRIMARIES_H

#include "server/state.h"

#define PRIMARIES_OLD_MS 10

/* The nodes may have changed: the next use reads them again. */
void primaries_forget(void);
/* O(nodes of the cluster). */
bool primaries_include(hmq_slice node);
/* Replies an array of their ids. */
void primaries_reply(server_ctx *ctx);

#endif
