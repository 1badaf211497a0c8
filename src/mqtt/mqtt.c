/* mqtt.c - decodes MQTT packets.  mqtt/connect.c has CONNECT, mqtt/properties.c the properties of 5.0, mqtt/encode.c
 * writes packets; mqtt/mqtt.h has the convention.
 *
 *      +--------+-----------------------+---------------------------------------------+
 *      | type   | remaining length      | variable header, payload                    |
 *      | flags  | 1..4 bytes, 7 bits    | as many bytes as the remaining length says  |
 *      | 1 byte | each, lowest first    |                                             |
 *      +--------+-----------------------+---------------------------------------------+
 *
 * A type's body has a function for 3.1.1 and one for 5.0, the same one where they do not differ. */
#include "mqtt/mqtt.h"

#include "mqtt/properties.h"
#include "mqtt/reader.h"

/* ---- entries of SUBSCRIBE and UNSUBSCRIBE ---- */

#define OPTIONS_RESERVED 0xC0

static void check_options(reader *in, uint8_t version, const hmq_mqtt_entry *entry) {
    uint8_t options = entry->options;
    if (version != HMQ_MQTT_5_0) {
        if (options > 2) fail(in, HMQ_MQTT_BAD_OPTIONS);
        return;
    }
    hmq_slice group, inner;
    if (options & OPTIONS_RESERVED) fail(in, HMQ_MQTT_BAD_OPTIONS);
    if ((options & HMQ_MQTT_OPTION_QOS) == HMQ_MQTT_OPTION_QOS ||
        (options & HMQ_MQTT_OPTION_RETAIN_HANDLING) == HMQ_MQTT_OPTION_RETAIN_HANDLING)
        fail(in, HMQ_MQTT_BAD_SUBSCRIPTION);
    if (options & HMQ_MQTT_OPTION_NO_LOCAL &&
        hmq_topic_split_share((const char *)entry->filter.data, entry->filter.len, &group, &inner))
        fail(in, HMQ_MQTT_SHARED_NO_LOCAL);
}

static void take_entry(reader *in, const hmq_mqtt_packet *packet, hmq_mqtt_entry *entry) {
    entry->filter = take_binary(in);
    entry->options = packet->type == HMQ_MQTT_SUBSCRIBE ? take_byte(in) : 0;
    entry->error = HMQ_TOPIC_OK;
    if (in->error) return;
    entry->error = hmq_topic_check_filter((const char *)entry->filter.data, entry->filter.len);
    hmq_mqtt_error error = topic_error(entry->error);
    if (error && error != HMQ_MQTT_TOPIC_TOO_DEEP) fail(in, error);
    check_options(in, packet->version, entry);
}

bool hmq_mqtt_next_entry(const hmq_mqtt_packet *packet, size_t *at, hmq_mqtt_entry *entry) {
    if (*at >= packet->payload.len) return false;
    reader in = {packet->payload.data + *at, packet->payload.len - *at, HMQ_MQTT_OK, NULL};
    take_entry(&in, packet, entry);
    if (in.error) return false;
    *at = packet->payload.len - in.left;
    return true;
}

/* ---- bodies ---- */

static void read_connect(reader *in, hmq_mqtt_packet *packet) {
    uint8_t version = packet->version;
    packet->payload = take_rest(in);
    hmq_mqtt_connect connect;
    hmq_mqtt_error error = hmq_mqtt_read_connect_as(packet->payload, version, in->limits, &connect);
    packet->version = connect.level;
    if (error) fail(in, error);
}

static void read_connack(reader *in, hmq_mqtt_packet *packet) {
    bool five = packet->version == HMQ_MQTT_5_0;
    uint8_t flags = take_byte(in);
    packet->session_present = flags & 1;
    packet->code = take_byte(in);
    bool known = five ? hmq_mqtt_reason_is_known(HMQ_MQTT_CONNACK, packet->code) : packet->code <= 5;
    if (flags > 1 || !known || (packet->session_present && packet->code)) fail(in, HMQ_MQTT_BAD_CONNACK);
    if (five) packet->properties = hmq_mqtt_take_properties(in, HMQ_MQTT_CONNACK);
}

