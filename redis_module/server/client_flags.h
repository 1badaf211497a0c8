/* client_flags.h - flags of clients that were connected before the module was loaded. */
#ifndef HMQ_CLIENT_FLAGS_H
#define HMQ_CLIENT_FLAGS_H

#include "server/state.h"

/* Calls `use` for each flag of each client, with its letter in CLIENT LIST. */
void client_flags_each(server_ctx *ctx, void (*use)(uint64_t client, char flag));

#endif
