/* hold_back.h - after a temporarily refused publish, refuses later publishes of the same client, too.
 *
 *      bridge sends   p1 p2 p3 ... in several commands, before it reads a reply
 *      server         p1: no room  ──►  QUEUEFULL;  p2, p3: TRYAGAIN, although there may be room again
 *      bridge         waits for all replies, pauses, and sends p1 p2 p3 again, in their order
 *
 * Otherwise p2 would be delivered before p1, and once more after it.
 *
 * A client is held back until it has published nothing for HOLD_BACK_MS.  That is shorter than a bridge's pause
 * (retry_first_s, 50 ms), and longer than the gaps between commands that are already under way. */
#ifndef HMQ_HOLD_BACK_H
#define HMQ_HOLD_BACK_H

#include "topic/record.h"
#include "server/state.h"

#define HOLD_BACK_MS 20

/* The publish was temporarily refused. */
void hold_back_begin(const hmq_record *record);

/* Is its client held back?  If so, the time restarts. */
bool hold_back_is_active(const hmq_record *record);

#endif
