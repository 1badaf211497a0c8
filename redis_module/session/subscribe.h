/* subscribe.h - SESSION.SUBSCRIBE and UNSUBSCRIBE.
 *
 *     {c}_subscriptions    HASH  filter -> options (index/subscription.h) */
#ifndef HMQ_SESSION_SUBSCRIBE_H
#define HMQ_SESSION_SUBSCRIBE_H

#include "server/state.h"

int session_subscribe_command(server_ctx *ctx, server_string **argv, int argc);
int session_unsubscribe_command(server_ctx *ctx, server_string **argv, int argc);

#endif
