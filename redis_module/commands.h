/* commands.h - the one table that declares the module's commands. */
#ifndef HMQ_COMMANDS_H
#define HMQ_COMMANDS_H

#include "server/state.h"

/* Registers every command with its flags, key specs, ACL categories and documentation.  NULL, or the name of the one that
 * the server refused. */
const char *commands_start(server_ctx *ctx);

#endif
