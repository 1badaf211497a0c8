/* encode.c - writes MQTT packets; mqtt/mqtt.h has the contract, mqtt/mqtt.c the drawing of a packet.  mqtt/connect.c writes
 * the body of a CONNECT.
 *
 * Law: a packet with valid texts and properties is encoded and decoded unchanged.  Codes and properties that the written
 * version does not have are omitted. */
#include <string.h>

#include "mqtt/mqtt.h"
#include "mqtt/properties.h"
#include "mqtt/writer.h"

/* ---- the body: how large, and its bytes ---- */

/* Does a packet of this type have this field? */
enum presence { NO, YES, MAYBE };
/* What 5.0 adds to a type: properties; or a reason code and properties, which are omitted if they are 0 and empty. */
enum addition { NOTHING, PROPERTIES, REASON };
static const struct {
    enum presence packet_id, payload;
    enum addition five;
} shapes[16] = {
    [HMQ_MQTT_CONNECT] = {NO, YES, NOTHING},
    [HMQ_MQTT_CONNACK] = {NO, NO, PROPERTIES},
    [HMQ_MQTT_PUBLISH] = {MAYBE, MAYBE, PROPERTIES},
    [HMQ_MQTT_PUBACK] = {YES, NO, REASON},
    [HMQ_MQTT_PUBREC] = {YES, NO, REASON},
    [HMQ_MQTT_PUBREL] = {YES, NO, REASON},
    [HMQ_MQTT_PUBCOMP] = {YES, NO, REASON},
    [HMQ_MQTT_SUBSCRIBE] = {YES, YES, PROPERTIES},
    [HMQ_MQTT_SUBACK] = {YES, YES, PROPERTIES},
    [HMQ_MQTT_UNSUBSCRIBE] = {YES, YES, PROPERTIES},
    [HMQ_MQTT_UNSUBACK] = {YES, MAYBE, PROPERTIES},
    [HMQ_MQTT_PINGREQ] = {NO, NO, NOTHING},
    [HMQ_MQTT_PINGRESP] = {NO, NO, NOTHING},
    [HMQ_MQTT_DISCONNECT] = {NO, NO, REASON},
    [HMQ_MQTT_AUTH] = {NO, NO, REASON},
};

static bool fits(enum presence wanted, bool there) {
    return wanted == MAYBE || (wanted == YES) == there;
}

static bool publish_in_range(const hmq_mqtt_packet *p) {
    return p->qos <= 2 && (p->qos != 0) == (p->packet_id != 0) && !(p->dup && !p->qos) && p->topic.len <= SHORT_MAX;
}

static bool in_range_3(const hmq_mqtt_packet *p) {
    if (p->type == HMQ_MQTT_PUBLISH) return publish_in_range(p) && p->topic.len > 0;
    if (p->type == HMQ_MQTT_CONNACK) return p->code <= 5 && !(p->session_present && p->code);
    return p->type != HMQ_MQTT_AUTH && !(p->type == HMQ_MQTT_UNSUBACK && p->payload.len);
}

static bool in_range_5(const hmq_mqtt_packet *p) {
    if (p->properties.len > HMQ_MQTT_MAX_REMAINING) return false;
    switch (p->type) {
    case HMQ_MQTT_PUBLISH: return publish_in_range(p) && (p->topic.len || p->properties.len);
    case HMQ_MQTT_UNSUBACK: return p->payload.len != 0;
    case HMQ_MQTT_AUTH: return hmq_mqtt_reason_is_known(p->type, p->code) && (p->properties.len || !p->code);
    case HMQ_MQTT_CONNACK: return hmq_mqtt_reason_is_known(p->type, p->code) && !(p->session_present && p->code);
    default: return shapes[p->type].five != REASON || hmq_mqtt_reason_is_known(p->type, p->code);
    }
}

/* Is every field within the range of the type? */
static bool in_range(const hmq_mqtt_packet *packet, bool five) {
    if (packet->type < HMQ_MQTT_CONNECT || packet->type > HMQ_MQTT_AUTH) return false;
    return fits(shapes[packet->type].packet_id, packet->packet_id != 0) &&
           fits(shapes[packet->type].payload, packet->payload.len != 0) &&
           (five ? in_range_5(packet) : in_range_3(packet));
}

