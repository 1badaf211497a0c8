/* hand_over.h - hands over to one new subscriber what one channel holds: its last message at once, or a backlog by a drain. */
#ifndef HMQ_HAND_OVER_H
#define HMQ_HAND_OVER_H

#include "server/push.h"
#include "server/state.h"

/* Hands over from the selected database of the detached context, as policy and the receiver's rights allow.  Returns the bytes
 * that were written (a drain counts its own). */
size_t hand_over_channel(const receiver *to, server_string *channel);

#endif
