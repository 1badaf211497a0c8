/* filter_unit.h - lets the command filter write as a command would, so that the client whose command is about to run gets
 * the events of these writes.
 *
 * From 7.2 on, a server holds back what a command causes for its own client (key events, invalidated keys) until the
 * outermost command ends, and then sends it to the client of that command.  Before a command runs, the outermost
 * command is a call of the module, which has no client.  The messages are then lost, and the server's count of the
 * client's output stays wrong (Redis 8.0 crashes because of that).  Inside a unit such calls are nested ones, and the
 * unit ends as a command of the client does. */
#ifndef HMQ_FILTER_UNIT_H
#define HMQ_FILTER_UNIT_H

#include "server/state.h"

/* Around the work of the filter: the client whose command is about to run, 0 if not known. */
void filter_unit_client(uint64_t client);
void filter_unit_no_client(void);

/* Around calls that write.  False: there is no unit, and filter_unit_end is not to be called.  Units may be nested. */
bool filter_unit_begin(void);
void filter_unit_end(void);

#endif
