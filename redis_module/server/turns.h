/* turns.h - calls the module at the end of each turn of the event loop, while it has work to do then.
 *
 * Such a call costs the server a quarter of a GET in each turn, whatever the module does.  So the module registers for it
 * on request, until there has been no work for a while. */
#ifndef HMQ_TURNS_H
#define HMQ_TURNS_H

#include "server/state.h"

/* `at_end` runs at the end of a turn, before replies are written.  `has_more`: is there work for later turns? */
void turns_start(void (*at_end)(server_ctx *), bool (*has_more)(void));
/* Requests a call of `at_end` at the end of this turn.  (`at_end` itself does so by has_more.) */
void turns_request(void);
/* Requests a further turn of the event loop, even if no client sends anything. */
void turns_request_another(void);

#endif
