/* homes.h - as the node of sessions: for each node that answers, the highest generation n that routes were exported to.
 *
 * Empty after load and promotion.  ROUTE.EXPORT makes an entry for a node that has slots in this server's view, and
 * ROUTE.DROPHOME removes it.  So there are about as many entries as the cluster had nodes; HOMES_MOST bounds them. */
#ifndef HMQ_HOMES_H
#define HMQ_HOMES_H

#include "server/state.h"

#define HOMES_MOST 4096

/* Each noted generation has a mark, a bit, as long as it is the one noted: a route's confirmations are a set of marks
 * (cluster/confirm.h).  A mark is given out once in an era; when all were, a new era begins, in which the marks of the
 * era before mean nothing.  So confirmations are lost, never invented.  In a cluster with more homes than marks, some
 * have none, and no route is confirmed there. */
#define HOMES_MARKS 64

/* 0: none. */
long long homes_of(hmq_slice node);
/* False if there are too many. */
bool homes_note(hmq_slice node, long long n);
void homes_drop(hmq_slice node);
void homes_forget(void);
/* Replies an array: node, n, node, n ... */
void homes_reply(server_ctx *ctx);

uint32_t homes_era(void);
/* The mark of this generation; 0: it is not the one noted, or has none. */
uint64_t homes_mark(hmq_slice node, long long n);
/* The marks in the order of homes_reply; 0 for a home without.  Returns how many there are, at most HOMES_MOST. */
size_t homes_marks(uint64_t marks[HOMES_MOST]);

#endif
