/* uses.h - which filters readers of a store ask for, and how often: what a better pattern set is measured by.
 *
 * In memory only, at most HISTORY_USES_MAX filters of a store (Space-Saving: Metwally and others, 2005): one that is not
 * among them takes the place of the rarest, with its number.  So what is asked often is there, with its number at most as
 * much too high as the rarest has.  A page that is read counts as one use.  Each proposal that was made halves the numbers:
 * what was asked long ago fades.
 *
 * Cost of a use: O(HISTORY_USES_MAX) comparisons of hashes. */
#ifndef HMQ_HISTORY_USES_H
#define HMQ_HISTORY_USES_H

#include "history/learner.h"
#include "history/store.h"

#define HISTORY_USES_MAX 64

/* A page was read. */
void history_uses_note(server_ctx *ctx, const history_store *store, hmq_slice filter);

/* Those of a store; returns how many (at most HISTORY_USES_MAX).  They stay until the next note. */
size_t history_uses_list(server_ctx *ctx, const history_store *store, hmq_filter_use *uses);

void history_uses_fade(server_ctx *ctx, const history_store *store);

/* When the store last began to learn (ms; 0: never): whoever does it notes it here.  NULL if there is no room. */
long long *history_uses_learned(server_ctx *ctx, const history_store *store);

#endif
