/* tbmq.h - the JSON format in which TBMQ 2.x keeps a queued message, as far as the session commands use it.
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
/* Is this a message as TBMQ keeps it? */
bool hmq_tbmq_is(const char *json, size_t len);

/* ... and has its exchange been released (packetType PUBREL)? */
bool hmq_tbmq_is_released(const char *json, size_t len);

/* The message with this packet identifier in place of its own, or added.  Returns the length written, 0 if it is no
 * such message or does not fit (len + 20 always suffices). */
size_t hmq_tbmq_with_packet_id(const char *json, size_t len, uint16_t packet_id, char *out, size_t capacity);

/* The message as released: packetType PUBREL, payload empty.  Returns as above (len + 8 always suffices). */
size_t hmq_tbmq_released(const char *json, size_t len, char *out, size_t capacity);

/* The message as a record, for whoever delivers it: payload and correlation data decoded from base64, texts from JSON, the
 * properties as MQTT 5.0 encodes them.  What the record points to lies in `out` (a capacity of len always suffices).  False
 * if it is no such message, or a member that matters is missing or out of its range. */
bool hmq_tbmq_read(const char *json, size_t len, uint8_t *out, size_t capacity, hmq_record *record);
/* cffi-end */

#endif
