/* list.h - CHANNEL.LIST: which channels hold messages, for tools. */
#ifndef HMQ_CHANNEL_LIST_H
#define HMQ_CHANNEL_LIST_H

#include "server/state.h"

int channel_list_command(server_ctx *ctx, server_string **argv, int argc);

#endif
