/* mqtt_load_wire.h - the bytes of MQTT, as much as a load generator needs: pure functions without state or memory.
 *
 * Written for the generator alone and not shared with the broker: neither one's mistakes nor one's speed hide in the
 * other.  Checks lengths, not contents: what a broker sends is either what was asked for or an error. */
#ifndef MQTT_LOAD_WIRE_H
#define MQTT_LOAD_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MQTT_3_1_1 4 /* the protocol levels on the wire */
#define MQTT_5 5
#define WIRE_ACK_BYTES 4
#define WIRE_MAX_ID_BYTES 100     /* of a client id, topic or filter */
#define WIRE_SMALL_PACKET_BYTES 256 /* enough for each packet but PUBLISH */

enum {
    WIRE_CONNACK = 2,
    WIRE_PUBLISH = 3,
    WIRE_PUBACK = 4,
    WIRE_PUBREC = 5,
    WIRE_PUBREL = 6,
    WIRE_PUBCOMP = 7,
    WIRE_SUBACK = 9,
    WIRE_PINGRESP = 13,
    WIRE_DISCONNECT = 14
};

/* A packet that lies in the caller's buffer. */
typedef struct wire_packet {
    uint8_t type;
    uint8_t flags;
    uint32_t len;
    const uint8_t *body; /* behind the fixed header */
} wire_packet;

/* Bytes consumed; 0: more are needed; -1: no MQTT. */
int64_t wire_next(const uint8_t *data, size_t len, wire_packet *packet);

typedef struct wire_publish {
    uint8_t qos;
    uint16_t packet_id; /* 0 with QoS 0 */
    size_t payload_len;
    const uint8_t *payload;
} wire_publish;

typedef struct wire_connack {
    uint8_t code;
    bool session_present;
    uint16_t receive_maximum; /* 65535 where nothing else is said */
} wire_connack;

/* False: the packet is shorter than its parts. */
bool wire_read_publish(const wire_packet *packet, uint8_t version, wire_publish *publish);
bool wire_read_connack(const wire_packet *packet, uint8_t version, wire_connack *connack);
/* PUBACK, PUBREC, PUBREL, PUBCOMP: identifier, and reason code (0 where none stands). */
bool wire_read_ack(const wire_packet *packet, uint16_t *packet_id, uint8_t *code);
/* The code of the only filter. */
bool wire_read_suback(const wire_packet *packet, uint8_t version, uint8_t *code);

/* Writers return the size.  Texts have at most WIRE_MAX_ID_BYTES, `out` WIRE_SMALL_PACKET_BYTES. */
typedef struct wire_connect {
    uint8_t version;
    bool clean; /* 5.0: also no session behind the connection; else it outlives it by a day */
    uint16_t keep_alive_s;
    uint16_t receive_maximum; /* 5.0; 0: not said */
    const char *client_id;
} wire_connect;

size_t wire_put_connect(uint8_t *out, const wire_connect *connect);
size_t wire_put_subscribe(uint8_t *out, uint8_t version, const char *filter, uint8_t qos);
size_t wire_put_ack(uint8_t *out, uint8_t type, uint16_t packet_id);
size_t wire_put_pingreq(uint8_t *out);
size_t wire_put_disconnect(uint8_t *out);

/* A PUBLISH that is written once and then only filled in: identifier and payload. */
typedef struct wire_template {
    size_t len;
    size_t packet_id_at; /* 0 with QoS 0 */
    size_t payload_at;
} wire_template;

/* `out` has payload_len + WIRE_SMALL_PACKET_BYTES. */
wire_template wire_put_publish(uint8_t *out, uint8_t version, const char *topic, uint8_t qos, size_t payload_len);

static inline void wire_put_u16(uint8_t *out, uint16_t value) {
    out[0] = (uint8_t)(value >> 8);
    out[1] = (uint8_t)value;
}

static inline uint16_t wire_get_u16(const uint8_t *data) {
    return (uint16_t)(data[0] << 8 | data[1]);
}

#endif
