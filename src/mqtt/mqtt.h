/* mqtt.h - the MQTT packet codec: bytes to packets and packets to bytes, without I/O, state or memory of its own.
 *
 *        bytes of a socket ──► hmq_mqtt_decode_many ──► packets that point into those bytes
 *        packets           ──► hmq_mqtt_encode      ──► bytes in the caller's buffer
 *
 * It reads and writes all types, so servers, clients and tests share it.  Which packet may be sent when (no SUBACK from a
 * client, no subscription identifier in its PUBLISH) is for the session to check, not for the codec.
 *
 * The decoder returns: > 0 bytes consumed, 0 more bytes are needed, < 0 an hmq_mqtt_error.  A packet is decoded completely
 * or not at all; a fault in the fixed header is reported before the rest has arrived.  Nothing is read beyond len, and
 * nothing in the input is trusted.
 *
 * Versions: 4 is MQTT 3.1.1 (OASIS standard, 2014), 5 is MQTT 5.0 (OASIS standard, 2019); the marks [MQTT-x] cite their
 * statements.  0 is the beginning of a connection to a server: the first packet must be a CONNECT, of either version.
 * Later packets in the same bytes are decoded by the version of the CONNECT.
 *
 * A refused CONNECT is answered in its own version.  packet.version is the level in the CONNECT, valid or not:
 *
 *      0, 1..4     hmq_mqtt_error_connack, if not 0, in a CONNACK of 3.1.1
 *      5 and more  hmq_mqtt_error_reason in a CONNACK of 5.0 */
#ifndef HMQ_MQTT_H
#define HMQ_MQTT_H

#include "base/base.h"
#include "topic/topic.h"

/* cffi-begin */
#define HMQ_MQTT_3_1_1 4 /* the protocol level on the wire */
#define HMQ_MQTT_BRIDGE 0x80 /* a bit of the level, with 3.1.1: Mosquitto connects as a bridge */
#define HMQ_MQTT_5_0 5
#define HMQ_MQTT_ANY_VERSION 0 /* for the decoder: that of the CONNECT */

/* A remaining length of four bytes, and the five bytes before it (section 2.2.3). */
#define HMQ_MQTT_MAX_REMAINING 268435455
#define HMQ_MQTT_MAX_BYTES 268435460

typedef enum hmq_mqtt_type {
    HMQ_MQTT_CONNECT = 1,
    HMQ_MQTT_CONNACK = 2,
    HMQ_MQTT_PUBLISH = 3,
    HMQ_MQTT_PUBACK = 4,
    HMQ_MQTT_PUBREC = 5,
    HMQ_MQTT_PUBREL = 6,
    HMQ_MQTT_PUBCOMP = 7,
    HMQ_MQTT_SUBSCRIBE = 8,
    HMQ_MQTT_SUBACK = 9,
    HMQ_MQTT_UNSUBSCRIBE = 10,
    HMQ_MQTT_UNSUBACK = 11,
    HMQ_MQTT_PINGREQ = 12,
    HMQ_MQTT_PINGRESP = 13,
    HMQ_MQTT_DISCONNECT = 14,
    HMQ_MQTT_AUTH = 15 /* 5.0 */
} hmq_mqtt_type;

