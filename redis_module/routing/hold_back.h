/* hold_back.h - after a temporarily refused publish, refuses later publishes of the same client, too.
 *
 *      bridge sends   p1 p2 p3 ... in several commands, before it reads a reply
 *      server         p1: no room  ──►  QUEUEFULL;  p2, p3: TRYAGAIN, although there may be room again
 *      bridge         waits for all replies, pauses, and sends p1 p2 p3 again, in their order
 *
 * Otherwise p2 would be delivered before p1, and once more after it.
 *
 * A publish with RETRY ends this: it says that the bridge has all replies.  Time alone cannot: on a busy machine a command
 * that was under way may come seconds later.  HOLD_BACK_MOST_MS bounds it, for a bridge that does not send p1 again.
 * Programs without an epoch send no RETRY: such a client is held back until it has published nothing for HOLD_BACK_MS.
 *
 * In a cluster each node holds the client back by itself.  A bridge then sends the publishes again one after the other,
 * each with RETRY to all nodes that lack it. */
#ifndef HMQ_HOLD_BACK_H
#define HMQ_HOLD_BACK_H

#include "routing/plan.h"

#define HOLD_BACK_MS 20
#define HOLD_BACK_MOST_MS 5000

/* The publish was temporarily refused. */
void hold_back_begin(const publish_plan *plan);

/* Is its client held back?  A publish with RETRY ends that. */
bool hold_back_is_active(const publish_plan *plan);

#endif
