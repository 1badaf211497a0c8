/* visible.h - where the readable part of a shard begins: after dropped messages and those past the store's age. */
#ifndef HMQ_HISTORY_VISIBLE_H
#define HMQ_HISTORY_VISIBLE_H

#include "history/shard.h"

/* The first sequence number that may be shown, last + 1 if none may; or, cheaper, any number up to `wanted` if
 * nothing from `wanted` on is hidden.  False if a key is corrupt.  O(log epochs); if the age divides the epoch of
 * `wanted`, the cost of history_sequence_at. */
bool history_visible(server_ctx *ctx, const history_shard *state, uint64_t now_us, uint64_t wanted, uint64_t *first);

/* The first sequence number that is still kept, shown or not: messages past the store's age may be held back for a
 * reader.  last + 1 if none is.  False if a key is corrupt. */
bool history_first_kept(server_ctx *ctx, const history_shard *state, uint64_t *first);

#endif
