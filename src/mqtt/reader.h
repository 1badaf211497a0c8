/* reader.h - reads the fields of a packet's body one after the other; private to the MQTT codec.
 *
 * A reader keeps the first fault and returns zeros and empty slices from then on.  So the function for a body is a list of
 * its fields, without a branch per field.  Nothing is read beyond the end of the body. */
#ifndef HMQ_MQTT_READER_H
#define HMQ_MQTT_READER_H

#include "base/utf8.h"
#include "topic/topic.h"
#include "mqtt/mqtt.h"
#include "mqtt/properties.h"

typedef struct reader {
    const uint8_t *at;
    size_t left;
    hmq_mqtt_error error;
    const hmq_mqtt_limits *limits; /* NULL: none */
} reader;

static inline void fail(reader *in, hmq_mqtt_error error) {
    if (in->error == HMQ_MQTT_OK) in->error = error;
    in->left = 0;
}

static inline hmq_slice take(reader *in, size_t len) {
    if (len > in->left) {
        fail(in, HMQ_MQTT_TRUNCATED);
        return (hmq_slice){in->at, 0};
    }
    hmq_slice taken = {in->at, len};
    in->at += len;
    in->left -= len;
    return taken;
}

static inline uint8_t take_byte(reader *in) {
    hmq_slice byte = take(in, 1);
    return byte.len ? byte.data[0] : 0;
}

static inline uint16_t take_short(reader *in) {
    hmq_slice two = take(in, 2);
    return two.len ? (uint16_t)(two.data[0] << 8 | two.data[1]) : 0;
}

/* Four Byte Integer (5.0, section 1.5.3). */
static inline uint32_t take_long(reader *in) {
    uint32_t high = take_short(in);
    return high << 16 | take_short(in);
}

/* Variable Byte Integer (5.0, section 1.5.5): up to four bytes of seven bits each, lowest first, in the shortest form. */
static inline uint32_t take_variable(reader *in) {
    uint32_t value = 0;
    for (unsigned shift = 0; shift <= 21; shift += 7) {
        uint8_t byte = take_byte(in);
        value |= (uint32_t)(byte & 0x7F) << shift;
        if (byte & 0x80) continue;
        if (byte == 0 && shift) fail(in, HMQ_MQTT_NOT_MINIMAL);
        return value;
    }
    fail(in, HMQ_MQTT_BAD_LENGTH);
    return 0;
}

/* Two bytes of length, then that many bytes. */
static inline hmq_slice take_binary(reader *in) {
    return take(in, take_short(in));
}

/* UTF-8 string (section 1.5.3, in 5.0 1.5.4). */
static inline hmq_slice take_text(reader *in) {
    hmq_slice text = take_binary(in);
    hmq_utf8_error error = hmq_utf8_check(text.data, text.len);
    if (error) fail(in, error == HMQ_UTF8_NUL ? HMQ_MQTT_NUL : HMQ_MQTT_NOT_UTF8);
    return text;
}

static inline hmq_slice take_rest(reader *in) {
    return take(in, in->left);
}

static inline uint16_t take_packet_id(reader *in) {
    uint16_t packet_id = take_short(in);
    if (packet_id == 0) fail(in, HMQ_MQTT_BAD_PACKET_ID);
    return packet_id;
}

/* The packet's error for a fault of a topic.  Not listed: TOO_LONG, which two bytes of length cannot express, and
 * BAD_SHARE, which concerns one entry of a SUBSCRIBE only. */
static inline hmq_mqtt_error topic_error(hmq_topic_error error) {
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

static inline void check_topic_name(reader *in, hmq_slice topic) {
    if (in->error) return;
    hmq_topic_error error = hmq_topic_check_name((const char *)topic.data, topic.len);
    if (error) fail(in, topic_error(error));
}

static inline hmq_slice take_topic_name(reader *in) {
    hmq_slice topic = take_binary(in);
    check_topic_name(in, topic);
    return topic;
}

/* mqtt/properties.c: the properties of 5.0 with their length before them, checked; `place` as for
 * hmq_mqtt_check_properties. */
hmq_slice hmq_mqtt_take_properties(reader *in, uint8_t place);

/* mqtt/connect.c: hmq_mqtt_read_connect of a body, which must be of this version (0: of any). */
hmq_mqtt_error hmq_mqtt_read_connect_as(hmq_slice body, uint8_t version, const hmq_mqtt_limits *limits,
                                        hmq_mqtt_connect *connect);

#endif
