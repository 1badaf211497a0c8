/* replay.h - SESSION.REPLAY: reads history for the subscriptions of a session that replay it. */
#ifndef HMQ_SESSION_REPLAY_H
#define HMQ_SESSION_REPLAY_H

#include "server/state.h"

int session_replay_command(server_ctx *ctx, server_string **argv, int argc);

#endif
