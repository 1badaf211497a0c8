/* mqtt.h - the MQTT packet codec: bytes to packets and packets to bytes, without I/O, state or memory of its own.
 *
 *        bytes of a socket ──► hmq_mqtt_decode_many ──► packets that point into those bytes
 *        packets           ──► hmq_mqtt_encode      ──► bytes in the caller's buffer
 *
 * Both directions of all 14 types, so that a server, a client and a test speak the same.  What may be sent when (CONNECT
 * first, no SUBACK from a client) is the session's affair, not the codec's.
 *
 * Convention of the decoder: > 0 bytes consumed, 0 more bytes are needed, < 0 an hmq_mqtt_error.  A packet is
 * decoded whole or not at all; a fault in the fixed header is told before the rest has come.  Nothing is read behind
 * len, and nothing in the input is trusted.
 *
 * Versions: 4 is MQTT 3.1.1 (OASIS standard, 2014; the marks [MQTT-x] are its statements).  5 (MQTT 5.0) is refused with
 * HMQ_MQTT_BAD_VERSION until the codec has it; the structures have its fields already. */
#ifndef HMQ_MQTT_H
#define HMQ_MQTT_H

#include "hmq_base.h"
#include "topic.h"

/* cffi-begin */
#define HMQ_MQTT_3_1_1 4 /* the protocol level on the wire */

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
    HMQ_MQTT_DISCONNECT = 14
} hmq_mqtt_type;

/* All but two mean: close the connection without an answer [MQTT-4.8.0-1].  See hmq_mqtt_error_connack. */
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
    HMQ_MQTT_BAD_PROTOCOL_LEVEL = -13, /* answered: CONNACK 0x01 */
    HMQ_MQTT_BAD_CONNECT_FLAGS = -14,
    HMQ_MQTT_BAD_WILL_FLAGS = -15,
    HMQ_MQTT_BAD_WILL_QOS = -16,
    HMQ_MQTT_BAD_PASSWORD_FLAG = -17,
    HMQ_MQTT_BAD_CLIENT_ID = -18, /* answered: CONNACK 0x02 */
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
    HMQ_MQTT_BAD_SUBACK = -29
} hmq_mqtt_error;

/* What was wrong, with the statement it violates, without a final stop.  Never NULL. */
const char *hmq_mqtt_error_text(hmq_mqtt_error error);
/* The return code of the CONNACK that must be sent before the connection is closed; 0: close without one. */
uint8_t hmq_mqtt_error_connack(hmq_mqtt_error error);

/* Any packet.  Which fields a type uses; all others are 0:
 *
 *      CONNECT                payload (variable header and payload: hmq_mqtt_read_connect takes it apart)
 *      CONNACK                code, session_present, properties
 *      PUBLISH                qos, dup, retain, topic, packet_id (QoS 1 and 2), properties, payload
 *      PUBACK PUBREC
 *      PUBREL PUBCOMP         packet_id, code and properties (5.0)
 *      SUBSCRIBE UNSUBSCRIBE  packet_id, properties, payload (the entries: hmq_mqtt_next_entry)
 *      SUBACK UNSUBACK        packet_id, properties, payload (one code per entry; none in an UNSUBACK of 3.1.1)
 *      DISCONNECT             code and properties (5.0) */
typedef struct hmq_mqtt_packet {
    uint8_t type;         /* hmq_mqtt_type */
    uint8_t qos;          /* 0..2 */
    bool dup;
    bool retain;
    bool session_present;
    uint8_t code;         /* return code, in 5.0 reason code */
    uint16_t packet_id;
    uint32_t bytes;       /* of the whole packet on the wire; set by the decoder, ignored by the encoder */
    hmq_slice topic;
    hmq_slice properties; /* MQTT 5.0: as encoded, without their length */
    hmq_slice payload;
} hmq_mqtt_packet;

typedef struct hmq_mqtt_connect {
    uint8_t level;        /* protocol level */
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

typedef struct hmq_mqtt_entry {
    hmq_slice filter;
    uint8_t options;       /* SUBSCRIBE: the byte behind the filter, bits 0-1 QoS (the rest is 5.0); UNSUBSCRIBE: 0 */
    hmq_topic_error error; /* HMQ_TOPIC_OK, or a limit of ours (TOO_DEEP, BAD_SHARE): refuse this entry, SUBACK 0x80 */
} hmq_mqtt_entry;

/* Decodes the packet at the beginning of the bytes.  max_packet_bytes: the most that a whole packet may have. */
int64_t hmq_mqtt_decode(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                        hmq_mqtt_packet *packet);

/* Decodes as many whole packets as there are, at most `capacity`.  Returns their number; *consumed: the bytes of these;
 * *error: HMQ_MQTT_OK, or what is wrong with the packet behind them. */
size_t hmq_mqtt_decode_many(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                            hmq_mqtt_packet *packets, size_t capacity, size_t *consumed, hmq_mqtt_error *error);

/* Takes a decoded CONNECT apart.  HMQ_MQTT_OK for every CONNECT that the decoder let pass. */
hmq_mqtt_error hmq_mqtt_read_connect(const hmq_mqtt_packet *packet, hmq_mqtt_connect *connect);

/* The entry of a decoded SUBSCRIBE or UNSUBSCRIBE at *at (0 for the first), and moves *at on; false behind the last. */
bool hmq_mqtt_next_entry(const hmq_mqtt_packet *packet, size_t *at, hmq_mqtt_entry *entry);

/* Bytes that hmq_mqtt_encode will write, 0 if a field is out of its range.  Texts are taken as they are: whether a topic
 * is one has been asked before. */
size_t hmq_mqtt_size(const hmq_mqtt_packet *packet, uint8_t version);
/* Writes any packet; returns its size, 0 if it does not fit or a field is out of its range. */
size_t hmq_mqtt_encode(const hmq_mqtt_packet *packet, uint8_t version, uint8_t *out, size_t capacity);

/* The same for a PUBLISH of 3.1.1 from its parts, for callers to whom filling a struct is dear. */
size_t hmq_mqtt_encode_publish(const uint8_t *topic, size_t topic_len, const uint8_t *payload, size_t payload_len,
                               uint8_t qos, bool retain, bool dup, uint16_t packet_id, uint8_t *out, size_t capacity);

/* What is behind the fixed header of a CONNECT: the payload of its packet.  Returns its size, 0 if it does not fit or a
 * field is out of its range.  65535 * 5 + 22 bytes always suffice. */
size_t hmq_mqtt_encode_connect(const hmq_mqtt_connect *connect, uint8_t *out, size_t capacity);
/* One entry of the payload of a SUBSCRIBE, or (with_options false) of an UNSUBSCRIBE.  Returns as above. */
size_t hmq_mqtt_encode_entry(const hmq_mqtt_entry *entry, bool with_options, uint8_t *out, size_t capacity);
/* cffi-end */

#endif