/* Which of both are written: the code if it is not 0 or properties follow; the properties if there are any, and in an
 * AUTH whenever the code is. */
static bool has_code(const hmq_mqtt_packet *packet) {
    return shapes[packet->type].five == REASON && (packet->code || packet->properties.len);
}

static bool has_properties(const hmq_mqtt_packet *packet) {
    return shapes[packet->type].five == PROPERTIES || (shapes[packet->type].five == REASON && packet->properties.len);
}

/* Bytes of the fields before the payload. */
static size_t head_size(const hmq_mqtt_packet *packet, bool five) {
    size_t size = packet->packet_id ? 2 : 0;
    if (packet->type == HMQ_MQTT_CONNACK) size += 2;
    if (packet->type == HMQ_MQTT_PUBLISH) size += 2 + packet->topic.len;
    if (five && has_code(packet)) size++;
    if (five && has_properties(packet)) size += properties_size(packet->properties);
    return size;
}

/* The remaining length, -1 if the packet cannot be written. */
static int64_t remaining_of(const hmq_mqtt_packet *packet, uint8_t version) {
    bool five = version == HMQ_MQTT_5_0;
    if ((!five && version != HMQ_MQTT_3_1_1) || !in_range(packet, five)) return -1;
    size_t head = head_size(packet, five);
    if (head > HMQ_MQTT_MAX_REMAINING || packet->payload.len > HMQ_MQTT_MAX_REMAINING - head) return -1;
    return (int64_t)(head + packet->payload.len);
}

size_t hmq_mqtt_size(const hmq_mqtt_packet *packet, uint8_t version) {
    int64_t remaining = remaining_of(packet, version);
    return remaining < 0 ? 0 : 1 + variable_size((size_t)remaining) + (size_t)remaining;
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

/* A PUBLISH of 3.1.1 is the most frequent packet: its own function avoids the tests for types and versions. */
static size_t encode_publish3(const hmq_mqtt_packet *packet, uint8_t *out, size_t capacity) {
    if (!publish_in_range(packet) || packet->topic.len == 0) return 0;
    size_t head = 2 + packet->topic.len + (packet->qos ? 2 : 0);
    if (packet->payload.len > HMQ_MQTT_MAX_REMAINING - head) return 0;
    size_t remaining = head + packet->payload.len, size = 1 + variable_size(remaining) + remaining;
    if (size > capacity) return 0;
    *out++ = (uint8_t)(HMQ_MQTT_PUBLISH << 4 | packet->dup << 3 | packet->qos << 1 | packet->retain);
    out = put_text(put_variable(out, remaining), packet->topic);
    if (packet->qos) out = put_short(out, packet->packet_id);
    put_bytes(out, packet->payload);
    return size;
}

size_t hmq_mqtt_encode(const hmq_mqtt_packet *packet, uint8_t version, uint8_t *out, size_t capacity) {
    if (packet->type == HMQ_MQTT_PUBLISH && version == HMQ_MQTT_3_1_1) return encode_publish3(packet, out, capacity);
    int64_t remaining = remaining_of(packet, version);
    if (remaining < 0) return 0;
    size_t size = 1 + variable_size((size_t)remaining) + (size_t)remaining;
    if (size > capacity) return 0;
    *out++ = first_byte(packet);
    out = put_variable(out, (size_t)remaining);
    if (packet->type == HMQ_MQTT_CONNACK) {
        *out++ = packet->session_present;
        *out++ = packet->code;
    }
    if (packet->type == HMQ_MQTT_PUBLISH) out = put_text(out, packet->topic);
    if (packet->packet_id) out = put_short(out, packet->packet_id);
    if (version == HMQ_MQTT_5_0) {
        if (has_code(packet)) *out++ = packet->code;
        if (has_properties(packet)) out = put_properties(out, packet->properties);
    }
    put_bytes(out, packet->payload);
    return size;
}

/* ---- PUBLISH from its parts ---- */

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
    return encode_publish3(&packet, out, capacity);
}