/* In 3.1.1 all but two close the connection without an answer [MQTT-4.8.0-1].  In 5.0 each has a reason code. */
typedef enum hmq_mqtt_error {
    HMQ_MQTT_OK = 0,
    HMQ_MQTT_BAD_VERSION = -1,
    HMQ_MQTT_BAD_TYPE = -2,
    HMQ_MQTT_BAD_FLAGS = -3,
    HMQ_MQTT_BAD_QOS = -4,
    HMQ_MQTT_BAD_DUP = -5,
    HMQ_MQTT_BAD_LENGTH = -6,
    HMQ_MQTT_TOO_LARGE = -7,
    HMQ_MQTT_TRUNCATED = -8,
    HMQ_MQTT_TRAILING = -9,
    HMQ_MQTT_NOT_UTF8 = -10,
    HMQ_MQTT_NUL = -11,
    HMQ_MQTT_BAD_PROTOCOL_NAME = -12,
    HMQ_MQTT_BAD_PROTOCOL_LEVEL = -13, /* also answered in 3.1.1: CONNACK 0x01 */
    HMQ_MQTT_BAD_CONNECT_FLAGS = -14,
    HMQ_MQTT_BAD_WILL_FLAGS = -15,
    HMQ_MQTT_BAD_WILL_QOS = -16,
    HMQ_MQTT_BAD_PASSWORD_FLAG = -17,
    HMQ_MQTT_BAD_CLIENT_ID = -18,      /* also answered in 3.1.1: CONNACK 0x02 */
    HMQ_MQTT_BAD_PACKET_ID = -19,
    HMQ_MQTT_TOPIC_EMPTY = -20,
    HMQ_MQTT_TOPIC_WILDCARD = -21,
    HMQ_MQTT_TOPIC_TOO_DEEP = -22,
    HMQ_MQTT_BAD_PLUS = -23,
    HMQ_MQTT_BAD_HASH = -24,
    HMQ_MQTT_BAD_OPTIONS = -25,
    HMQ_MQTT_NO_SUBSCRIPTIONS = -26,
    HMQ_MQTT_NO_UNSUBSCRIPTIONS = -27,
    HMQ_MQTT_BAD_CONNACK = -28,
    HMQ_MQTT_BAD_SUBACK = -29,
    HMQ_MQTT_NO_CONNECT = -30,
    HMQ_MQTT_NOT_MINIMAL = -31, /* from here on: 5.0 */
    HMQ_MQTT_UNKNOWN_PROPERTY = -32,
    HMQ_MQTT_MISPLACED_PROPERTY = -33,
    HMQ_MQTT_REPEATED_PROPERTY = -34,
    HMQ_MQTT_BAD_PROPERTY_VALUE = -35,
    HMQ_MQTT_BAD_TOPIC_ALIAS = -36,
    HMQ_MQTT_BAD_RESPONSE_TOPIC = -37,
    HMQ_MQTT_NO_AUTH_METHOD = -38,
    HMQ_MQTT_NO_TOPIC = -39,
    HMQ_MQTT_BAD_REASON = -40,
    HMQ_MQTT_BAD_UNSUBACK = -41,
    HMQ_MQTT_BAD_SUBSCRIPTION = -42,
    HMQ_MQTT_SHARED_NO_LOCAL = -43,
    HMQ_MQTT_TOO_MANY_FILTERS = -44, /* from here on: limits of the receiver (hmq_mqtt_limits) */
    HMQ_MQTT_TOO_MANY_USER_PROPERTIES = -45,
    HMQ_MQTT_CONNECT_TOO_LARGE = -46
} hmq_mqtt_error;

/* What was wrong, and the violated statement, without a full stop.  Never NULL. */
const char *hmq_mqtt_error_text(hmq_mqtt_error error);
/* 3.1.1: the return code of the CONNACK that must be sent before the connection is closed; 0: close without one. */
uint8_t hmq_mqtt_error_connack(hmq_mqtt_error error);
/* 5.0: the reason code of the CONNACK or DISCONNECT that a server sends before it closes the connection.  0x80 and more
 * for every error. */
uint8_t hmq_mqtt_error_reason(hmq_mqtt_error error);
/* May a 5.0 packet of this type (in SUBACK and UNSUBACK: one of its entries) have this reason code (table 2-6)?  False for
 * types without reason codes. */
bool hmq_mqtt_reason_is_known(uint8_t type, uint8_t code);

