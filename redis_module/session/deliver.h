/* deliver.h - SESSION.DELIVER. */
#ifndef HMQ_SESSION_DELIVER_H
#define HMQ_SESSION_DELIVER_H

#include "server/state.h"

int session_deliver_command(server_ctx *ctx, server_string **argv, int argc);

#endif