static void read_publish(reader *in, hmq_mqtt_packet *packet) {
    packet->topic = take_topic_name(in);
    if (packet->qos) packet->packet_id = take_packet_id(in);
    packet->payload = take_rest(in);
}

/* The topic may be empty if an alias follows in the properties.  Faults of the topic are reported first. */
static void read_publish5(reader *in, hmq_mqtt_packet *packet) {
    packet->topic = take_binary(in);
    if (packet->topic.len) check_topic_name(in, packet->topic);
    if (packet->qos) packet->packet_id = take_packet_id(in);
    packet->properties = hmq_mqtt_take_properties(in, HMQ_MQTT_PUBLISH);
    packet->payload = take_rest(in);
    if (packet->topic.len || in->error) return;
    hmq_mqtt_publish_properties split;
    hmq_mqtt_split_publish_properties(packet->properties, &split);
    if (!split.topic_alias) fail(in, HMQ_MQTT_NO_TOPIC);
}

static void read_packet_id(reader *in, hmq_mqtt_packet *packet) {
    packet->packet_id = take_packet_id(in);
}

/* A reason code and properties.  Missing ones are 0 and empty (5.0, sections 3.4.2.1, 3.14.2.1 ...). */
static void read_reason(reader *in, hmq_mqtt_packet *packet) {
    if (in->left) packet->code = take_byte(in);
    if (in->left) packet->properties = hmq_mqtt_take_properties(in, packet->type);
    if (!hmq_mqtt_reason_is_known(packet->type, packet->code)) fail(in, HMQ_MQTT_BAD_REASON);
}

static void read_acknowledgement5(reader *in, hmq_mqtt_packet *packet) {
    packet->packet_id = take_packet_id(in);
    read_reason(in, packet);
}

/* An AUTH that is not empty must have properties: without a method it has no meaning. */
static void read_auth(reader *in, hmq_mqtt_packet *packet) {
    bool empty = in->left == 0;
    read_reason(in, packet);
    if (!empty && !packet->properties.len) fail(in, HMQ_MQTT_NO_AUTH_METHOD);
}

/* SUBSCRIBE and UNSUBSCRIBE. */
static void read_entries(reader *in, hmq_mqtt_packet *packet) {
    packet->packet_id = take_packet_id(in);
    if (packet->version == HMQ_MQTT_5_0) packet->properties = hmq_mqtt_take_properties(in, packet->type);
    packet->payload = (hmq_slice){in->at, in->left};
    if (!in->left)
        fail(in, packet->type == HMQ_MQTT_SUBSCRIBE ? HMQ_MQTT_NO_SUBSCRIPTIONS : HMQ_MQTT_NO_UNSUBSCRIPTIONS);
    uint32_t most = in->limits == NULL ? 0 : in->limits->max_filters;
    for (uint32_t count = 1; in->left; count++) {
        hmq_mqtt_entry entry;
        if (most > 0 && count > most) fail(in, HMQ_MQTT_TOO_MANY_FILTERS);
        take_entry(in, packet, &entry);
    }
}

static void read_suback(reader *in, hmq_mqtt_packet *packet) {
    packet->packet_id = take_packet_id(in);
    packet->payload = take_rest(in);
    if (!packet->payload.len) fail(in, HMQ_MQTT_BAD_SUBACK);
    for (size_t i = 0; i < packet->payload.len; i++)
        if (packet->payload.data[i] > 2 && packet->payload.data[i] != 0x80) fail(in, HMQ_MQTT_BAD_SUBACK);
}

