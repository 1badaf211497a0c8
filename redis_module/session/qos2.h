/* qos2.h - QoS 2 for whoever receives and publishes in one step, or takes released messages over. */
#ifndef HMQ_SESSION_QOS2_H
#define HMQ_SESSION_QOS2_H

#include "server/state.h"

typedef enum qos2_status { QOS2_NEW, QOS2_KNOWN, QOS2_WRONG_TYPE } qos2_status;

/* Was a PUBLISH with this identifier received and not completed yet?  QOS2_WRONG_TYPE after replying it. */
qos2_status qos2_look(server_ctx *ctx, hmq_slice session, uint16_t packet_id);

/* It was received now (after QOS2_NEW). */
void qos2_note(server_ctx *ctx, hmq_slice session, uint16_t packet_id);

/* What is left of a message once PUBREC was received: a pubrel record, or a message as TBMQ keeps it, released.  The caller
 * frees it. */
server_string *qos2_released(const char *value, size_t len);

#endif
