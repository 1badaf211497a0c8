/* mqtt_encode.c - writes MQTT packets; mqtt.h has the contract, mqtt.c the drawing of a packet.
 *
 * Law: what is encoded here decodes to the same packet, if its texts are valid. */
#include "mqtt.h"

#include <string.h>

#define SHORT_MAX 0xFFFF

/* ---- the body: how large, and its bytes ---- */

/* Has a packet of this type a packet identifier, and what is behind its other fields? */
enum presence { NO, YES, MAYBE };
static const struct {
    enum presence packet_id, payload;
} shapes[16] = {
    [HMQ_MQTT_CONNECT] = {NO, YES},      [HMQ_MQTT_CONNACK] = {NO, NO},     [HMQ_MQTT_PUBLISH] = {MAYBE, MAYBE},
    [HMQ_MQTT_PUBACK] = {YES, NO},       [HMQ_MQTT_PUBREC] = {YES, NO},     [HMQ_MQTT_PUBREL] = {YES, NO},
    [HMQ_MQTT_PUBCOMP] = {YES, NO},      [HMQ_MQTT_SUBSCRIBE] = {YES, YES}, [HMQ_MQTT_SUBACK] = {YES, YES},
    [HMQ_MQTT_UNSUBSCRIBE] = {YES, YES}, [HMQ_MQTT_UNSUBACK] = {YES, NO},   [HMQ_MQTT_PINGREQ] = {NO, NO},
    [HMQ_MQTT_PINGRESP] = {NO, NO},      [HMQ_MQTT_DISCONNECT] = {NO, NO},
};

static bool fits(enum presence wanted, bool there) {
    return wanted == MAYBE || (wanted == YES) == there;
}

static bool publish_in_range(const hmq_mqtt_packet *p) {
    return p->qos <= 2 && (p->qos != 0) == (p->packet_id != 0) && !(p->dup && !p->qos) && p->topic.len > 0 &&
           p->topic.len <= SHORT_MAX;
}

/* Does every field have a value that the type allows? */
static bool in_range(const hmq_mqtt_packet *packet) {
    if (packet->type < HMQ_MQTT_CONNECT || packet->type > HMQ_MQTT_DISCONNECT) return false;
    if (packet->type == HMQ_MQTT_PUBLISH && !publish_in_range(packet)) return false;
    if (packet->type == HMQ_MQTT_CONNACK && (packet->code > 5 || (packet->session_present && packet->code)))
        return false;
    return fits(shapes[packet->type].packet_id, packet->packet_id != 0) &&
           fits(shapes[packet->type].payload, packet->payload.len != 0);
}

/* Of the fields before the payload. */
static size_t head_size(const hmq_mqtt_packet *packet) {
    if (packet->type == HMQ_MQTT_CONNACK) return 2;
    return (packet->type == HMQ_MQTT_PUBLISH ? 2 + packet->topic.len : 0) + (packet->packet_id ? 2 : 0);
}

static size_t remaining_length_bytes(size_t remaining) {
    if (remaining <= 0x7F) return 1;
    if (remaining <= 0x3FFF) return 2;
    return remaining <= 0x1FFFFF ? 3 : 4;
}

/* The remaining length, -1 if the packet cannot be written. */
static int64_t remaining_of(const hmq_mqtt_packet *packet, uint8_t version) {
    if (version != HMQ_MQTT_3_1_1 || !in_range(packet)) return -1;
    size_t head = head_size(packet);
    return packet->payload.len <= HMQ_MQTT_MAX_REMAINING - head ? (int64_t)(head + packet->payload.len) : -1;
}

size_t hmq_mqtt_size(const hmq_mqtt_packet *packet, uint8_t version) {
    int64_t remaining = remaining_of(packet, version);
    return remaining < 0 ? 0 : 1 + remaining_length_bytes((size_t)remaining) + (size_t)remaining;
}

static uint8_t *put_short(uint8_t *out, size_t value) {
    out[0] = (uint8_t)(value >> 8);
    out[1] = (uint8_t)value;
    return out + 2;
}

static uint8_t *put_bytes(uint8_t *out, hmq_slice slice) {
    if (slice.len) memcpy(out, slice.data, slice.len);
    return out + slice.len;
}

static uint8_t *put_text(uint8_t *out, hmq_slice text) {
    return put_bytes(put_short(out, text.len), text);
}

