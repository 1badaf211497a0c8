/* end_of_turn.h - what the module does at the end of a turn of the event loop. */
#ifndef HMQ_END_OF_TURN_H
#define HMQ_END_OF_TURN_H

#include "server/state.h"

void end_of_turn_start(void);

#endif
