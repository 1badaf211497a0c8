/* standstill.h - was this node suspended for so long that another one may have replaced it?
 *
 *     stopped (a signal, a suspended host, a long command) for longer than cluster-node-timeout
 *         the other primaries may promote its replica
 *     continues, and finds ROUTE.CHECKs in its buffers, before it hears of that
 *
 * So it refuses them until the majority of the primaries, itself included, has answered a ping that was sent after the
 * standstill.  The remaining risk is the time in which news of a successor travels.
 *
 * An answer counts if it comes after the standstill was noticed.  A node that owed one at that moment has to answer twice:
 * its first answer may have waited in a buffer.  Times in whole seconds do not count: the server has them from others.
 *
 * Two clocks are read: one that runs while the host is suspended, and the wall clock, for a host that was frozen
 * with all its clocks.  A wall clock that is set forward causes a refusal that was not needed.
 *
 * Costs two readings of clocks for each check, and while there is doubt a reading of CLUSTER NODES every 10 ms at most. */
#ifndef HMQ_ROUTE_STANDSTILL_H
#define HMQ_ROUTE_STANDSTILL_H

#include "server/state.h"

/* At the end of each turn. */
void standstill_before_sleep(void);
/* May this node have been replaced?  Then for how long it stood still. */
bool standstill_may_be_replaced(long long *stood_ms);

#endif
