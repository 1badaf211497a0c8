/* queue.h - the SESSION.* commands on a session's queue. */
#ifndef HMQ_SESSION_QUEUE_H
#define HMQ_SESSION_QUEUE_H

#include "server/state.h"

int session_add_command(server_ctx *ctx, server_string **argv, int argc);
int session_fetch_command(server_ctx *ctx, server_string **argv, int argc);
int session_ack_command(server_ctx *ctx, server_string **argv, int argc);
int session_sent_command(server_ctx *ctx, server_string **argv, int argc);
int session_last_command(server_ctx *ctx, server_string **argv, int argc);
int session_release_command(server_ctx *ctx, server_string **argv, int argc);
int session_receive_command(server_ctx *ctx, server_string **argv, int argc);
int session_complete_command(server_ctx *ctx, server_string **argv, int argc);

#endif
