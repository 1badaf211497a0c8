/* list.h - SESSION.LIST: pages through the opened sessions of a database, for tools. */
#ifndef HMQ_SESSION_LIST_H
#define HMQ_SESSION_LIST_H

#include "server/state.h"

int session_list_command(server_ctx *ctx, server_string **argv, int argc);

#endif
