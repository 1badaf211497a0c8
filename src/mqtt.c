/* mqtt.c - decodes MQTT packets.  mqtt_encode.c writes them; mqtt.h has the convention.
 *
 *      +--------+-----------------------+---------------------------------------------+
 *      | type   | remaining length      | variable header, payload                    |
 *      | flags  | 1..4 bytes, 7 bits    | as many bytes as the remaining length says  |
 *      | 1 byte | each, lowest first    |                                             |
 *      +--------+-----------------------+---------------------------------------------+
 *
 * A body is read through a `reader` that remembers the first fault and from then on yields zeros and empty slices, so
 * that a body's function reads as the list of its fields and has no branch for every one of them. */
#include "mqtt.h"

#include <string.h>

#include "utf8.h"

/* ---- errors ---- */

static const char *const error_texts[] = {
    [-HMQ_MQTT_OK] = "the packet is well-formed",
    [-HMQ_MQTT_BAD_VERSION] = "the codec speaks protocol level 4 (MQTT 3.1.1) only",
    [-HMQ_MQTT_BAD_TYPE] = "the packet type is 0 or 15, which are reserved (section 2.2.1)",
    [-HMQ_MQTT_BAD_FLAGS] = "the flags of the fixed header are not those of the packet type [MQTT-2.2.2-2]",
    [-HMQ_MQTT_BAD_QOS] = "a PUBLISH has QoS 3 [MQTT-3.3.1-4]",
    [-HMQ_MQTT_BAD_DUP] = "a PUBLISH with QoS 0 has the DUP flag [MQTT-3.3.1-2]",
    [-HMQ_MQTT_BAD_LENGTH] = "the remaining length has more than four bytes (section 2.2.3)",
    [-HMQ_MQTT_TOO_LARGE] = "the packet is larger than this receiver allows",
    [-HMQ_MQTT_TRUNCATED] = "a field reaches beyond the end of its packet",
    [-HMQ_MQTT_TRAILING] = "the packet has bytes behind its last field",
    [-HMQ_MQTT_NOT_UTF8] = "a string is not well-formed UTF-8 [MQTT-1.5.3-1]",
    [-HMQ_MQTT_NUL] = "a string contains the character U+0000 [MQTT-1.5.3-2]",
    [-HMQ_MQTT_BAD_PROTOCOL_NAME] = "the protocol name of the CONNECT is not MQTT [MQTT-3.1.2-1]",
    [-HMQ_MQTT_BAD_PROTOCOL_LEVEL] = "the protocol level of the CONNECT is not supported [MQTT-3.1.2-2]",
    [-HMQ_MQTT_BAD_CONNECT_FLAGS] = "the reserved bit of the CONNECT flags is set [MQTT-3.1.2-3]",
    [-HMQ_MQTT_BAD_WILL_FLAGS] = "a CONNECT without a will has a will QoS or will retain [MQTT-3.1.2-13, -15]",
    [-HMQ_MQTT_BAD_WILL_QOS] = "the will QoS is 3 [MQTT-3.1.2-14]",
    [-HMQ_MQTT_BAD_PASSWORD_FLAG] = "a CONNECT has a password but no user name [MQTT-3.1.2-22]",
    [-HMQ_MQTT_BAD_CLIENT_ID] = "a CONNECT without a client id does not ask for a clean session [MQTT-3.1.3-8]",
    [-HMQ_MQTT_BAD_PACKET_ID] = "the packet identifier is 0 [MQTT-2.3.1-1]",
    [-HMQ_MQTT_TOPIC_EMPTY] = "a topic name or filter is empty [MQTT-4.7.3-1]",
    [-HMQ_MQTT_TOPIC_WILDCARD] = "a topic name contains a wildcard [MQTT-3.3.2-2]",
    [-HMQ_MQTT_TOPIC_TOO_DEEP] = "a topic name has more than 128 levels, the limit of this receiver",
    [-HMQ_MQTT_BAD_PLUS] = "a + in a topic filter does not stand alone in its level [MQTT-4.7.1-3]",
    [-HMQ_MQTT_BAD_HASH] = "a # in a topic filter does not stand alone in the last level [MQTT-4.7.1-2]",
    [-HMQ_MQTT_BAD_OPTIONS] = "a SUBSCRIBE asks for QoS 3 or sets reserved bits [MQTT-3.8.3-4]",
    [-HMQ_MQTT_NO_SUBSCRIPTIONS] = "a SUBSCRIBE has no topic filter [MQTT-3.8.3-3]",
    [-HMQ_MQTT_NO_UNSUBSCRIPTIONS] = "an UNSUBSCRIBE has no topic filter [MQTT-3.10.3-2]",
    [-HMQ_MQTT_BAD_CONNACK] = "a CONNACK has reserved bits or codes, or a session with a refusal [MQTT-3.2.2-4]",
    [-HMQ_MQTT_BAD_SUBACK] = "a SUBACK has no return code, or a reserved one [MQTT-3.9.3-2]",
};
#define ERROR_COUNT ((int)(sizeof error_texts / sizeof error_texts[0]))