#define EXPIRY_SIZE 5 /* identifier and four bytes */
#define ALIAS_SIZE 3

/* Length of all properties: those written before the given ones, and the given ones. */
static size_t all_properties(hmq_slice properties, int64_t message_expiry_s, uint16_t topic_alias) {
    return properties.len + (message_expiry_s >= 0 ? EXPIRY_SIZE : 0) + (topic_alias ? ALIAS_SIZE : 0);
}

/* The remaining length, 0 (which no PUBLISH has) if a length is out of its range. */
static size_t publish5_remaining(hmq_slice topic, hmq_slice payload, uint8_t qos, hmq_slice properties,
                                 int64_t message_expiry_s, uint16_t topic_alias) {
    if (topic.len > SHORT_MAX || (!topic.len && !topic_alias) || message_expiry_s > UINT32_MAX) return 0;
    if (properties.len > HMQ_MQTT_MAX_REMAINING || payload.len > HMQ_MQTT_MAX_REMAINING) return 0;
    size_t all = all_properties(properties, message_expiry_s, topic_alias);
    size_t remaining = 2 + topic.len + (qos ? 2 : 0) + variable_size(all) + all + payload.len;
    return remaining <= HMQ_MQTT_MAX_REMAINING ? remaining : 0;
}

size_t hmq_mqtt_publish5_size(hmq_slice topic, hmq_slice payload, uint8_t qos, hmq_slice properties,
                              int64_t message_expiry_s, uint16_t topic_alias) {
    size_t remaining = publish5_remaining(topic, payload, qos, properties, message_expiry_s, topic_alias);
    return remaining ? 1 + variable_size(remaining) + remaining : 0;
}

size_t hmq_mqtt_encode_publish5(hmq_slice topic, hmq_slice payload, uint8_t qos, bool retain, bool dup,
                                uint16_t packet_id, hmq_slice properties, int64_t message_expiry_s,
                                uint16_t topic_alias, uint8_t *out, size_t capacity) {
    size_t remaining = publish5_remaining(topic, payload, qos, properties, message_expiry_s, topic_alias);
    size_t size = 1 + variable_size(remaining) + remaining;
    if (!remaining || size > capacity || qos > 2 || (qos != 0) != (packet_id != 0) || (dup && !qos)) return 0;
    *out++ = (uint8_t)(HMQ_MQTT_PUBLISH << 4 | dup << 3 | qos << 1 | retain);
    out = put_text(put_variable(out, remaining), topic);
    if (qos) out = put_short(out, packet_id);
    out = put_variable(out, all_properties(properties, message_expiry_s, topic_alias));
    if (message_expiry_s >= 0) {
        *out++ = HMQ_MQTT_MESSAGE_EXPIRY;
        out = put_long(out, (uint32_t)message_expiry_s);
    }
    if (topic_alias) {
        *out++ = HMQ_MQTT_TOPIC_ALIAS;
        out = put_short(out, topic_alias);
    }
    put_bytes(put_bytes(out, properties), payload);
    return size;
}

/* ---- entries of SUBSCRIBE and UNSUBSCRIBE ---- */

#define OPTIONS_MOST 0x2E /* QoS 2, both flags, retain handling 2 */

static bool options_in_range(uint8_t options) {
    return options <= OPTIONS_MOST && (options & HMQ_MQTT_OPTION_QOS) != HMQ_MQTT_OPTION_QOS;
}

size_t hmq_mqtt_encode_entry(const hmq_mqtt_entry *entry, bool with_options, uint8_t *out, size_t capacity) {
    size_t size = 2 + entry->filter.len + with_options;
    if (entry->filter.len == 0 || entry->filter.len > SHORT_MAX) return 0;
    if (size > capacity || (with_options && !options_in_range(entry->options))) return 0;
    out = put_text(out, entry->filter);
    if (with_options) *out = entry->options;
    return size;
}
