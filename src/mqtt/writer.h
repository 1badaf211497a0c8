/* writer.h - writes the fields of a packet; private to the MQTT codec.
 *
 * Each function writes at `out` and returns the place of the next field.  The caller has checked that there is room. */
#ifndef HMQ_MQTT_WRITER_H
#define HMQ_MQTT_WRITER_H

#include <string.h>

#include "mqtt/mqtt.h"

#define SHORT_MAX 0xFFFF

/* Size of a number as a Variable Byte Integer, the form of remaining lengths and lengths of properties. */
static inline size_t variable_size(size_t value) {
    if (value <= 0x7F) return 1;
    if (value <= 0x3FFF) return 2;
    return value <= 0x1FFFFF ? 3 : 4;
}

static inline uint8_t *put_variable(uint8_t *out, size_t value) {
    for (; value > 0x7F; value >>= 7) *out++ = (uint8_t)(value | 0x80);
    *out++ = (uint8_t)value;
    return out;
}

static inline uint8_t *put_short(uint8_t *out, size_t value) {
    out[0] = (uint8_t)(value >> 8);
    out[1] = (uint8_t)value;
    return out + 2;
}

static inline uint8_t *put_long(uint8_t *out, uint32_t value) {
    return put_short(put_short(out, value >> 16), value & SHORT_MAX);
}

static inline uint8_t *put_bytes(uint8_t *out, hmq_slice slice) {
    if (slice.len) memcpy(out, slice.data, slice.len);
    return out + slice.len;
}

/* Two bytes of length, then the bytes. */
static inline uint8_t *put_text(uint8_t *out, hmq_slice text) {
    return put_bytes(put_short(out, text.len), text);
}

static inline uint8_t *put_properties(uint8_t *out, hmq_slice properties) {
    return put_bytes(put_variable(out, properties.len), properties);
}

static inline size_t properties_size(hmq_slice properties) {
    return variable_size(properties.len) + properties.len;
}

#endif
