/* mqtt.h - the MQTT packet codec: bytes to packets and packets to bytes, without I/O, state or memory of its own.
 *
 *        bytes of a socket ──► hmq_mqtt_decode_many ──► packets that point into those bytes
 *        packets           ──► hmq_mqtt_encode      ──► bytes in the caller's buffer
 *
 * Both directions of all types, so that a server, a client and a test speak the same.  What may be sent when (no SUBACK
 * from a client, no subscription identifier in its PUBLISH) is the session's affair, not the codec's.
 *
 * Convention of the decoder: > 0 bytes consumed, 0 more bytes are needed, < 0 an hmq_mqtt_error.  A packet is
 * decoded whole or not at all; a fault in the fixed header is told before the rest has come.  Nothing is read behind
 * len, and nothing in the input is trusted.
 *
 * Versions: 4 is MQTT 3.1.1 (OASIS standard, 2014), 5 is MQTT 5.0 (OASIS standard, 2019); the marks [MQTT-x] are their
 * statements.  0 is the beginning of a connection to a server: the first packet has to be a CONNECT, of whichever of the
 * two it says; what is behind it in the same bytes is decoded by that version.
 *
 * A CONNECT that is refused is answered in its own tongue.  packet.version is what it says of itself, fault or not:
 *
 *      0, 1..4     hmq_mqtt_error_connack, if not 0, in a CONNACK of 3.1.1
 *      5 and more  hmq_mqtt_error_reason in a CONNACK of 5.0 */
#ifndef HMQ_MQTT_H
#define HMQ_MQTT_H

#include "base/base.h"
#include "topic/topic.h"

/* cffi-begin */
#define HMQ_MQTT_3_1_1 4 /* the protocol level on the wire */
#define HMQ_MQTT_BRIDGE 0x80 /* in it, with 3.1.1: Mosquitto's own way of saying that it connects as a bridge */
#define HMQ_MQTT_5_0 5
#define HMQ_MQTT_ANY_VERSION 0 /* for the decoder: as the CONNECT says */

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

/* In 3.1.1 all but two mean: close the connection without an answer [MQTT-4.8.0-1].  In 5.0 each has a reason code. */
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
    HMQ_MQTT_BAD_PROTOCOL_LEVEL = -13, /* answered in 3.1.1, too: CONNACK 0x01 */
    HMQ_MQTT_BAD_CONNECT_FLAGS = -14,
    HMQ_MQTT_BAD_WILL_FLAGS = -15,
    HMQ_MQTT_BAD_WILL_QOS = -16,
    HMQ_MQTT_BAD_PASSWORD_FLAG = -17,
    HMQ_MQTT_BAD_CLIENT_ID = -18,      /* answered in 3.1.1, too: CONNACK 0x02 */
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

/* What was wrong, with the statement it violates, without a final stop.  Never NULL. */
const char *hmq_mqtt_error_text(hmq_mqtt_error error);
/* 3.1.1: the return code of the CONNACK that must be sent before the connection is closed; 0: close without one. */
uint8_t hmq_mqtt_error_connack(hmq_mqtt_error error);
/* 5.0: the reason code of the CONNACK or DISCONNECT that a server sends before it closes the connection.  0x80 and more
 * for every error. */
uint8_t hmq_mqtt_error_reason(hmq_mqtt_error error);
/* May a packet of this type of 5.0 (in SUBACK and UNSUBACK: one entry of it) have this reason code (table 2-6)?  False for
 * types without any. */
bool hmq_mqtt_reason_is_known(uint8_t type, uint8_t code);