static uint8_t first_byte(const hmq_mqtt_packet *packet) {
    uint8_t flags = 0;
    switch (packet->type) {
    case HMQ_MQTT_PUBLISH: flags = (uint8_t)(packet->dup << 3 | packet->qos << 1 | packet->retain); break;
    case HMQ_MQTT_PUBREL:
    case HMQ_MQTT_SUBSCRIBE:
    case HMQ_MQTT_UNSUBSCRIBE: flags = 2; break;
    default: break;
    }
    return (uint8_t)(packet->type << 4 | flags);
}

static uint8_t *put_fixed_header(uint8_t *out, const hmq_mqtt_packet *packet, size_t remaining) {
    *out++ = first_byte(packet);
    for (; remaining > 0x7F; remaining >>= 7) *out++ = (uint8_t)(remaining | 0x80);
    *out++ = (uint8_t)remaining;
    return out;
}

size_t hmq_mqtt_encode(const hmq_mqtt_packet *packet, uint8_t version, uint8_t *out, size_t capacity) {
    int64_t remaining = remaining_of(packet, version);
    if (remaining < 0) return 0;
    size_t size = 1 + remaining_length_bytes((size_t)remaining) + (size_t)remaining;
    if (size > capacity) return 0;
    out = put_fixed_header(out, packet, (size_t)remaining);
    if (packet->type == HMQ_MQTT_CONNACK) {
        *out++ = packet->session_present;
        *out++ = packet->code;
    }
    if (packet->type == HMQ_MQTT_PUBLISH) out = put_text(out, packet->topic);
    if (packet->packet_id) out = put_short(out, packet->packet_id);
    put_bytes(out, packet->payload);
    return size;
}

size_t hmq_mqtt_encode_publish(const uint8_t *topic, size_t topic_len, const uint8_t *payload, size_t payload_len,
                               uint8_t qos, bool retain, bool dup, uint16_t packet_id, uint8_t *out, size_t capacity) {
    const hmq_mqtt_packet packet = {
        .type = HMQ_MQTT_PUBLISH,
        .qos = qos,
        .dup = dup,
        .retain = retain,
        .packet_id = packet_id,
        .topic = {topic, topic_len},
        .payload = {payload, payload_len},
    };
    return hmq_mqtt_encode(&packet, HMQ_MQTT_3_1_1, out, capacity);
}

/* ---- payloads that have a structure of their own ---- */

static bool connect_in_range(const hmq_mqtt_connect *c) {
    if (c->level != HMQ_MQTT_3_1_1 || c->client_id.len > SHORT_MAX || (!c->client_id.len && !c->clean)) return false;
    if (c->has_will ? c->will_qos > 2 || !c->will_topic.len : c->will_qos || c->will_retain) return false;
    if (c->has_password && !c->has_username) return false;
    return c->will_topic.len <= SHORT_MAX && c->will_payload.len <= SHORT_MAX && c->username.len <= SHORT_MAX &&
           c->password.len <= SHORT_MAX;
}

static uint8_t connect_flags(const hmq_mqtt_connect *c) {
    return (uint8_t)(c->has_username << 7 | c->has_password << 6 | c->will_retain << 5 | c->will_qos << 3 |
                     c->has_will << 2 | c->clean << 1);
}

static size_t connect_size(const hmq_mqtt_connect *c) {
    size_t size = 10 + 2 + c->client_id.len;
    if (c->has_will) size += 2 + c->will_topic.len + 2 + c->will_payload.len;
    if (c->has_username) size += 2 + c->username.len;
    if (c->has_password) size += 2 + c->password.len;
    return size;
}

size_t hmq_mqtt_encode_connect(const hmq_mqtt_connect *connect, uint8_t *out, size_t capacity) {
    if (!connect_in_range(connect)) return 0;
    size_t size = connect_size(connect);
    if (size > capacity) return 0;
    out = put_text(out, (hmq_slice){(const uint8_t *)"MQTT", 4});
    *out++ = connect->level;
    *out++ = connect_flags(connect);
    out = put_text(put_short(out, connect->keep_alive_s), connect->client_id);
    if (connect->has_will) out = put_text(put_text(out, connect->will_topic), connect->will_payload);
    if (connect->has_username) out = put_text(out, connect->username);
    if (connect->has_password) put_text(out, connect->password);
    return size;
}

size_t hmq_mqtt_encode_entry(const hmq_mqtt_entry *entry, bool with_options, uint8_t *out, size_t capacity) {
    size_t size = 2 + entry->filter.len + with_options;
    if (entry->filter.len == 0 || entry->filter.len > SHORT_MAX || (with_options && entry->options > 2)) return 0;
    if (size > capacity) return 0;
    out = put_text(out, entry->filter);
    if (with_options) *out = entry->options;
    return size;
}
