/* subscriptions.h - SESSION.SUBSCRIPTIONS. */
#ifndef HMQ_SESSION_SUBSCRIPTIONS_H
#define HMQ_SESSION_SUBSCRIPTIONS_H

#include "server/state.h"

int session_subscriptions_command(server_ctx *ctx, server_string **argv, int argc);

#endif
