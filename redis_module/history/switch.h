/* switch.h - from one generation of a shard to the next: prepared beforehand, switched in one step.
 *
 *     {<store>/<shard>}_history_prepared   HASH   generation, text (canonical), shards (over which topics will be spread;
 *                                                 0: unchanged)
 *
 * The switch ends the current epoch.  The next one begins with the new pattern set, under
 * {<store>/<shard>}_history_<generation>_patterns.  Older messages keep their epochs, their set and their numbers, so
 * no reader's place changes.  Replicas get HSET, SET and UNLINK.
 *
 * Two steps, because shards may be on several servers: each can refuse before one has switched. */
#ifndef HMQ_HISTORY_SWITCH_H
#define HMQ_HISTORY_SWITCH_H

#include "history/shard.h"

/* The current generation; an empty shard begins with 1. */
uint32_t history_generation(const history_shard *state);

/* The generation for which a set is prepared; 0: none. */
uint32_t history_prepared(server_ctx *ctx, const history_shard *state);

/* Is a set prepared for this generation?  False after replying (if `reply`) which one is, or what prevents the
 * switch.  `state` is the current one. */
bool history_is_prepared(server_ctx *ctx, const history_shard *state, uint32_t generation, bool reply);

/* May it be written?  False after replying (if `reply`) that the key has another type. */
bool history_prepared_is_writable(server_ctx *ctx, const history_shard *state, bool reply);
void history_prepare(server_ctx *ctx, const history_shard *state, uint32_t generation, hmq_slice text, unsigned shards);
/* Its text, if it is for this generation: the caller's; else NULL. */
server_string *history_prepared_text(server_ctx *ctx, const history_shard *state, uint32_t generation);
/* The number of shards given then; 0 also if nothing is prepared. */
unsigned history_prepared_shards(server_ctx *ctx, const history_shard *state);

/* After history_is_prepared. */
void history_switch(server_ctx *ctx, history_shard *state, uint32_t generation);

void history_abort(server_ctx *ctx, const history_shard *state);

#endif