const char *hmq_mqtt_error_text(hmq_mqtt_error error) {
    int index = -(int)error;
    return index >= 0 && index < ERROR_COUNT ? error_texts[index] : "unknown MQTT error";
}

uint8_t hmq_mqtt_error_connack(hmq_mqtt_error error) {
    if (error == HMQ_MQTT_BAD_PROTOCOL_LEVEL) return 0x01; /* unacceptable protocol level */
    return error == HMQ_MQTT_BAD_CLIENT_ID ? 0x02 : 0;     /* identifier rejected */
}

/* ---- the reader ---- */

typedef struct reader {
    const uint8_t *at;
    size_t left;
    hmq_mqtt_error error;
} reader;

static void fail(reader *in, hmq_mqtt_error error) {
    if (in->error == HMQ_MQTT_OK) in->error = error;
    in->left = 0;
}

static hmq_slice take(reader *in, size_t len) {
    if (len > in->left) {
        fail(in, HMQ_MQTT_TRUNCATED);
        return (hmq_slice){in->at, 0};
    }
    hmq_slice taken = {in->at, len};
    in->at += len;
    in->left -= len;
    return taken;
}

static uint8_t take_byte(reader *in) {
    hmq_slice byte = take(in, 1);
    return byte.len ? byte.data[0] : 0;
}

static uint16_t take_short(reader *in) {
    hmq_slice two = take(in, 2);
    return two.len ? (uint16_t)(two.data[0] << 8 | two.data[1]) : 0;
}

/* Two bytes of length, then so many bytes. */
static hmq_slice take_binary(reader *in) {
    return take(in, take_short(in));
}

/* UTF-8 string (section 1.5.3). */
static hmq_slice take_text(reader *in) {
    hmq_slice text = take_binary(in);
    hmq_utf8_error error = hmq_utf8_check(text.data, text.len);
    if (error) fail(in, error == HMQ_UTF8_NUL ? HMQ_MQTT_NUL : HMQ_MQTT_NOT_UTF8);
    return text;
}

static hmq_slice take_rest(reader *in) {
    return take(in, in->left);
}

static uint16_t take_packet_id(reader *in) {
    uint16_t packet_id = take_short(in);
    if (packet_id == 0) fail(in, HMQ_MQTT_BAD_PACKET_ID);
    return packet_id;
}

/* ---- topics ---- */

/* What a fault of a topic means for the packet.  Not here: TOO_LONG, which two bytes of length cannot say, and BAD_SHARE,
 * which MQTT 3.1.1 does not know. */
static hmq_mqtt_error topic_error(hmq_topic_error error) {
    switch (error) {
    case HMQ_TOPIC_EMPTY: return HMQ_MQTT_TOPIC_EMPTY;
    case HMQ_TOPIC_TOO_DEEP: return HMQ_MQTT_TOPIC_TOO_DEEP;
    case HMQ_TOPIC_NUL: return HMQ_MQTT_NUL;
    case HMQ_TOPIC_NOT_UTF8: return HMQ_MQTT_NOT_UTF8;
    case HMQ_TOPIC_WILDCARD: return HMQ_MQTT_TOPIC_WILDCARD;
    case HMQ_TOPIC_BAD_PLUS: return HMQ_MQTT_BAD_PLUS;
    case HMQ_TOPIC_BAD_HASH: return HMQ_MQTT_BAD_HASH;
    default: return HMQ_MQTT_OK;
    }
}

static hmq_slice take_topic_name(reader *in) {
    hmq_slice topic = take_binary(in);
    if (in->error == HMQ_MQTT_OK) {
        hmq_mqtt_error error = topic_error(hmq_topic_check_name((const char *)topic.data, topic.len));
        if (error) fail(in, error);
    }
    return topic;
}

static void take_entry(reader *in, bool with_options, hmq_mqtt_entry *entry) {
    entry->filter = take_binary(in);
    entry->options = with_options ? take_byte(in) : 0;
    entry->error = HMQ_TOPIC_OK;
    if (in->error) return;
    entry->error = hmq_topic_check_filter((const char *)entry->filter.data, entry->filter.len);
    hmq_mqtt_error error = topic_error(entry->error);
    if (error && error != HMQ_MQTT_TOPIC_TOO_DEEP) fail(in, error);
    if (entry->options > 2) fail(in, HMQ_MQTT_BAD_OPTIONS);
}

