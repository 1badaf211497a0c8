/* connect.c - CONNECT, read and written (section 3.1 of either standard); mqtt/mqtt.h has the contract.
 *
 *      name  level  flags  keep alive  [properties]  client id  [will: [properties] topic payload]  [user]  [password]
 *                                           5.0                            5.0
 *
 * Laws: a CONNECT with valid texts is written and read back unchanged, and the bytes of a CONNECT that was read are
 * written unchanged. */
#include <string.h>

#include "mqtt/mqtt.h"
#include "mqtt/reader.h"
#include "mqtt/writer.h"

#define CONNECT_RESERVED 0x01
#define CONNECT_CLEAN 0x02
#define CONNECT_WILL 0x04
#define CONNECT_WILL_QOS_SHIFT 3
#define CONNECT_WILL_RETAIN 0x20
#define CONNECT_PASSWORD 0x40
#define CONNECT_USERNAME 0x80

static const hmq_slice protocol_name = {(const uint8_t *)"MQTT", 4};

/* ---- reading ---- */

static bool is(hmq_slice slice, const char *text) {
    return slice.len == strlen(text) && memcmp(slice.data, text, slice.len) == 0;
}

/* Name and level come first and decide how the rest is read.  MQIsdp is MQTT 3.1: known but not supported, so its client
 * gets an answer.  After any other name the level has no meaning. */
static void take_protocol(reader *in, uint8_t version, hmq_mqtt_connect *connect) {
    hmq_slice name = take_binary(in);
    uint8_t level = take_byte(in);
    if (in->error) return;
    bool known = is(name, "MQTT");
    connect->bridge = known && level == (HMQ_MQTT_3_1_1 | HMQ_MQTT_BRIDGE);
    if (connect->bridge) level = HMQ_MQTT_3_1_1;
    if (!known && !is(name, "MQIsdp")) {
        fail(in, HMQ_MQTT_BAD_PROTOCOL_NAME);
        return;
    }
    connect->level = level;
    bool spoken = level == HMQ_MQTT_3_1_1 || level == HMQ_MQTT_5_0;
    if (!known || !spoken || (version && level != version)) fail(in, HMQ_MQTT_BAD_PROTOCOL_LEVEL);
}

static void take_connect_flags(reader *in, hmq_mqtt_connect *connect) {
    uint8_t flags = take_byte(in);
    connect->clean = flags & CONNECT_CLEAN;
    connect->has_will = flags & CONNECT_WILL;
    connect->will_qos = flags >> CONNECT_WILL_QOS_SHIFT & 3;
    connect->will_retain = flags & CONNECT_WILL_RETAIN;
    connect->has_password = flags & CONNECT_PASSWORD;
    connect->has_username = flags & CONNECT_USERNAME;
    if (flags & CONNECT_RESERVED) fail(in, HMQ_MQTT_BAD_CONNECT_FLAGS);
    if (!connect->has_will && (connect->will_qos || connect->will_retain)) fail(in, HMQ_MQTT_BAD_WILL_FLAGS);
    if (connect->will_qos == 3) fail(in, HMQ_MQTT_BAD_WILL_QOS);
    if (connect->has_password && !connect->has_username && connect->level == HMQ_MQTT_3_1_1)
        fail(in, HMQ_MQTT_BAD_PASSWORD_FLAG);
}

/* The client id is checked last: its error is answered, and only an otherwise valid packet gets an answer. */
hmq_mqtt_error hmq_mqtt_read_connect_as(hmq_slice body, uint8_t version, const hmq_mqtt_limits *limits,
                                        hmq_mqtt_connect *connect) {
    reader in = {body.data, body.len, HMQ_MQTT_OK, limits};
    *connect = (hmq_mqtt_connect){0};
    take_protocol(&in, version, connect);
    bool five = connect->level == HMQ_MQTT_5_0;
    take_connect_flags(&in, connect);
    connect->keep_alive_s = take_short(&in);
    if (five) connect->properties = hmq_mqtt_take_properties(&in, HMQ_MQTT_CONNECT);
    connect->client_id = take_text(&in);
    if (connect->has_will) {
        if (five) connect->will_properties = hmq_mqtt_take_properties(&in, HMQ_MQTT_WILL);
        connect->will_topic = take_topic_name(&in);
        connect->will_payload = take_binary(&in);
    }
    if (connect->has_username) connect->username = take_text(&in);
    if (connect->has_password) connect->password = take_binary(&in);
    if (in.left) fail(&in, HMQ_MQTT_TRAILING);
    if (connect->client_id.len == 0 && !connect->clean && !five) fail(&in, HMQ_MQTT_BAD_CLIENT_ID);
    return in.error;
}

