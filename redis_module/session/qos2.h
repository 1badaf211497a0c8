/* qos2.h - QoS 2 for commands that receive and publish in one step, or import released messages. */
#ifndef HMQ_SESSION_QOS2_H
#define HMQ_SESSION_QOS2_H

#include "server/state.h"

/* What is stored of a message after PUBREC: a pubrel record, or, in TBMQ's format, a released message.  The caller
 * frees it. */
server_string *qos2_released(const char *value, size_t len);

#endif