/* Any packet.  Its type uses these fields; all others are 0:
 *
 *      CONNECT                payload (variable header and payload, for hmq_mqtt_read_connect)
 *      CONNACK                code, session_present, properties
 *      PUBLISH                qos, dup, retain, topic, packet_id (QoS 1 and 2), properties, payload
 *      PUBACK PUBREC
 *      PUBREL PUBCOMP         packet_id, code and properties (5.0)
 *      SUBSCRIBE UNSUBSCRIBE  packet_id, properties, payload (the entries: hmq_mqtt_next_entry)
 *      SUBACK UNSUBACK        packet_id, properties, payload (one code per entry; none in an UNSUBACK of 3.1.1)
 *      DISCONNECT             code and properties (5.0)
 *      AUTH                   code and properties
 *
 * In 5.0 a code and properties that are not on the wire (a PUBACK of two bytes, an empty DISCONNECT) are 0 and empty; the
 * encoder omits such ones.  The topic of a PUBLISH of 5.0 is empty if a topic alias replaces it. */
typedef struct hmq_mqtt_packet {
    uint8_t type;         /* hmq_mqtt_type */
    uint8_t qos;          /* 0..2 */
    bool dup;
    bool retain;
    bool session_present;
    uint8_t code;         /* return code, in 5.0 reason code */
    uint16_t packet_id;
    uint32_t bytes;       /* of the whole packet on the wire; set by the decoder, ignored by the encoder */
    uint8_t version;      /* decoded by this version; of a CONNECT: its protocol level; ignored by the encoder */
    hmq_slice topic;
    hmq_slice properties; /* 5.0: as encoded, without their length (mqtt/properties.h) */
    hmq_slice payload;
} hmq_mqtt_packet;

typedef struct hmq_mqtt_connect {
    uint8_t level;        /* protocol level */
    bool bridge;          /* 3.1.1, and the level has HMQ_MQTT_BRIDGE: the bridge of another broker connects */
    bool clean;           /* clean session (3.1.1), clean start (5.0) */
    bool has_will;
    bool will_retain;
    uint8_t will_qos;
    bool has_username;
    bool has_password;
    uint16_t keep_alive_s; /* 0: off */
    hmq_slice client_id;   /* may be empty: then the server assigns one */
    hmq_slice properties;  /* 5.0 */
    hmq_slice will_properties; /* 5.0 */
    hmq_slice will_topic;
    hmq_slice will_payload;
    hmq_slice username;
    hmq_slice password;
} hmq_mqtt_connect;

/* Subscription options (5.0, section 3.8.3.1); 3.1.1 has the QoS only. */
#define HMQ_MQTT_OPTION_QOS 0x03
#define HMQ_MQTT_OPTION_NO_LOCAL 0x04
#define HMQ_MQTT_OPTION_RETAIN_AS_PUBLISHED 0x08
#define HMQ_MQTT_OPTION_RETAIN_HANDLING 0x30
#define HMQ_MQTT_OPTION_RETAIN_HANDLING_SHIFT 4

typedef struct hmq_mqtt_entry {
    hmq_slice filter;
    uint8_t options;       /* SUBSCRIBE: the byte after the filter; UNSUBSCRIBE: 0 */
    hmq_topic_error error; /* HMQ_TOPIC_OK, or a limit of ours (TOO_DEEP, BAD_SHARE): refuse this entry, SUBACK 0x80
                              (3.1.1) or 0x8F (5.0) */
} hmq_mqtt_entry;

/* Decodes the packet at the beginning of the bytes.  version: 4, 5, or 0: a CONNECT of either.  max_packet_bytes: the
 * maximum size of a complete packet. */
int64_t hmq_mqtt_decode(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                        hmq_mqtt_packet *packet);

/* Decodes all complete packets, at most `capacity`.  Returns their number.  *consumed: their bytes.  *error: HMQ_MQTT_OK,
 * or the fault of the packet after them, whose type and version, if known, are in packets[returned]. */
size_t hmq_mqtt_decode_many(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                            hmq_mqtt_packet *packets, size_t capacity, size_t *consumed, hmq_mqtt_error *error);

