/* drop.h - removes what is no longer readable, a slice at a time: dropped epochs, whole stores.
 *
 * Dropping epochs means moving the shard's `oldest` past them and writing the state: from then on no reader sees them.
 * Their keys are removed in slices, by UNLINK of each key, for which replicas and the append-only file need no
 * module.
 *
 * Invariants:
 *  1. The keys say what must still be removed: a shard's epochs from `dropping` to `oldest` - 1, and all of a store
 *     whose policy has the field `removed`.  So a restart, or another primary, continues where this one stopped.
 *  2. Of a pattern, the posting lists are removed first, then the log, which says how many lists there can be.  Of an
 *     epoch, its entry among the epochs is removed last; of a shard its state; of a store its policy.
 *  3. The progress of one epoch at a time is kept in memory, so that a slice does not search again for keys that the
 *     previous one removed.  Forgetting it costs only time.
 *
 * Cost: O(1) for each key looked for; the server frees its contents in another thread. */
#ifndef HMQ_HISTORY_DROP_H
#define HMQ_HISTORY_DROP_H

#include "history/shard.h"

/* The work that may be done before clients are served. */
typedef struct history_slice {
    long keys;         /* to be looked for */
    uint64_t until_us; /* monotonic_us(); 0: no bound */
} history_slice;

/* Is some of the slice left?  Reads the clock only once in a while. */
bool history_slice_left(history_slice *slice);

/* Writes oldest, trimmed and dropping, and no other field of the state, which may come from history_shard_load. */
void history_drop_write(server_ctx *ctx, const history_shard *state);

/* Removes the keys of dropped epochs.  True if none is left; the progress is written to the state. */
bool history_drop_epochs(server_ctx *ctx, history_shard *state, history_slice *slice);

/* Marks a store as removed, and removes all that it has here, its policy last.  True if it is gone.  Refresh the
 * store in any case. */
bool history_drop_store(server_ctx *ctx, const history_store *store, history_slice *slice);

/* Is an epoch of another shard half removed? */
bool history_drop_is_elsewhere(server_ctx *ctx, const history_shard *state);

#endif
