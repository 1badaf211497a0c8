/* due.h - the module's clock: does due work about sessions, owners and retention without a command.
 *
 * Ten times a second, for each database that has an index, on a server that takes writes and is not paused: takes
 * deadlines that have passed (index/sessions.h) in their order, for a few milliseconds.  If some are left, the clock
 * runs again a millisecond later, and clients are served in between.  On a replica the clock only keeps the indexes current.
 */
#ifndef HMQ_DUE_H
#define HMQ_DUE_H

#include "server/state.h"

void due_start(void);

#endif