/* Any packet.  Which fields a type uses; all others are 0:
 *
 *      CONNECT                payload (variable header and payload: hmq_mqtt_read_connect takes it apart)
 *      CONNACK                code, session_present, properties
 *      PUBLISH                qos, dup, retain, topic, packet_id (QoS 1 and 2), properties, payload
 *      PUBACK PUBREC
 *      PUBREL PUBCOMP         packet_id, code and properties (5.0)
 *      SUBSCRIBE UNSUBSCRIBE  packet_id, properties, payload (the entries: hmq_mqtt_next_entry)
 *      SUBACK UNSUBACK        packet_id, properties, payload (one code per entry; none in an UNSUBACK of 3.1.1)
 *      DISCONNECT             code and properties (5.0)
 *      AUTH                   code and properties
 *
 * In 5.0 a code and properties that are not on the wire (a PUBACK of two bytes, an empty DISCONNECT) are 0 and none; the
 * encoder leaves them out likewise.  The topic of a PUBLISH of 5.0 is empty if a topic alias stands for it. */
typedef struct hmq_mqtt_packet {
    uint8_t type;         /* hmq_mqtt_type */
    uint8_t qos;          /* 0..2 */
    bool dup;
    bool retain;
    bool session_present;
    uint8_t code;         /* return code, in 5.0 reason code */
    uint16_t packet_id;
    uint32_t bytes;       /* of the whole packet on the wire; set by the decoder, ignored by the encoder */
    uint8_t version;      /* by which it was decoded, of a CONNECT: its protocol level; ignored by the encoder */
    hmq_slice topic;
    hmq_slice properties; /* 5.0: as encoded, without their length (mqtt/properties.h) */
    hmq_slice payload;
} hmq_mqtt_packet;

typedef struct hmq_mqtt_connect {
    uint8_t level;        /* protocol level */
    bool bridge;          /* 3.1.1, and the bit 0x80 of the level says that another broker's bridge connects */
    bool clean;           /* clean session (3.1.1), clean start (5.0) */
    bool has_will;
    bool will_retain;
    uint8_t will_qos;
    bool has_username;
    bool has_password;
    uint16_t keep_alive_s; /* 0: off */
    hmq_slice client_id;   /* may be empty: the server then invents one */
    hmq_slice properties;  /* 5.0 */
    hmq_slice will_properties; /* 5.0 */
    hmq_slice will_topic;
    hmq_slice will_payload;
    hmq_slice username;
    hmq_slice password;
} hmq_mqtt_connect;

/* Subscription options (5.0, section 3.8.3.1); 3.1.1 knows the QoS only. */
#define HMQ_MQTT_OPTION_QOS 0x03
#define HMQ_MQTT_OPTION_NO_LOCAL 0x04
#define HMQ_MQTT_OPTION_RETAIN_AS_PUBLISHED 0x08
#define HMQ_MQTT_OPTION_RETAIN_HANDLING 0x30
#define HMQ_MQTT_OPTION_RETAIN_HANDLING_SHIFT 4

typedef struct hmq_mqtt_entry {
    hmq_slice filter;
    uint8_t options;       /* SUBSCRIBE: the byte behind the filter; UNSUBSCRIBE: 0 */
    hmq_topic_error error; /* HMQ_TOPIC_OK, or a limit of ours (TOO_DEEP, BAD_SHARE): refuse this entry, SUBACK 0x80
                              (3.1.1) or 0x8F (5.0) */
} hmq_mqtt_entry;

/* Decodes the packet at the beginning of the bytes.  version: 4, 5, or 0: a CONNECT of either.  max_packet_bytes: the most
 * that a whole packet may have. */
int64_t hmq_mqtt_decode(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                        hmq_mqtt_packet *packet);

/* Decodes as many whole packets as there are, at most `capacity`.  Returns their number; *consumed: the bytes of these;
 * *error: HMQ_MQTT_OK, or what is wrong with the packet behind them, which lies in packets[returned] as far as it is
 * known (type and version). */
size_t hmq_mqtt_decode_many(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                            hmq_mqtt_packet *packets, size_t capacity, size_t *consumed, hmq_mqtt_error *error);