bool hmq_mqtt_next_entry(const hmq_mqtt_packet *packet, size_t *at, hmq_mqtt_entry *entry) {
    if (*at >= packet->payload.len) return false;
    reader in = {packet->payload.data + *at, packet->payload.len - *at, HMQ_MQTT_OK};
    take_entry(&in, packet->type == HMQ_MQTT_SUBSCRIBE, entry);
    if (in.error) return false;
    *at = packet->payload.len - in.left;
    return true;
}

/* ---- CONNECT (section 3.1) ---- */

#define CONNECT_RESERVED 0x01
#define CONNECT_CLEAN 0x02
#define CONNECT_WILL 0x04
#define CONNECT_WILL_QOS_SHIFT 3
#define CONNECT_WILL_RETAIN 0x20
#define CONNECT_PASSWORD 0x40
#define CONNECT_USERNAME 0x80

static bool is(hmq_slice slice, const char *text) {
    return slice.len == strlen(text) && memcmp(slice.data, text, slice.len) == 0;
}

/* Name and level come first and decide how all that follows is to be read.  MQIsdp is MQTT 3.1: a protocol that we know
 * and do not speak, so that its client is told. */
static void take_protocol(reader *in, hmq_mqtt_connect *connect) {
    hmq_slice name = take_binary(in);
    connect->level = take_byte(in);
    if (in->error) return;
    bool known = is(name, "MQTT");
    if (!known && !is(name, "MQIsdp")) fail(in, HMQ_MQTT_BAD_PROTOCOL_NAME);
    if (!known || connect->level != HMQ_MQTT_3_1_1) fail(in, HMQ_MQTT_BAD_PROTOCOL_LEVEL);
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
    if (connect->has_password && !connect->has_username) fail(in, HMQ_MQTT_BAD_PASSWORD_FLAG);
}

/* The client id is judged last: its error is answered, and an answer is for a packet that is otherwise in order. */
hmq_mqtt_error hmq_mqtt_read_connect(const hmq_mqtt_packet *packet, hmq_mqtt_connect *connect) {
    reader in = {packet->payload.data, packet->payload.len, HMQ_MQTT_OK};
    *connect = (hmq_mqtt_connect){0};
    take_protocol(&in, connect);
    take_connect_flags(&in, connect);
    connect->keep_alive_s = take_short(&in);
    connect->client_id = take_text(&in);
    if (connect->has_will) {
        connect->will_topic = take_topic_name(&in);
        connect->will_payload = take_binary(&in);
    }
    if (connect->has_username) connect->username = take_text(&in);
    if (connect->has_password) connect->password = take_binary(&in);
    if (in.left) fail(&in, HMQ_MQTT_TRAILING);
    if (connect->client_id.len == 0 && !connect->clean) fail(&in, HMQ_MQTT_BAD_CLIENT_ID);
    return in.error;
}

/* ---- bodies ---- */

static void read_connect(reader *in, hmq_mqtt_packet *packet) {
    packet->payload = take_rest(in);
    hmq_mqtt_connect connect;
    hmq_mqtt_error error = hmq_mqtt_read_connect(packet, &connect);
    if (error) fail(in, error);
}

static void read_connack(reader *in, hmq_mqtt_packet *packet) {
    uint8_t flags = take_byte(in);
    packet->session_present = flags & 1;
    packet->code = take_byte(in);
    if (flags > 1 || packet->code > 5 || (packet->session_present && packet->code)) fail(in, HMQ_MQTT_BAD_CONNACK);
}

static void read_publish(reader *in, hmq_mqtt_packet *packet) {
    packet->topic = take_topic_name(in);
    if (packet->qos) packet->packet_id = take_packet_id(in);
    packet->payload = take_rest(in);
}

static void read_packet_id(reader *in, hmq_mqtt_packet *packet) {
    packet->packet_id = take_packet_id(in);
}

/* SUBSCRIBE and UNSUBSCRIBE. */
static void read_entries(reader *in, hmq_mqtt_packet *packet) {
    bool subscribe = packet->type == HMQ_MQTT_SUBSCRIBE;
    packet->packet_id = take_packet_id(in);
    packet->payload = (hmq_slice){in->at, in->left};
    if (!in->left) fail(in, subscribe ? HMQ_MQTT_NO_SUBSCRIPTIONS : HMQ_MQTT_NO_UNSUBSCRIPTIONS);
    while (in->left) {
        hmq_mqtt_entry entry;
        take_entry(in, subscribe, &entry);
    }
}

