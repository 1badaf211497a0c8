/* received.h - QoS 2, incoming: which packet identifiers a session has received and not completed yet.
 *
 *     {c}_received   ZSET  packet identifier -> time of receipt (ms since 1970)
 *
 * An identifier is known from its PUBLISH to its PUBREL, so that a repeated PUBLISH is not published again (MQTT 3.1.1
 * section 4.3.3). */
#ifndef HMQ_QUEUE_RECEIVED_H
#define HMQ_QUEUE_RECEIVED_H

#include "server/state.h"

typedef enum qos2_status { QOS2_NEW, QOS2_RECEIVED, QOS2_WRONG_TYPE } qos2_status;

/* Was a PUBLISH with this identifier received and not completed yet?  QOS2_WRONG_TYPE after replying it. */
qos2_status qos2_find_received(server_ctx *ctx, hmq_slice session, uint16_t packet_id);

/* Notes that it was received (after QOS2_NEW). */
void qos2_mark_received(server_ctx *ctx, hmq_slice session, uint16_t packet_id);

/* The set, open for writing, and its name, which the caller frees; NULL after replying WRONGTYPE. */
server_key *qos2_open(server_ctx *ctx, hmq_slice session, server_string **name);
/* Removes the identifier from the open set; false if it was not there. */
bool qos2_complete(server_ctx *ctx, server_key *set, server_string *name, uint16_t packet_id);

#endif
