/* homes.h - as the node of sessions: for each node that answers, the highest generation n that routes were exported to.
 *
 * Empty after load and promotion.  ROUTE.EXPORT makes an entry for a node that has slots in this server's view, and
 * ROUTE.DROPHOME removes it.  So there are about as many entries as the cluster had nodes; HOMES_MOST bounds them. */
#ifndef HMQ_HOMES_H
#define HMQ_HOMES_H

#include "server/state.h"

#define HOMES_MOST 4096

/* 0: none. */
long long homes_of(hmq_slice node);
/* False if there are too many. */
bool homes_note(hmq_slice node, long long n);
void homes_drop(hmq_slice node);
void homes_forget(void);
/* Replies an array: node, n, node, n ... */
void homes_reply(server_ctx *ctx);

#endif
