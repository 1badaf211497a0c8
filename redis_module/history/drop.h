/* drop.h - removes what nobody reads any more, a slice at a time: epochs that were dropped, whole stores.
 *
 * Who drops epochs moves the shard's `oldest` past them and writes the state: from then on nobody sees them.  Their keys
 * go in slices, as UNLINK of each key: replicas and the append-only file need no module for it.
 *
 * Invariants:
 *  1. What is still to be removed stands in the keys: a shard's epochs from `dropping` to `oldest` - 1, and all of a store
 *     whose policy has the field `removed`.  So a restart, or another primary, goes on where this one stopped.
 *  2. Of a pattern the posting lists go first, then the log, which tells how many lists there can be; of an epoch its
 *     entry among the epochs goes last; of a shard its state; of a store its policy.
 *  3. How far an epoch is, is remembered in memory for one epoch at a time, so that a slice need not look again for what
 *     the one before has removed.  Forgetting it costs time, nothing else.
 *
 * Cost: O(1) for each key looked for; the server frees what was in it in a thread of its own. */
#ifndef HMQ_HISTORY_DROP_H
#define HMQ_HISTORY_DROP_H

#include "history/shard.h"

/* What may be done before others are served. */
typedef struct history_slice {
    long keys;         /* to be looked for */
    uint64_t until_us; /* monotonic_us(); 0: no bound */
} history_slice;

/* Is some of the slice left?  Asks the clock now and then. */
bool history_slice_left(history_slice *slice);

/* Writes oldest, trimmed and dropping, and nothing else of the state: it may be one that history_shard_load made. */
void history_drop_write(server_ctx *ctx, const history_shard *state);

/* Removes the keys of epochs that were dropped.  True if none is left; what it did is written to the state. */
bool history_drop_epochs(server_ctx *ctx, history_shard *state, history_slice *slice);

/* Marks a store as removed, and does the same for all that it has here, its policy last.  True if it is gone; the store is
 * to be refreshed in any case. */
bool history_drop_store(server_ctx *ctx, const history_store *store, history_slice *slice);

/* Is an epoch half removed that is not of this shard? */
bool history_drop_is_elsewhere(server_ctx *ctx, const history_shard *state);

#endif
