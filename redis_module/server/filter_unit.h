/* filter_unit.h - lets the command filter write as a command would, so that the client whose command comes is told of it.
 *
 * From 7.2 on a server keeps back what a command tells its own client (key events, invalidated keys) until the outermost
 * command ends, and gives it to the client of that command.  Before a command runs, the outermost one is a call of the
 * module: its client is nobody, so that the messages are lost and the server's count of the client's output is wrong
 * for ever (Redis 8.0 stops at that).  A unit makes such calls inner ones, and ends as a command of the client does. */
#ifndef HMQ_FILTER_UNIT_H
#define HMQ_FILTER_UNIT_H

#include "server/state.h"

/* Around the work of the filter: whose command comes, 0 if that is not known. */
void filter_unit_client(uint64_t client);
void filter_unit_no_client(void);

/* Around calls that write.  False: there is no unit, and filter_unit_end is not to be called.  Units may be nested. */
bool filter_unit_begin(void);
void filter_unit_end(void);

#endif