/* What a receiver takes; 0: no bound.  A packet that exceeds one is an error as soon as that is known, CONNECT and packet
 * size from the fixed header on: so the cost of a packet is bounded by these numbers, whatever it claims. */
typedef struct hmq_mqtt_limits {
    uint32_t max_packet_bytes;
    uint32_t max_connect_bytes;       /* of a CONNECT, if that is less */
    uint32_t max_filters;             /* of a SUBSCRIBE or UNSUBSCRIBE */
    uint32_t max_user_properties;     /* of a packet, a will's counted apart */
    uint32_t max_user_property_bytes; /* of their names and values */
} hmq_mqtt_limits;

/* hmq_mqtt_decode_many within these limits. */
size_t hmq_mqtt_decode_within(const uint8_t *data, size_t len, uint8_t version, const hmq_mqtt_limits *limits,
                              hmq_mqtt_packet *packets, size_t capacity, size_t *consumed, hmq_mqtt_error *error);

/* Takes a decoded CONNECT apart.  HMQ_MQTT_OK for every CONNECT that the decoder let pass. */
hmq_mqtt_error hmq_mqtt_read_connect(const hmq_mqtt_packet *packet, hmq_mqtt_connect *connect);

/* The entry of a decoded SUBSCRIBE or UNSUBSCRIBE at *at (0 for the first), and moves *at on; false behind the last. */
bool hmq_mqtt_next_entry(const hmq_mqtt_packet *packet, size_t *at, hmq_mqtt_entry *entry);

/* Bytes that hmq_mqtt_encode will write, 0 if a field is out of its range.  Texts are taken as they are: whether a topic
 * is one has been asked before. */
size_t hmq_mqtt_size(const hmq_mqtt_packet *packet, uint8_t version);
/* Writes any packet; returns its size, 0 if it does not fit or a field is out of its range.  In 3.1.1 codes (but that of a
 * CONNACK) and properties are left out. */
size_t hmq_mqtt_encode(const hmq_mqtt_packet *packet, uint8_t version, uint8_t *out, size_t capacity);

/* The same for a PUBLISH of 3.1.1 from its parts, for callers to whom filling a struct is dear. */
size_t hmq_mqtt_encode_publish(const uint8_t *topic, size_t topic_len, const uint8_t *payload, size_t payload_len,
                               uint8_t qos, bool retain, bool dup, uint16_t packet_id, uint8_t *out, size_t capacity);

/* The same for a PUBLISH of 5.0: the topic (empty only with an alias), the properties that are passed on as they are, and
 * before them on the wire the message expiry (-1: none) and the topic alias (0: none), which must not be among them.
 * Returns the size, 0 if it does not fit or a field is out of its range. */
size_t hmq_mqtt_encode_publish5(hmq_slice topic, hmq_slice payload, uint8_t qos, bool retain, bool dup,
                                uint16_t packet_id, hmq_slice properties, int64_t message_expiry_s,
                                uint16_t topic_alias, uint8_t *out, size_t capacity);
/* The bytes that it writes, 0 if a length is out of its range. */
size_t hmq_mqtt_publish5_size(hmq_slice topic, hmq_slice payload, uint8_t qos, hmq_slice properties,
                              int64_t message_expiry_s, uint16_t topic_alias);

/* What is behind the fixed header of a CONNECT, by its level: the payload of its packet.  Returns its size, 0 if it does
 * not fit or a field is out of its range.  hmq_mqtt_connect_size: the same without writing. */
size_t hmq_mqtt_encode_connect(const hmq_mqtt_connect *connect, uint8_t *out, size_t capacity);
size_t hmq_mqtt_connect_size(const hmq_mqtt_connect *connect);
/* One entry of the payload of a SUBSCRIBE, or (with_options false) of an UNSUBSCRIBE; options as of either version.  Returns
 * as above. */
size_t hmq_mqtt_encode_entry(const hmq_mqtt_entry *entry, bool with_options, uint8_t *out, size_t capacity);
/* cffi-end */

#endif
