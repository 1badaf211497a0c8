/* history_drop.h - removes the keys of an epoch, or of a whole store: UNLINK, key by key, as stock commands.
 *
 * Posting lists go before the log that tells how many there can be, so what was interrupted can be done again. */
#ifndef HMQ_HISTORY_DROP_H
#define HMQ_HISTORY_DROP_H

#include "history_shard.h"

/* Removes logs, lists and marks of an epoch.  O(keys). */
void history_drop_epoch(server_ctx *ctx, const history_shard *state, const history_epoch *epoch);

/* Removes all that a store has, its policy last.  False after replying what stands in the way. */
bool history_drop_store(server_ctx *ctx, const history_store *store);

/* Removes one key, whatever it holds; replicated.  The name is released. */
void history_drop_key(server_ctx *ctx, server_string *name);

#endif
