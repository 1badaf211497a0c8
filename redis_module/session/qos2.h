/* qos2.h - QoS 2 for whoever receives and publishes in one step, or takes released messages over. */
#ifndef HMQ_SESSION_QOS2_H
#define HMQ_SESSION_QOS2_H

#include "server/state.h"

/* What is left of a message once PUBREC was received: a pubrel record, or a message as TBMQ keeps it, released.  The caller
 * frees it. */
server_string *qos2_released(const char *value, size_t len);

#endif
