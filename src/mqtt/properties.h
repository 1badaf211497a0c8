/* properties.h - the properties of MQTT 5.0 (section 2.2.2): checked, read one by one, written, passed on.
 *
 *      +-----------------+------+-------+------+-------+- - -
 *      | length, of all  |  id  | value |  id  | value |         a `properties` slice begins after the length
 *      +-----------------+------+-------+------+-------+- - -
 *
 * The packet decoder checks all properties: that each identifier is known, allowed in the packet and not repeated, and that
 * its value is valid.  So the readers here check no values again; any bytes are safe, and nothing is read beyond the end. */
#ifndef HMQ_MQTT_PROPERTIES_H
#define HMQ_MQTT_PROPERTIES_H

#include "mqtt/mqtt.h"

/* cffi-begin */
/* Table 2-4. */
typedef enum hmq_mqtt_property_id {
    HMQ_MQTT_PAYLOAD_FORMAT = 0x01,
    HMQ_MQTT_MESSAGE_EXPIRY = 0x02,
    HMQ_MQTT_CONTENT_TYPE = 0x03,
    HMQ_MQTT_RESPONSE_TOPIC = 0x08,
    HMQ_MQTT_CORRELATION_DATA = 0x09,
    HMQ_MQTT_SUBSCRIPTION_ID = 0x0B,
    HMQ_MQTT_SESSION_EXPIRY = 0x11,
    HMQ_MQTT_ASSIGNED_CLIENT_ID = 0x12,
    HMQ_MQTT_SERVER_KEEP_ALIVE = 0x13,
    HMQ_MQTT_AUTH_METHOD = 0x15,
    HMQ_MQTT_AUTH_DATA = 0x16,
    HMQ_MQTT_REQUEST_PROBLEM = 0x17,
    HMQ_MQTT_WILL_DELAY = 0x18,
    HMQ_MQTT_REQUEST_RESPONSE = 0x19,
    HMQ_MQTT_RESPONSE_INFORMATION = 0x1A,
    HMQ_MQTT_SERVER_REFERENCE = 0x1C,
    HMQ_MQTT_REASON_STRING = 0x1F,
    HMQ_MQTT_RECEIVE_MAXIMUM = 0x21,
    HMQ_MQTT_TOPIC_ALIAS_MAXIMUM = 0x22,
    HMQ_MQTT_TOPIC_ALIAS = 0x23,
    HMQ_MQTT_MAXIMUM_QOS = 0x24,
    HMQ_MQTT_RETAIN_AVAILABLE = 0x25,
    HMQ_MQTT_USER_PROPERTY = 0x26,
    HMQ_MQTT_MAXIMUM_PACKET_SIZE = 0x27,
    HMQ_MQTT_WILDCARD_AVAILABLE = 0x28,
    HMQ_MQTT_SUBSCRIPTION_ID_AVAILABLE = 0x29,
    HMQ_MQTT_SHARED_AVAILABLE = 0x2A
} hmq_mqtt_property_id;

/* The place of properties: an hmq_mqtt_type, or this value for the properties of a will. */
#define HMQ_MQTT_WILL 0

typedef enum hmq_mqtt_property_kind {
    HMQ_MQTT_NO_PROPERTY = 0, /* the identifier is not in table 2-4 */
    HMQ_MQTT_BYTE = 1,
    HMQ_MQTT_TWO_BYTES = 2,
    HMQ_MQTT_FOUR_BYTES = 3,
    HMQ_MQTT_VARIABLE = 4, /* variable byte integer, 0 .. 268435455 */
    HMQ_MQTT_TEXT = 5,
    HMQ_MQTT_BINARY = 6,
    HMQ_MQTT_PAIR = 7      /* two texts: name and value */
} hmq_mqtt_property_kind;

typedef struct hmq_mqtt_property {
    uint8_t id;      /* hmq_mqtt_property_id */
    uint8_t kind;    /* hmq_mqtt_property_kind */
    uint32_t number; /* of numeric kinds, in the unit of the standard */
    hmq_slice name;  /* of a pair */
    hmq_slice value; /* text, binary data, or the value of a pair */
} hmq_mqtt_property;

hmq_mqtt_property_kind hmq_mqtt_kind_of_property(uint8_t id);

/* Checks the properties of a packet (hmq_mqtt_type) or of a will (HMQ_MQTT_WILL).  Returns the first fault, or HMQ_MQTT_OK.
 * Each identifier must be known and allowed in this place, and each value must be in its range.  Only user properties,
 * and subscription identifiers in a PUBLISH (the server sends several), may be repeated. */
hmq_mqtt_error hmq_mqtt_check_properties(hmq_slice properties, uint8_t place);

/* Reads the property at *at (0: the first) and advances *at; false after the last, or where no property begins. */
bool hmq_mqtt_next_property(hmq_slice properties, size_t *at, hmq_mqtt_property *property);

/* Each function writes one property.  It returns the bytes written; 0 if they do not fit, the identifier has another kind,
 * or the value is out of range.  Only the length of texts is checked. */
size_t hmq_mqtt_put_number(uint8_t id, uint32_t number, uint8_t *out, size_t capacity);
size_t hmq_mqtt_put_value(uint8_t id, hmq_slice value, uint8_t *out, size_t capacity); /* text or binary */
size_t hmq_mqtt_put_user_property(hmq_slice name, hmq_slice value, uint8_t *out, size_t capacity);
size_t hmq_mqtt_put_property(const hmq_mqtt_property *property, uint8_t *out, size_t capacity); /* by its identifier */

/* The properties of a PUBLISH or of a will, split into those that the server uses itself and those that it passes to all
 * subscribers unchanged (payload format, content type, response topic, correlation data, user properties in order). */
typedef struct hmq_mqtt_publish_properties {
    uint16_t topic_alias; /* 0: none */
    bool has_message_expiry;
    uint32_t message_expiry_s;
    uint32_t will_delay_s; /* of a will; 0: none */
    uint32_t subscription_ids; /* how many; a client must not send any [MQTT-3.3.4-6] */
    size_t passed_len; /* bytes of the passed properties */
    bool contiguous; /* the passed properties are contiguous in the input: `passed`; else `passed` is empty */
    hmq_slice passed; /* if not contiguous, hmq_mqtt_copy_passed collects them */
} hmq_mqtt_publish_properties;

/* One pass.  After a fault *out describes the properties before it.  HMQ_MQTT_OK for all properties that the decoder
 * accepts in a PUBLISH or a will; else UNKNOWN_PROPERTY, MISPLACED_PROPERTY or TRUNCATED. */
hmq_mqtt_error hmq_mqtt_split_publish_properties(hmq_slice properties, hmq_mqtt_publish_properties *out);

/* Writes the passed properties in order; returns their size, 0 if there are none or they do not fit. */
size_t hmq_mqtt_copy_passed(hmq_slice properties, uint8_t *out, size_t capacity);
/* cffi-end */

#endif
