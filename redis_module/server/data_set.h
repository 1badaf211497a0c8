/* data_set.h - hears that the data changed as a whole: it was loaded, a database was emptied, two were swapped.
 *
 * A primary by itself empties and swaps databases only by commands.  Then it is enough to listen from the moment in which
 * the command filter sees such a command (server/listening.h). */
#ifndef HMQ_DATA_SET_H
#define HMQ_DATA_SET_H

#include "server/state.h"

/* The handlers of SERVER_EVENT_LOADING, SERVER_EVENT_FLUSHDB, SERVER_EVENT_SWAPDB. */
void data_set_on_load(server_event_handler handler);
void data_set_on_flush(server_event_handler handler);
void data_set_on_swap(server_event_handler handler);

/* May the data change without a command that the filter sees?  Not to be set to false while the server calls listeners. */
void data_set_may_change_unseen(bool may);
/* A client sent FLUSHALL or FLUSHDB; SWAPDB. */
void data_set_note_flush(void);
void data_set_note_swap(void);

#endif
