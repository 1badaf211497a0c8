/* tbmq.h - the JSON format of a queued message in TBMQ 2.x, as far as the session commands use it.
 *
 *     {"packetType":"PUBLISH","payload":"<base64>","time":...,"clientId":"...","retained":false,"packetId":1,
 *      "topicName":"...","qos":1}
 *
 * A change reads only the top-level members packetType, packetId and payload, and copies everything else byte by
 * byte.  A value is such a message if it is a JSON object with a member packetType. */
#ifndef HMQ_TBMQ_H
#define HMQ_TBMQ_H

#include "base/base.h"
#include "topic/record.h"

/* cffi-begin */
/* Is this a message in TBMQ's format? */
bool hmq_tbmq_is(const char *json, size_t len);

/* Is it one that has been released (packetType PUBREL)? */
bool hmq_tbmq_is_released(const char *json, size_t len);

/* Writes the message with this packet identifier, replaced or added.  Returns the length written; 0 if the value is no
 * such message or does not fit (len + 20 always suffices). */
size_t hmq_tbmq_with_packet_id(const char *json, size_t len, uint16_t packet_id, char *out, size_t capacity);

/* Writes the released message: packetType PUBREL, payload empty.  Returns as above (len + 8 always suffices). */
size_t hmq_tbmq_released(const char *json, size_t len, char *out, size_t capacity);

/* Reads the message as a record, for delivery: payload and correlation data decoded from base64, texts from JSON, the
 * properties as MQTT 5.0 encodes them.  The record points into `out` (a capacity of len always suffices).  False if
 * the value is not such a message, or a required member is missing or out of range. */
bool hmq_tbmq_read(const char *json, size_t len, uint8_t *out, size_t capacity, hmq_record *record);
/* cffi-end */

#endif
