/* config.h - the module's settings: names, defaults, limits; CONFIG GET/SET/REWRITE holdmq.*, load arguments. */
#ifndef HMQ_CONFIG_H
#define HMQ_CONFIG_H

#include "server/state.h"

/* Registers and loads the settings.  Load argument: CHANNELS <glob> ..., which narrows the default policy's last rule
 * (all other channels) to these.  NULL, or a sentence that says what was wrong. */
const char *config_start(server_ctx *ctx, server_string **argv, int argc);

#endif
