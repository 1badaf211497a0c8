/* life.h - when a node forgets what it knows of routes, and what every ROUTE command checks first.
 *
 *     load, promotion, first slot     a new generation, and no homes
 *     last slot lost                  a new generation
 *
 * While a node has no slot, nobody adds routes there.  So a loss must not be overlooked, however short: the server's view
 * is read before each command and event by which the node could get a slot (server/slots.h), and at each use. */
#ifndef HMQ_ROUTE_LIFE_H
#define HMQ_ROUTE_LIFE_H

#include "server/args.h"

void route_life_start(void);

/* Begins a command: is this a node of a cluster, and the database 0?  Then what it knows is current.  False after replying
 * why not. */
bool route_begin_look(args *a);
/* The same without a reply. */
bool route_look(server_ctx *ctx);
/* The same if it matters that the cluster works: this node may have been replaced otherwise. */
bool route_begin(args *a);
/* The same for a node that should answer: it needs a slot. */
bool route_begin_answer(args *a);

/* Is the slot served here?  False after replying MOVED, TRYAGAIN or CLUSTERDOWN. */
bool route_check_slot(server_ctx *ctx, unsigned slot);

/* Steps over the id of a node; false after replying an error. */
bool route_node(args *a, hmq_slice *node);
/* Steps over the number of a generation. */
bool route_generation(args *a, long long *n);
/* Steps over a filter without a group, and a slot. */
bool route_pair(args *a, server_string **filter, unsigned *slot);

#endif
