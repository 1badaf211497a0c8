/* intercept.h - the command filter that makes stock commands persistent. */
#ifndef HMQ_INTERCEPT_H
#define HMQ_INTERCEPT_H

#include "server/state.h"

/* Registers the filter.  False if the server refuses. */
bool intercept_start(server_ctx *ctx);

#endif