/* SUBACK and UNSUBACK. */
static void read_codes5(reader *in, hmq_mqtt_packet *packet) {
    hmq_mqtt_error bad = packet->type == HMQ_MQTT_SUBACK ? HMQ_MQTT_BAD_SUBACK : HMQ_MQTT_BAD_UNSUBACK;
    packet->packet_id = take_packet_id(in);
    packet->properties = hmq_mqtt_take_properties(in, packet->type);
    packet->payload = take_rest(in);
    if (!packet->payload.len) fail(in, bad);
    for (size_t i = 0; i < packet->payload.len; i++)
        if (!hmq_mqtt_reason_is_known(packet->type, packet->payload.data[i])) fail(in, bad);
}

static void read_nothing(reader *in, hmq_mqtt_packet *packet) {
    (void)in;
    (void)packet;
}

/* In the order of hmq_mqtt_type; flags are those of table 2.2 (PUBLISH has flags of its own).  Bodies of 3.1.1, of 5.0. */
typedef void (*body)(reader *in, hmq_mqtt_packet *packet);
static const struct {
    uint8_t flags;
    body read, read5;
} types[16] = {
    [HMQ_MQTT_CONNECT] = {0, read_connect, read_connect},
    [HMQ_MQTT_CONNACK] = {0, read_connack, read_connack},
    [HMQ_MQTT_PUBLISH] = {0, read_publish, read_publish5},
    [HMQ_MQTT_PUBACK] = {0, read_packet_id, read_acknowledgement5},
    [HMQ_MQTT_PUBREC] = {0, read_packet_id, read_acknowledgement5},
    [HMQ_MQTT_PUBREL] = {2, read_packet_id, read_acknowledgement5},
    [HMQ_MQTT_PUBCOMP] = {0, read_packet_id, read_acknowledgement5},
    [HMQ_MQTT_SUBSCRIBE] = {2, read_entries, read_entries},
    [HMQ_MQTT_SUBACK] = {0, read_suback, read_codes5},
    [HMQ_MQTT_UNSUBSCRIBE] = {2, read_entries, read_entries},
    [HMQ_MQTT_UNSUBACK] = {0, read_packet_id, read_codes5},
    [HMQ_MQTT_PINGREQ] = {0, read_nothing, read_nothing},
    [HMQ_MQTT_PINGRESP] = {0, read_nothing, read_nothing},
    [HMQ_MQTT_DISCONNECT] = {0, read_nothing, read_reason},
    [HMQ_MQTT_AUTH] = {0, NULL, read_auth},
};

/* ---- the fixed header ---- */

static hmq_mqtt_error read_flags(uint8_t flags, hmq_mqtt_packet *packet) {
    if (packet->type != HMQ_MQTT_PUBLISH) return flags == types[packet->type].flags ? HMQ_MQTT_OK : HMQ_MQTT_BAD_FLAGS;
    packet->retain = flags & 1;
    packet->qos = flags >> 1 & 3;
    packet->dup = flags >> 3 & 1;
    if (packet->qos == 3) return HMQ_MQTT_BAD_QOS;
    return packet->dup && !packet->qos ? HMQ_MQTT_BAD_DUP : HMQ_MQTT_OK;
}

/* Reads type and flags from the first byte.  *read: the function for the body; NULL if the version has no such type. */
static hmq_mqtt_error read_first(uint8_t first, hmq_mqtt_packet *packet, body *read) {
    packet->type = first >> 4;
    *read = packet->version == HMQ_MQTT_3_1_1 ? types[packet->type].read : types[packet->type].read5;
    if (!*read) return HMQ_MQTT_BAD_TYPE;
    if (packet->version == HMQ_MQTT_ANY_VERSION && packet->type != HMQ_MQTT_CONNECT) return HMQ_MQTT_NO_CONNECT;
    return read_flags(first & 0x0F, packet);
}

/* Reads the remaining length after the first byte.  Returns its size in bytes, 0 if it is incomplete, or an error.  Only
 * 5.0 requires the shortest form. */