/* Limits of a receiver; 0: no bound.  A packet above a limit is an error as soon as that is known, which for its size is
 * after the fixed header.  So these numbers bound the cost of a packet, whatever it claims. */
typedef struct hmq_mqtt_limits {
    uint32_t max_packet_bytes;
    uint32_t max_connect_bytes;       /* of a CONNECT, if lower */
    uint32_t max_filters;             /* of a SUBSCRIBE or UNSUBSCRIBE */
    uint32_t max_user_properties;     /* of a packet; those of a will count separately */
    uint32_t max_user_property_bytes; /* of their names and values */
} hmq_mqtt_limits;

/* hmq_mqtt_decode_many within these limits. */
size_t hmq_mqtt_decode_within(const uint8_t *data, size_t len, uint8_t version, const hmq_mqtt_limits *limits,
                              hmq_mqtt_packet *packets, size_t capacity, size_t *consumed, hmq_mqtt_error *error);

/* Reads the fields of a decoded CONNECT.  HMQ_MQTT_OK for every CONNECT that the decoder accepted. */
hmq_mqtt_error hmq_mqtt_read_connect(const hmq_mqtt_packet *packet, hmq_mqtt_connect *connect);

/* Reads the entry of a decoded SUBSCRIBE or UNSUBSCRIBE at *at (0: the first) and advances *at; false after the last. */
bool hmq_mqtt_next_entry(const hmq_mqtt_packet *packet, size_t *at, hmq_mqtt_entry *entry);

/* Bytes that hmq_mqtt_encode will write; 0 if a field is out of range.  Texts are not checked: the caller has validated
 * topics. */
size_t hmq_mqtt_size(const hmq_mqtt_packet *packet, uint8_t version);
/* Writes any packet; returns its size, 0 if it does not fit or a field is out of range.  3.1.1 omits properties, and all
 * codes except that of a CONNACK. */
size_t hmq_mqtt_encode(const hmq_mqtt_packet *packet, uint8_t version, uint8_t *out, size_t capacity);

/* Writes a PUBLISH of 3.1.1 from its parts, for callers that are slow at filling a struct. */
size_t hmq_mqtt_encode_publish(const uint8_t *topic, size_t topic_len, const uint8_t *payload, size_t payload_len,
                               uint8_t qos, bool retain, bool dup, uint16_t packet_id, uint8_t *out, size_t capacity);

/* Writes a PUBLISH of 5.0.  The topic may be empty only with an alias.  The properties are written unchanged, after the
 * message expiry (-1: none) and the topic alias (0: none), which they must not contain.  Returns the size, 0 if it does
 * not fit or a field is out of range. */
size_t hmq_mqtt_encode_publish5(hmq_slice topic, hmq_slice payload, uint8_t qos, bool retain, bool dup,
                                uint16_t packet_id, hmq_slice properties, int64_t message_expiry_s,
                                uint16_t topic_alias, uint8_t *out, size_t capacity);
/* The bytes that hmq_mqtt_encode_publish5 writes, 0 if a length is out of range. */
size_t hmq_mqtt_publish5_size(hmq_slice topic, hmq_slice payload, uint8_t qos, hmq_slice properties,
                              int64_t message_expiry_s, uint16_t topic_alias);

/* Writes the body of a CONNECT of its level: the payload of its packet.  Returns its size, 0 if it does not fit or a field
 * is out of range.  hmq_mqtt_connect_size returns the same without writing. */
size_t hmq_mqtt_encode_connect(const hmq_mqtt_connect *connect, uint8_t *out, size_t capacity);
size_t hmq_mqtt_connect_size(const hmq_mqtt_connect *connect);
/* One entry of the payload of a SUBSCRIBE, or (with_options false) of an UNSUBSCRIBE; options as of either version.  Returns
 * as above. */
size_t hmq_mqtt_encode_entry(const hmq_mqtt_entry *entry, bool with_options, uint8_t *out, size_t capacity);
/* cffi-end */

#endif
