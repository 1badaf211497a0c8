/* learn.h - a better pattern set for a store, learned from what it holds and from the filters its readers use.
 *
 * A sample of at most HISTORY_SAMPLE_MAX messages is read: windows of consecutive ones, spread evenly over the shards and
 * over what each still shows.  The learner (src/history/learner.h) makes sets of their topics and measures them, and the
 * present one, by the filters (history/uses.h); without any, each topic asks for itself.
 *
 * With LEARN seconds a store does this by itself, a few windows at a time, clients being served in between, and switches
 * if the best set is better by HISTORY_MARGIN percent: at most once in so many seconds, and not while somebody has
 * prepared a set.  Nothing of it is kept but the set that it switches to. */
#ifndef HMQ_HISTORY_LEARN_H
#define HMQ_HISTORY_LEARN_H

#include "history/learner.h"
#include "index/index.h"
#include "history/shard.h"

#define HISTORY_SAMPLE_MAX 8192
#define HISTORY_MARGIN 10

typedef struct history_learning history_learning;

/* Begins to read a sample.  NULL if there is no memory. */
history_learning *history_learning_begin(server_ctx *ctx, const history_store *store);
void history_learning_end(history_learning *learning);

/* Reads on until this time; true once all is read.  What cannot be read is left out. */
bool history_learning_read(server_ctx *ctx, const history_store *store, history_learning *learning, long long until_ms);

/* What it leads to, beside the present set.  NEW: *set is the caller's. */
hmq_proposal history_learning_propose(server_ctx *ctx, const history_store *store, const history_learning *learning,
                                      const hmq_patterns *present, unsigned margin, hmq_patterns **set,
                                      hmq_patterns_cost costs[2]);

/* Messages of the sample so far. */
uint64_t history_learning_messages(const history_learning *learning);

/* The stores of the context's database that learn by themselves.  True if something is left to be done at once. */
bool history_learn(server_ctx *ctx, index_t *index);

#endif