static int read_remaining(const uint8_t *data, size_t len, uint8_t version, uint32_t *remaining) {
    *remaining = 0;
    for (int i = 0; i < 4; i++) {
        if ((size_t)i == len) return 0;
        *remaining |= (uint32_t)(data[i] & 0x7F) << (7 * i);
        if (data[i] & 0x80) continue;
        return i && !data[i] && version == HMQ_MQTT_5_0 ? HMQ_MQTT_NOT_MINIMAL : i + 1;
    }
    return HMQ_MQTT_BAD_LENGTH;
}

/* Checks the size, which is in the fixed header. */
static hmq_mqtt_error check_size(const hmq_mqtt_packet *packet, const hmq_mqtt_limits *limits) {
    if (limits->max_packet_bytes > 0 && packet->bytes > limits->max_packet_bytes) return HMQ_MQTT_TOO_LARGE;
    bool is_bounded = packet->type == HMQ_MQTT_CONNECT && limits->max_connect_bytes > 0;
    return is_bounded && packet->bytes > limits->max_connect_bytes ? HMQ_MQTT_CONNECT_TOO_LARGE : HMQ_MQTT_OK;
}

static int64_t decode(const uint8_t *data, size_t len, uint8_t version, const hmq_mqtt_limits *limits,
                      hmq_mqtt_packet *packet) {
    *packet = (hmq_mqtt_packet){.version = version};
    if (len == 0) return 0;
    body read;
    hmq_mqtt_error error = read_first(data[0], packet, &read);
    if (error) return error;
    uint32_t remaining;
    int length_bytes = read_remaining(data + 1, len - 1, version, &remaining);
    if (length_bytes <= 0) return length_bytes;
    size_t head = 1 + (size_t)length_bytes;
    packet->bytes = (uint32_t)head + remaining;
    error = check_size(packet, limits);
    if (error) return error;
    if (packet->bytes > len) return 0;
    reader in = {data + head, remaining, HMQ_MQTT_OK, limits};
    read(&in, packet);
    if (in.left) fail(&in, HMQ_MQTT_TRAILING);
    return in.error ? (int64_t)in.error : (int64_t)packet->bytes;
}

static bool is_version(uint8_t version) {
    return version == HMQ_MQTT_3_1_1 || version == HMQ_MQTT_5_0 || version == HMQ_MQTT_ANY_VERSION;
}

/* No packet is larger than HMQ_MQTT_MAX_BYTES, and none has 0 bytes. */
static uint32_t bounded(size_t max_packet_bytes) {
    if (max_packet_bytes == 0) return 1;
    return max_packet_bytes < HMQ_MQTT_MAX_BYTES ? (uint32_t)max_packet_bytes : HMQ_MQTT_MAX_BYTES;
}

int64_t hmq_mqtt_decode(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                        hmq_mqtt_packet *packet) {
    const hmq_mqtt_limits limits = {.max_packet_bytes = bounded(max_packet_bytes)};
    return is_version(version) ? decode(data, len, version, &limits, packet) : HMQ_MQTT_BAD_VERSION;
}

size_t hmq_mqtt_decode_many(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                            hmq_mqtt_packet *packets, size_t capacity, size_t *consumed, hmq_mqtt_error *error) {
    const hmq_mqtt_limits limits = {.max_packet_bytes = bounded(max_packet_bytes)};
    return hmq_mqtt_decode_within(data, len, version, &limits, packets, capacity, consumed, error);
}

size_t hmq_mqtt_decode_within(const uint8_t *data, size_t len, uint8_t version, const hmq_mqtt_limits *limits,
                              hmq_mqtt_packet *packets, size_t capacity, size_t *consumed, hmq_mqtt_error *error) {
    size_t count = 0;
    *consumed = 0;
    *error = is_version(version) ? HMQ_MQTT_OK : HMQ_MQTT_BAD_VERSION;
    while (*error == HMQ_MQTT_OK && count < capacity) {
        int64_t result = decode(data + *consumed, len - *consumed, version, limits, &packets[count]);
        if (result == 0) break;
        if (result < 0) {
            *error = (hmq_mqtt_error)result;
        } else {
            version = packets[count].version;
            *consumed += (size_t)result;
            count++;
        }
    }
    return count;
}
