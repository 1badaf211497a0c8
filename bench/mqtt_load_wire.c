/* mqtt_load_wire.c - see mqtt_load_wire.h.  Section numbers are those of MQTT 5.0. */
#include "mqtt_load_wire.h"

#include <string.h>

#define SESSION_EXPIRY_INTERVAL 0x11
#define RECEIVE_MAXIMUM 0x21
#define SESSION_EXPIRY_S 86400

/* A variable byte integer (1.5.5): bytes consumed; 0: more are needed; -1: longer than four bytes. */
static int read_varint(const uint8_t *data, size_t len, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < 4; i++) {
        if ((size_t)i == len) return 0;
        *value |= (uint32_t)(data[i] & 0x7f) << (7 * i);
        if (!(data[i] & 0x80)) return i + 1;
    }
    return -1;
}

static size_t put_varint(uint8_t *out, size_t value) {
    size_t len = 0;
    do {
        out[len++] = (uint8_t)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value > 0);
    return len;
}

static size_t put_text(uint8_t *out, const char *text) {
    size_t len = strlen(text);
    wire_put_u16(out, (uint16_t)len);
    memcpy(out + 2, text, len);
    return len + 2;
}

int64_t wire_next(const uint8_t *data, size_t len, wire_packet *packet) {
    if (len < 2) return 0;
    uint32_t remaining;
    int header = read_varint(data + 1, len - 1, &remaining);
    if (header <= 0) return header;
    header++;
    if (len - (size_t)header < remaining) return 0;
    packet->type = data[0] >> 4;
    packet->flags = data[0] & 0x0f;
    packet->len = remaining;
    packet->body = data + header;
    return (int64_t)remaining + header;
}

bool wire_read_publish(const wire_packet *packet, uint8_t version, wire_publish *publish) {
    const uint8_t *at = packet->body, *end = packet->body + packet->len;
    publish->qos = (packet->flags >> 1) & 3;
    if (end - at < 2) return false;
    size_t before_payload = 2U + wire_get_u16(at) + (publish->qos > 0 ? 2U : 0U);
    if ((size_t)(end - at) < before_payload) return false;
    at += before_payload;
    publish->packet_id = publish->qos > 0 ? wire_get_u16(at - 2) : 0;
    if (version == MQTT_5) {
        uint32_t properties;
        int used = read_varint(at, (size_t)(end - at), &properties);
        if (used <= 0 || (size_t)(end - at - used) < properties) return false;
        at += (uint32_t)used + properties;
    }
    publish->payload = at;
    publish->payload_len = (size_t)(end - at);
    return true;
}

/* Size of the property at `at`, identifier included (2.2.2.2, those of a CONNACK); 0: unknown or cut off. */
static size_t connack_property_size(const uint8_t *at, size_t len) {
    size_t text = len >= 3 ? 3U + wire_get_u16(at + 1) : len + 1, size;
    switch (at[0]) {
    case 0x24:
    case 0x25:
    case 0x28:
    case 0x29:
    case 0x2a: size = 2; break;
    case 0x13:
    case RECEIVE_MAXIMUM:
    case 0x22: size = 3; break;
    case SESSION_EXPIRY_INTERVAL:
    case 0x27: size = 5; break;
    case 0x12:
    case 0x15:
    case 0x16:
    case 0x1a:
    case 0x1c:
    case 0x1f: size = text; break;
    case 0x26: size = text + 2 <= len ? text + 2 + wire_get_u16(at + text) : len + 1; break;
    default: return 0;
    }
    return size <= len ? size : 0;
}

bool wire_read_connack(const wire_packet *packet, uint8_t version, wire_connack *connack) {
    if (packet->len < 2) return false;
    connack->session_present = packet->body[0] & 1;
    connack->code = packet->body[1];
    connack->receive_maximum = UINT16_MAX;
    if (version != MQTT_5) return packet->len == 2;
    uint32_t left;
    const uint8_t *at = packet->body + 2;
    int used = read_varint(at, packet->len - 2, &left);
    if (used <= 0 || (size_t)used + 2 + left != packet->len) return false;
    for (at += used; left > 0;) {
        size_t size = connack_property_size(at, left);
        if (size == 0) return false;
        if (at[0] == RECEIVE_MAXIMUM) connack->receive_maximum = wire_get_u16(at + 1);
        at += size;
        left -= (uint32_t)size;
    }
    return true;
}

