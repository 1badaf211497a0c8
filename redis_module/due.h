/* due.h - the module's clock: does what is due about sessions, owners and retention without a command.
 *
 * Ten times a second, for each database that has an index, on a server that takes writes and is not paused: deadlines that
 * have passed (index/sessions.h) are taken in their order, for a few milliseconds; if some are left the clock comes again a
 * millisecond later, and clients are served in between.  On a replica only the indexes are kept current. */
#ifndef HMQ_DUE_H
#define HMQ_DUE_H

#include "server/state.h"

void due_start(server_ctx *ctx);

#endif
