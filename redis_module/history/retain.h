/* retain.h - retention: removes messages beyond their store's age or size, epoch by epoch, in the background.
 *
 * Invariants:
 *  1. Whole epochs are dropped, the oldest of all shards first, by the time at which they begin: those in which all is past
 *     AGE, and as many as make the store fit BYTES.  The current epoch stays, unless all of it is past AGE.
 *     In a cluster each shard has its part of BYTES and HOLDBYTES.  Only shards on this node that are not moving are checked.
 *  2. Nothing that a reader holds is dropped (history/hold.h), until what readers hold back exceeds HOLDBYTES.
 *  3. Only a server that takes writes does any of this.
 *
 * Each store is checked about once a second, O(shards * log epochs).  Dropped epochs are removed (history/drop.h) in slices
 * of about a millisecond, and clients are served in between. */
#ifndef HMQ_HISTORY_RETAIN_H
#define HMQ_HISTORY_RETAIN_H

#include "index/index.h"

/* For the context's database.  True if something is left to be done at once. */
bool history_retain(server_ctx *ctx, index_t *index);

#endif
