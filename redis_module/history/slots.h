/* slots.h - in a cluster: which shards of a store this node serves, and which nodes have the others.
 *
 * All keys of a shard share the tag {<store>/<shard>}, so they are in one slot.  The commands of history name no key,
 * so the server does not redirect them.  The module does, with the server's own replies (MOVED, TRYAGAIN), which
 * cluster clients follow.  While a slot moves between two nodes, neither commands nor background work touch its
 * shards, because half of the keys are elsewhere.  A node that is cut off from the cluster serves nothing
 * (CLUSTERDOWN), so that a primary that was replaced acknowledges nothing.
 *
 * A replica serves reads of the shards whose policy it has a copy of.  Without a cluster everything is here. */
#ifndef HMQ_HISTORY_SLOTS_H
#define HMQ_HISTORY_SLOTS_H

#include "history/store.h"

/* Is the shard this node's, and not moving? */
bool history_is_here(server_ctx *ctx, const history_store *store, unsigned shard);

/* May a command about this shard run here now?  False after replying which node has it, or that its slot is moving. */
bool history_check_here(server_ctx *ctx, const history_store *store, unsigned shard);
/* The same for a shard of a store that is not known here. */
bool history_check_slot(server_ctx *ctx, hmq_slice store, unsigned shard);

/* Is none of the store's shards moving from here, or to here?  False after replying TRYAGAIN, which names one. */
bool history_check_not_moving(server_ctx *ctx, const history_store *store);

#endif
