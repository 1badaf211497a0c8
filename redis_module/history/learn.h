/* learn.h - finds a better pattern set for a store, from its messages and from the filters of its readers.
 *
 * Reads a sample of at most HISTORY_SAMPLE_MAX messages: windows of consecutive ones, spread evenly over the shards
 * and over the readable range of each.  The learner (src/history/learner.h) makes pattern sets of their topics, and
 * measures them and the current set by the filters (history/uses.h); without any, each topic counts as a filter.
 *
 * With LEARN seconds a store does this by itself, a few windows at a time, so that clients are served in between.  It
 * switches if the best set is better by HISTORY_MARGIN percent: at most once per LEARN seconds, and not while a set
 * is prepared.  Only the set to which it switches is kept. */
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

/* Continues to read until this time; true once all is read.  Unreadable messages are left out. */
bool history_learning_read(server_ctx *ctx, const history_store *store, history_learning *learning, long long until_ms);

/* The result, beside the current set.  NEW: *set is the caller's. */
hmq_proposal history_learning_propose(server_ctx *ctx, const history_store *store, const history_learning *learning,
                                      const hmq_patterns *present, unsigned margin, hmq_patterns **set,
                                      hmq_patterns_cost costs[2]);

/* Messages of the sample so far. */
uint64_t history_learning_messages(const history_learning *learning);

/* Works for the stores of the context's database that learn by themselves.  True if more could be done at once. */
bool history_learn(server_ctx *ctx, index_t *index);

#endif
