/* history.h - the commands of history; the other headers say what they do.
 *
 * In a cluster the shards of a store are on several nodes: each command is about those that are here
 * (history/slots.h). */
#ifndef HMQ_HISTORY_H
#define HMQ_HISTORY_H

#include "server/args.h"
#include "history/shard.h"

int history_store_command(server_ctx *ctx, server_string **argv, int argc);
int history_stores_command(server_ctx *ctx, server_string **argv, int argc);
int history_unstore_command(server_ctx *ctx, server_string **argv, int argc);
int history_append_command(server_ctx *ctx, server_string **argv, int argc);
int history_import_command(server_ctx *ctx, server_string **argv, int argc);
int history_replay_command(server_ctx *ctx, server_string **argv, int argc);
int history_info_command(server_ctx *ctx, server_string **argv, int argc);
int history_seq_command(server_ctx *ctx, server_string **argv, int argc);
int history_range_command(server_ctx *ctx, server_string **argv, int argc);
int history_patterns_get_command(server_ctx *ctx, server_string **argv, int argc);
int history_patterns_stats_command(server_ctx *ctx, server_string **argv, int argc);
int history_patterns_propose_command(server_ctx *ctx, server_string **argv, int argc);
int history_patterns_prepare_command(server_ctx *ctx, server_string **argv, int argc);
int history_patterns_commit_command(server_ctx *ctx, server_string **argv, int argc);
int history_patterns_abort_command(server_ctx *ctx, server_string **argv, int argc);

/* From now on topics are spread over this many shards.  The store is read again: `store` is invalid afterwards. */
void history_store_spread(server_ctx *ctx, const history_store *store, unsigned shards);

/* Steps over the name of a store; NULL after replying that there is none.  `shard_at`: the place of a shard in the
 * command (0: none); in a cluster the reply may then name the node that has it. */
const history_store *history_take_store(args *a, int shard_at);
/* The place of the number after the word SHARD; 0 if there is none. */
int history_shard_option(const args *a);
/* Steps over the number of a shard, and reads its state; false after replying why not, also if the user may not. */
bool history_take_shard(args *a, const history_store *store, history_shard *state);
/* The same for a given shard. */
bool history_open_shard(server_ctx *ctx, const history_store *store, unsigned shard, history_shard *state);

/* May the user write the keys of this shard?  False after replying an error. */
bool history_may_change(server_ctx *ctx, const history_store *store, unsigned shard);

#endif
