/* ticks.h - wakes readers that wait for more: a message on holdmq:history:<store>, "<shard> <last sequence>".
 *
 * In a cluster only if a client listens on this node.  At most once per shard and turn of the event loop, at its end,
 * when everything can be read.  A writer only notes the number: a few comparisons. */
#ifndef HMQ_HISTORY_TICKS_H
#define HMQ_HISTORY_TICKS_H

#include "history/store.h"

/* The shard has a message of this sequence number now. */
void history_tick(server_ctx *ctx, const history_store *store, unsigned shard, uint64_t sequence);

/* The end of a turn. */
void history_ticks_before_sleep(server_ctx *ctx);

#endif
