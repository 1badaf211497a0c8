/* turns.h - hears of the end of each turn of the event loop, while there is something to do then.
 *
 * To be told costs the server a quarter of a GET in each turn, whatever the module does.  So the module listens only from the
 * moment on when somebody asks for it, and until nobody has had anything to do for a while. */
#ifndef HMQ_TURNS_H
#define HMQ_TURNS_H

#include "server/state.h"

/* `at_end` runs at the end of a turn, before replies are written; `has_more`: is there something to do in later turns? */
void turns_start(void (*at_end)(server_ctx *), bool (*has_more)(void));
/* Something is to be done at the end of this turn.  (From anywhere but `at_end` itself, which tells by has_more.) */
void turns_wanted(void);

#endif
