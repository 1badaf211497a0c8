/* visible.h - from where on a shard may be read: behind what was dropped and what is past the store's age. */
#ifndef HMQ_HISTORY_VISIBLE_H
#define HMQ_HISTORY_VISIBLE_H

#include "history/shard.h"

/* The first sequence number that may be shown, last + 1 if none may; or, cheaper, any number that is not above `wanted`
 * if nothing from `wanted` on is hidden.  False if a key is corrupt.
 * O(log epochs); where the age cuts through the epoch of `wanted`, what history_sequence_at costs. */
bool history_visible(server_ctx *ctx, const history_shard *state, uint64_t now_us, uint64_t wanted, uint64_t *first);

/* The first sequence number that is still kept, shown or not: what is past the store's age may be held back for a reader.
 * last + 1 if none is.  False if a key is corrupt. */
bool history_kept(server_ctx *ctx, const history_shard *state, uint64_t *first);

#endif