hmq_mqtt_error hmq_mqtt_read_connect(const hmq_mqtt_packet *packet, hmq_mqtt_connect *connect) {
    return hmq_mqtt_read_connect_as(packet->payload, HMQ_MQTT_ANY_VERSION, NULL, connect);
}

/* ---- writing ---- */

static bool texts_in_range(const hmq_mqtt_connect *c) {
    return c->client_id.len <= SHORT_MAX && c->will_topic.len <= SHORT_MAX && c->will_payload.len <= SHORT_MAX &&
           c->username.len <= SHORT_MAX && c->password.len <= SHORT_MAX;
}

static bool properties_in_range(const hmq_mqtt_connect *c) {
    if (c->level == HMQ_MQTT_3_1_1) return !c->properties.len && !c->will_properties.len;
    return c->properties.len <= HMQ_MQTT_MAX_REMAINING && c->will_properties.len <= HMQ_MQTT_MAX_REMAINING &&
           (c->has_will || !c->will_properties.len);
}

static bool connect_in_range(const hmq_mqtt_connect *c) {
    bool five = c->level == HMQ_MQTT_5_0;
    if (!five && c->level != HMQ_MQTT_3_1_1) return false;
    if (five && c->bridge) return false;
    if (!five && ((!c->client_id.len && !c->clean) || (c->has_password && !c->has_username))) return false;
    if (c->has_will ? c->will_qos > 2 || !c->will_topic.len : c->will_qos || c->will_retain) return false;
    return texts_in_range(c) && properties_in_range(c);
}

static uint8_t connect_flags(const hmq_mqtt_connect *c) {
    return (uint8_t)(c->has_username << 7 | c->has_password << 6 | c->will_retain << 5 | c->will_qos << 3 |
                     c->has_will << 2 | c->clean << 1);
}

size_t hmq_mqtt_connect_size(const hmq_mqtt_connect *c) {
    if (!connect_in_range(c)) return 0;
    bool five = c->level == HMQ_MQTT_5_0;
    size_t size = 10 + 2 + c->client_id.len;
    if (five) size += properties_size(c->properties);
    if (five && c->has_will) size += properties_size(c->will_properties);
    if (c->has_will) size += 2 + c->will_topic.len + 2 + c->will_payload.len;
    if (c->has_username) size += 2 + c->username.len;
    if (c->has_password) size += 2 + c->password.len;
    return size <= HMQ_MQTT_MAX_REMAINING ? size : 0;
}

size_t hmq_mqtt_encode_connect(const hmq_mqtt_connect *connect, uint8_t *out, size_t capacity) {
    size_t size = hmq_mqtt_connect_size(connect);
    if (size == 0 || size > capacity) return 0;
    bool five = connect->level == HMQ_MQTT_5_0;
    out = put_text(out, protocol_name);
    *out++ = (uint8_t)(connect->level | (connect->bridge ? HMQ_MQTT_BRIDGE : 0));
    *out++ = connect_flags(connect);
    out = put_short(out, connect->keep_alive_s);
    if (five) out = put_properties(out, connect->properties);
    out = put_text(out, connect->client_id);
    if (five && connect->has_will) out = put_properties(out, connect->will_properties);
    if (connect->has_will) out = put_text(put_text(out, connect->will_topic), connect->will_payload);
    if (connect->has_username) out = put_text(out, connect->username);
    if (connect->has_password) put_text(out, connect->password);
    return size;
}
