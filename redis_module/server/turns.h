/* turns.h - hears of the end of each turn of the event loop, while there is work to do then.
 *
 * To be called costs the server a quarter of a GET in each turn, whatever the module does.  So the module listens
 * only after somebody asked for it, until nobody has had work for a while. */
#ifndef HMQ_TURNS_H
#define HMQ_TURNS_H

#include "server/state.h"

/* `at_end` runs at the end of a turn, before replies are written.  `has_more`: is there work for later turns? */
void turns_start(void (*at_end)(server_ctx *), bool (*has_more)(void));
/* There is work at the end of this turn.  (`at_end` itself says so by has_more.) */
void turns_request(void);
/* The event loop must turn again, even if no client sends anything. */
void turns_request_another(void);

#endif
