/* history_check.h - compares an epoch's posting lists and marks with what its logs say.
 *
 * Lists and marks follow from the logs: what each would be is made anew, as its writer makes it (history_tail.h), and
 * compared byte by byte.  The tail of the present epoch, which is in no list yet, is left out.
 *
 * For finding out, not for daily use.  O(messages of the epoch); memory: the lists of one pattern at a time. */
#ifndef HMQ_HISTORY_CHECK_H
#define HMQ_HISTORY_CHECK_H

#include "history_shard.h"

/* Calls with a sentence for each difference. */
typedef void (*history_tell)(void *context, const char *sentence);

/* False if the epoch is not known, or has no pattern set. */
bool history_check_epoch(server_ctx *ctx, const history_shard *state, uint32_t epoch, history_tell tell, void *context);

int history_check_command(server_ctx *ctx, server_string **argv, int argc);

#endif
