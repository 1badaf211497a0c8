/* uses.h - which filters the readers of a store use, and how often: the measure for a better pattern set.
 *
 * In memory only, at most HISTORY_USES_MAX filters per store (Space-Saving: Metwally and others, 2005).  A filter
 * that is not among them replaces the rarest, and inherits its count.  So frequent filters are there, with a count
 * that is too high by at most that of the rarest.  A page that is read counts as one use.  Each proposal halves the
 * counts, so that old uses fade.
 *
 * Cost of a use: O(HISTORY_USES_MAX) comparisons of hashes. */
#ifndef HMQ_HISTORY_USES_H
#define HMQ_HISTORY_USES_H

#include "history/learner.h"
#include "history/store.h"

#define HISTORY_USES_MAX 64

/* A page was read. */
void history_uses_note(server_ctx *ctx, const history_store *store, hmq_slice filter);

/* The uses of a store; returns how many (at most HISTORY_USES_MAX).  Valid until the next note. */
size_t history_uses_list(server_ctx *ctx, const history_store *store, hmq_filter_use *uses);

void history_uses_decay(server_ctx *ctx, const history_store *store);

/* When the store last began to learn (ms; 0: never): the learner notes it here.  NULL if there is no room. */
long long *history_uses_learned(server_ctx *ctx, const history_store *store);

#endif
