/* switch.h - from one generation of a shard to the next: prepared beforehand, switched in one step.
 *
 *     {<store>/<shard>}_history_prepared   HASH   generation, text (canonical), shards (that topics are to be spread
 *                                                 over; 0: as they are)
 *
 * The switch ends the present epoch; the next one begins with the new pattern set, under
 * {<store>/<shard>}_history_<generation>_patterns.  What was stored before keeps its epochs, their set and its numbers: no
 * reader's place changes.  Replicas get HSET, SET and UNLINK.
 *
 * Two steps, because shards may lie on several servers: each can refuse before one has switched. */
#ifndef HMQ_HISTORY_SWITCH_H
#define HMQ_HISTORY_SWITCH_H

#include "history/shard.h"

/* The present one; a shard that has nothing begins with 1. */
uint32_t history_generation(const history_shard *state);

/* The generation for which a set is prepared; 0: none. */
uint32_t history_prepared(server_ctx *ctx, const history_shard *state);

/* Is a set prepared for this generation?  False after replying (if `reply`) what is there, or what stands in the way of
 * switching.  `state` is the present one. */
bool history_is_prepared(server_ctx *ctx, const history_shard *state, uint32_t generation, bool reply);

/* May it be written?  False after replying (if `reply`) that the key holds something else. */
bool history_may_prepare(server_ctx *ctx, const history_shard *state, bool reply);
void history_prepare(server_ctx *ctx, const history_shard *state, uint32_t generation, hmq_slice text, unsigned shards);
/* Its text, if it is for this generation: the caller's; else NULL. */
server_string *history_prepared_text(server_ctx *ctx, const history_shard *state, uint32_t generation);
/* What was said then; 0 also if there is nothing. */
unsigned history_prepared_shards(server_ctx *ctx, const history_shard *state);

/* After history_is_prepared. */
void history_switch(server_ctx *ctx, history_shard *state, uint32_t generation);

void history_abort(server_ctx *ctx, const history_shard *state);

#endif
