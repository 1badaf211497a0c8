/* client_flags.h - flags of clients, as CLIENT LIST shows them. */
#ifndef HMQ_CLIENT_FLAGS_H
#define HMQ_CLIENT_FLAGS_H

#include "server/state.h"

/* Calls `use` for each flag of each client, with its letter in CLIENT LIST.  2 to 3 us for each client. */
void client_flags_each(server_ctx *ctx, void (*use)(uint64_t client, char flag));
/* The same for one client. */
void client_flags_of(server_ctx *ctx, uint64_t client, void (*use)(uint64_t client, char flag));

#endif
