/* import.h - SESSION.IMPORT. */
#ifndef HMQ_SESSION_IMPORT_H
#define HMQ_SESSION_IMPORT_H

#include "server/state.h"

int session_import_command(server_ctx *ctx, server_string **argv, int argc);

#endif