bool wire_read_ack(const wire_packet *packet, uint16_t *packet_id, uint8_t *code) {
    if (packet->len < 2) return false;
    *packet_id = wire_get_u16(packet->body);
    *code = packet->len > 2 ? packet->body[2] : 0;
    return true;
}

bool wire_read_suback(const wire_packet *packet, uint8_t version, uint8_t *code) {
    uint32_t properties = 0;
    int used = 0;
    if (packet->len < 3) return false;
    if (version == MQTT_5 && (used = read_varint(packet->body + 2, packet->len - 2, &properties)) <= 0) return false;
    if (packet->len != 3U + (uint32_t)used + properties) return false;
    *code = packet->body[packet->len - 1];
    return true;
}

size_t wire_put_connect(uint8_t *out, const wire_connect *connect) {
    uint8_t body[WIRE_SMALL_PACKET_BYTES];
    size_t len = put_text(body, "MQTT");
    body[len++] = connect->version;
    body[len++] = connect->clean ? 0x02 : 0x00;
    wire_put_u16(body + len, connect->keep_alive_s);
    len += 2;
    if (connect->version == MQTT_5) {
        uint8_t *properties = &body[len++];
        if (!connect->clean) {
            body[len++] = SESSION_EXPIRY_INTERVAL;
            wire_put_u16(body + len, SESSION_EXPIRY_S >> 16);
            wire_put_u16(body + len + 2, SESSION_EXPIRY_S & 0xffff);
            len += 4;
        }
        if (connect->receive_maximum > 0) {
            body[len++] = RECEIVE_MAXIMUM;
            wire_put_u16(body + len, connect->receive_maximum);
            len += 2;
        }
        *properties = (uint8_t)(body + len - properties - 1);
    }
    len += put_text(body + len, connect->client_id);
    out[0] = 0x10;
    size_t header = 1 + put_varint(out + 1, len);
    memcpy(out + header, body, len);
    return header + len;
}

size_t wire_put_subscribe(uint8_t *out, uint8_t version, const char *filter, uint8_t qos) {
    size_t properties = version == MQTT_5 ? 1 : 0;
    out[0] = 0x82;
    size_t len = 1 + put_varint(out + 1, 2 + properties + 2 + strlen(filter) + 1);
    wire_put_u16(out + len, 1);
    len += 2;
    if (properties) out[len++] = 0;
    len += put_text(out + len, filter);
    out[len++] = qos;
    return len;
}

size_t wire_put_ack(uint8_t *out, uint8_t type, uint16_t packet_id) {
    out[0] = (uint8_t)(type << 4 | (type == WIRE_PUBREL ? 2 : 0));
    out[1] = 2;
    wire_put_u16(out + 2, packet_id);
    return WIRE_ACK_BYTES;
}

size_t wire_put_pingreq(uint8_t *out) {
    out[0] = 0xc0;
    out[1] = 0;
    return 2;
}

size_t wire_put_disconnect(uint8_t *out) {
    out[0] = 0xe0;
    out[1] = 0;
    return 2;
}

wire_template wire_put_publish(uint8_t *out, uint8_t version, const char *topic, uint8_t qos, size_t payload_len) {
    wire_template template = {0};
    size_t behind_topic = (qos > 0 ? 2U : 0U) + (version == MQTT_5 ? 1U : 0U);
    out[0] = (uint8_t)(0x30 | qos << 1);
    size_t len = 1 + put_varint(out + 1, 2 + strlen(topic) + behind_topic + payload_len);
    len += put_text(out + len, topic);
    if (qos > 0) {
        template.packet_id_at = len;
        len += 2;
    }
    if (version == MQTT_5) out[len++] = 0;
    template.payload_at = len;
    memset(out + len, 'x', payload_len);
    template.len = len + payload_len;
    return template;
}
