/* info.h - INFO holdmq. */
#ifndef HMQ_INFO_H
#define HMQ_INFO_H

#include "server/state.h"

void info_start(server_ctx *ctx);
/* How new subscribers are served, as INFO and the load log say it. */
const char *info_handoff_mode(void);

#endif
