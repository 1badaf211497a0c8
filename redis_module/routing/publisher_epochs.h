/* publisher_epochs.h - the highest epoch of each publisher that a slot of a cluster has seen.
 *
 *     {<digits>}_epoch{<client id>}   STRING  "<epoch>"    the digits put the key into the slot
 *
 * An old bridge's publish may still arrive when the client has published through another bridge.  The slot then has the
 * later epoch, and refuses the earlier one.
 *
 * Invariants:
 *  1. It is written in the step that publishes, so a target that has a message of an epoch refuses the epochs before it,
 *     wherever its slot moves.
 *  2. It ends PUBLISHER_EPOCH_MS after it was written.  It is written again with the next publish after that.  So a
 *     publish of an earlier epoch is refused for at least an hour, or until the publisher is silent for as long.
 *
 * A publish costs a look-up for each slot, and a write for each slot that has not seen the epoch. */
#ifndef HMQ_PUBLISHER_EPOCHS_H
#define HMQ_PUBLISHER_EPOCHS_H

#include "topic/slot.h"
#include "server/state.h"

#define PUBLISHER_EPOCH_MS (3600LL * 1000)

typedef enum epoch_verdict {
    EPOCH_SEEN,   /* it is the highest so far */
    EPOCH_NEW,    /* it is higher than all so far, or the first */
    EPOCH_FENCED, /* a higher one was seen */
    EPOCH_REFUSED /* after replying WRONGTYPE */
} epoch_verdict;

epoch_verdict publisher_epoch_judge(server_ctx *ctx, unsigned slot, hmq_slice client_id, long long epoch);
/* Is this exactly the highest epoch that the slot has seen? */
bool publisher_epoch_seen(server_ctx *ctx, unsigned slot, hmq_slice client_id, long long epoch);
/* After EPOCH_NEW, in the step that publishes. */
void publisher_epoch_note(server_ctx *ctx, unsigned slot, hmq_slice client_id, long long epoch);

#endif
