/* fan_out_search.h - finds the sessions of a publish in steps, if they cannot be found in the step of the publish.
 *
 *     record, unmatched ──find──► (in memory) ──write──► record, unmatched, 1, 2 ... ──► record, 1, 2 ... n
 *
 * What is found is in memory until all is found: a session gets one copy, with what all its filters say.  After a restart it
 * begins anew, and removes the chunks that were written. */
#ifndef HMQ_FAN_OUT_SEARCH_H
#define HMQ_FAN_OUT_SEARCH_H

#include "routing/fan_out_pending.h"

/* A part of a millisecond.  If another search is under way, that one continues. */
void fan_out_search_step(server_ctx *ctx, index_t *index, fan_out *f);

#endif
