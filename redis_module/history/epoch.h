/* epoch.h - the epochs of a shard (history/shard.h): one field of a hash for each. */
#ifndef HMQ_HISTORY_EPOCH_H
#define HMQ_HISTORY_EPOCH_H

#include "history/shard.h"

/* False if there is no such epoch; a dropped one exists until its keys are gone. */
bool history_epoch_read(server_ctx *ctx, const history_shard *state, uint32_t epoch, history_epoch *found);
/* Is the key of the epochs a hash, or not there?  False after replying (if `reply`) that it has another type. */
bool history_epoch_may_begin(server_ctx *ctx, const history_shard *state, bool reply);
/* Ends the current epoch; the next one begins with this message, which may still be to come.  Writes the epoch; the
 * state has changed and must be written completely.  Incomplete lists of the ended epoch are never completed: the
 * epoch is dropped, or was indexed before (history_tail_end of history/append.h). */
void history_epoch_begin(server_ctx *ctx, history_shard *state, hmq_message_id first);
/* The last epoch that begins at this number or before it, and the last that begins at this time or before it; the oldest
 * one if none does.  O(log epochs). */
bool history_epoch_of_sequence(server_ctx *ctx, const history_shard *state, uint64_t sequence, history_epoch *found);
bool history_epoch_of_time(server_ctx *ctx, const history_shard *state, uint64_t time_us, history_epoch *found);

#endif
