/* share_turn.h - the clock's part in shared subscriptions: what waits goes to members that have room. */
#ifndef HMQ_SHARE_TURN_H
#define HMQ_SHARE_TURN_H

#include "index/index.h"

/* Goes on handing out what waits (due.h); true if something is left that could go on at once. */
bool share_do_waiting(server_ctx *ctx, index_t *index, long long until_ms);

#endif
