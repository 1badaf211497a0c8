/* share_turn.h - the clock's part in shared subscriptions: pending messages go to members that have room. */
#ifndef HMQ_SHARE_TURN_H
#define HMQ_SHARE_TURN_H

#include "index/index.h"

/* Continues to hand out pending messages (due.h); true if more could follow at once. */
bool share_serve_pending(server_ctx *ctx, index_t *index, long long until_ms);

#endif