static void read_suback(reader *in, hmq_mqtt_packet *packet) {
    packet->packet_id = take_packet_id(in);
    packet->payload = take_rest(in);
    if (!packet->payload.len) fail(in, HMQ_MQTT_BAD_SUBACK);
    for (size_t i = 0; i < packet->payload.len; i++)
        if (packet->payload.data[i] > 2 && packet->payload.data[i] != 0x80) fail(in, HMQ_MQTT_BAD_SUBACK);
}

static void read_nothing(reader *in, hmq_mqtt_packet *packet) {
    (void)in;
    (void)packet;
}

/* In the order of hmq_mqtt_type; flags are those of table 2.2 (PUBLISH has flags of its own). */
static const struct {
    uint8_t flags;
    void (*read)(reader *in, hmq_mqtt_packet *packet);
} types[16] = {
    [HMQ_MQTT_CONNECT] = {0, read_connect},    [HMQ_MQTT_CONNACK] = {0, read_connack},
    [HMQ_MQTT_PUBLISH] = {0, read_publish},    [HMQ_MQTT_PUBACK] = {0, read_packet_id},
    [HMQ_MQTT_PUBREC] = {0, read_packet_id},   [HMQ_MQTT_PUBREL] = {2, read_packet_id},
    [HMQ_MQTT_PUBCOMP] = {0, read_packet_id},  [HMQ_MQTT_SUBSCRIBE] = {2, read_entries},
    [HMQ_MQTT_SUBACK] = {0, read_suback},      [HMQ_MQTT_UNSUBSCRIBE] = {2, read_entries},
    [HMQ_MQTT_UNSUBACK] = {0, read_packet_id}, [HMQ_MQTT_PINGREQ] = {0, read_nothing},
    [HMQ_MQTT_PINGRESP] = {0, read_nothing},   [HMQ_MQTT_DISCONNECT] = {0, read_nothing},
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

/* The remaining length behind the first byte.  Returns its bytes, 0 if some are to come, or HMQ_MQTT_BAD_LENGTH. */
static int read_remaining(const uint8_t *data, size_t len, uint32_t *remaining) {
    *remaining = 0;
    for (int i = 0; i < 4; i++) {
        if ((size_t)i == len) return 0;
        *remaining |= (uint32_t)(data[i] & 0x7F) << (7 * i);
        if (!(data[i] & 0x80)) return i + 1;
    }
    return HMQ_MQTT_BAD_LENGTH;
}

static int64_t decode(const uint8_t *data, size_t len, size_t max_packet_bytes, hmq_mqtt_packet *packet) {
    *packet = (hmq_mqtt_packet){0};
    if (len == 0) return 0;
    packet->type = data[0] >> 4;
    if (!types[packet->type].read) return HMQ_MQTT_BAD_TYPE;
    hmq_mqtt_error error = read_flags(data[0] & 0x0F, packet);
    if (error) return error;
    uint32_t remaining;
    int length_bytes = read_remaining(data + 1, len - 1, &remaining);
    if (length_bytes <= 0) return length_bytes;
    size_t head = 1 + (size_t)length_bytes;
    packet->bytes = (uint32_t)head + remaining;
    if (packet->bytes > max_packet_bytes) return HMQ_MQTT_TOO_LARGE;
    if (packet->bytes > len) return 0;
    reader in = {data + head, remaining, HMQ_MQTT_OK};
    types[packet->type].read(&in, packet);
    if (in.left) fail(&in, HMQ_MQTT_TRAILING);
    return in.error ? (int64_t)in.error : (int64_t)packet->bytes;
}

int64_t hmq_mqtt_decode(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                        hmq_mqtt_packet *packet) {
    return version == HMQ_MQTT_3_1_1 ? decode(data, len, max_packet_bytes, packet) : HMQ_MQTT_BAD_VERSION;
}

size_t hmq_mqtt_decode_many(const uint8_t *data, size_t len, uint8_t version, size_t max_packet_bytes,
                            hmq_mqtt_packet *packets, size_t capacity, size_t *consumed, hmq_mqtt_error *error) {
    size_t count = 0;
    *consumed = 0;
    *error = version == HMQ_MQTT_3_1_1 ? HMQ_MQTT_OK : HMQ_MQTT_BAD_VERSION;
    while (*error == HMQ_MQTT_OK && count < capacity) {
        int64_t result = decode(data + *consumed, len - *consumed, max_packet_bytes, &packets[count]);
        if (result == 0) break;
        if (result < 0) {
            *error = (hmq_mqtt_error)result;
        } else {
            *consumed += (size_t)result;
            count++;
        }
    }
    return count;
}
