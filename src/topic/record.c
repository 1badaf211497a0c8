/* record.c - writes and reads the two layouts that topic/record.h draws.  Pure; decoding copies nothing and trusts nothing.
 *
 * Laws: decode(encode(r)) == r, and encode(decode(b)) == b for every b that decodes.  A field that a flag announces is never
 * empty, so that each message has exactly one form. */
#include "topic/record.h"

#include <string.h>

#define VERSION 1
#define FLAG_QOS 0x03
#define FLAG_RETAIN 0x04
#define FLAG_EXPIRES 0x08
#define FLAG_PUBLISHER 0x10
#define FLAG_PROPERTIES 0x20
#define FLAG_SHARE 0x40
#define FLAGS_KNOWN 0x7F

#define TIME_BYTES 6
#define TIME_MAX ((INT64_C(1) << 48) - 1)
#define RECORD_HEADER_BYTES (3 + TIME_BYTES)
#define SHORT_MAX 0xFFFF
#define LONG_MAX_BYTES 0xFFFFFFFF

/* ---- little-endian integers ---- */

static uint8_t *put(uint8_t *out, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> (8 * i));
    return out + bytes;
}

static uint64_t get(const uint8_t *data, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)data[i] << (8 * i);
    return value;
}

static uint8_t *put_bytes(uint8_t *out, hmq_slice slice) {
    if (slice.len) memcpy(out, slice.data, slice.len); /* memcpy must not see the NULL of an empty slice */
    return out + slice.len;
}

/* ---- record: encoding ---- */

static bool header_in_range(const hmq_record *record) {
    return record->qos <= 2 && record->time_ms >= 0 && record->time_ms <= TIME_MAX;
}

static bool publish_in_range(const hmq_record *record) {
    return record->expires_ms >= 0 && record->expires_ms <= TIME_MAX && record->topic.len <= SHORT_MAX &&
           record->publisher.len <= SHORT_MAX && record->properties.len <= LONG_MAX_BYTES &&
           record->share.len <= SHORT_MAX;
}

static bool pubrel_in_range(const hmq_record *record) {
    return !record->expires_ms && !record->topic.len && !record->publisher.len && !record->properties.len &&
           !record->share.len && !record->payload.len;
}

size_t hmq_record_size(const hmq_record *record) {
    if (!header_in_range(record)) return 0;
    if (record->type == HMQ_RECORD_PUBREL) return pubrel_in_range(record) ? RECORD_HEADER_BYTES : 0;
    if (record->type != HMQ_RECORD_PUBLISH || !publish_in_range(record)) return 0;
    size_t size = RECORD_HEADER_BYTES + 2 + record->topic.len;
    if (record->expires_ms) size += TIME_BYTES;
    if (record->publisher.len) size += 2 + record->publisher.len;
    if (record->properties.len) size += 4 + record->properties.len;
    if (record->share.len) size += 2 + record->share.len;
    return record->payload.len <= SIZE_MAX - size ? size + record->payload.len : 0;
}

static uint8_t flags_of(const hmq_record *record) {
    return (uint8_t)(record->qos | (record->retain ? FLAG_RETAIN : 0) | (record->expires_ms ? FLAG_EXPIRES : 0) |
                     (record->publisher.len ? FLAG_PUBLISHER : 0) | (record->properties.len ? FLAG_PROPERTIES : 0) |
                     (record->share.len ? FLAG_SHARE : 0));
}

size_t hmq_record_encode(const hmq_record *record, uint8_t *out, size_t capacity) {
    size_t size = hmq_record_size(record);
    if (size == 0 || size > capacity) return 0;
    *out++ = HMQ_RECORD_MAGIC;
    *out++ = (uint8_t)(VERSION << 4 | record->type);
    *out++ = flags_of(record);
    out = put(out, (uint64_t)record->time_ms, TIME_BYTES);
    if (record->type == HMQ_RECORD_PUBREL) return size;
    if (record->expires_ms) out = put(out, (uint64_t)record->expires_ms, TIME_BYTES);
    out = put_bytes(put(out, record->topic.len, 2), record->topic);
    if (record->publisher.len) out = put_bytes(put(out, record->publisher.len, 2), record->publisher);
    if (record->properties.len) out = put_bytes(put(out, record->properties.len, 4), record->properties);
    if (record->share.len) out = put_bytes(put(out, record->share.len, 2), record->share);
    put_bytes(out, record->payload);
    return size;
}

/* ---- record: decoding ---- */

/* Takes a slice, preceded by its length in `length_bytes` bytes, from the front of rest; false if rest is too short. */
static bool take_slice(hmq_slice *rest, size_t length_bytes, hmq_slice *slice) {
    if (rest->len < length_bytes) return false;
    uint64_t len = get(rest->data, length_bytes);
    if (len > rest->len - length_bytes) return false;
    *slice = (hmq_slice){rest->data + length_bytes, (size_t)len};
    rest->data = slice->data + len;
    rest->len -= length_bytes + (size_t)len;
    return true;
}

static bool take_expiry(hmq_slice *rest, int64_t *expires_ms) {
    if (rest->len < TIME_BYTES) return false;
    *expires_ms = (int64_t)get(rest->data, TIME_BYTES);
    rest->data += TIME_BYTES;
    rest->len -= TIME_BYTES;
    return *expires_ms != 0;
}

static bool decode_publish(hmq_slice rest, uint8_t flags, hmq_record *record) {
    if ((flags & FLAG_EXPIRES) && !take_expiry(&rest, &record->expires_ms)) return false;
    if (!take_slice(&rest, 2, &record->topic)) return false;
    if ((flags & FLAG_PUBLISHER) && !(take_slice(&rest, 2, &record->publisher) && record->publisher.len)) return false;
    if ((flags & FLAG_PROPERTIES) && !(take_slice(&rest, 4, &record->properties) && record->properties.len))
        return false;
    if ((flags & FLAG_SHARE) && !(take_slice(&rest, 2, &record->share) && record->share.len)) return false;
    record->payload = rest;
    return true;
}

bool hmq_record_is(const uint8_t *data, size_t len) {
    return len >= RECORD_HEADER_BYTES && data[0] == HMQ_RECORD_MAGIC && data[1] >> 4 == VERSION;
}

bool hmq_record_has_qos0(const uint8_t *data, size_t len) {
    return hmq_record_is(data, len) && (data[1] & 0x0F) == HMQ_RECORD_PUBLISH && (data[2] & FLAG_QOS) == 0;
}

int64_t hmq_record_expires(const uint8_t *data, size_t len) {
    if (len < RECORD_HEADER_BYTES + TIME_BYTES || !hmq_record_is(data, len)) return 0;
    if ((data[1] & 0x0F) != HMQ_RECORD_PUBLISH || !(data[2] & FLAG_EXPIRES)) return 0;
    return (int64_t)get(data + RECORD_HEADER_BYTES, TIME_BYTES);
}

int hmq_record_decode(const uint8_t *data, size_t len, hmq_record *record) {
    *record = (hmq_record){0};
    if (!hmq_record_is(data, len)) return -1;
    uint8_t flags = data[2];
    record->type = data[1] & 0x0F;
    record->qos = flags & FLAG_QOS;
    record->retain = (flags & FLAG_RETAIN) != 0;
    record->time_ms = (int64_t)get(data + 3, TIME_BYTES);
    if (record->qos > 2 || (flags & ~FLAGS_KNOWN)) return -1;
    if (record->type == HMQ_RECORD_PUBREL)
        return len == RECORD_HEADER_BYTES && !(flags & ~(FLAG_QOS | FLAG_RETAIN)) ? 0 : -1;
    if (record->type != HMQ_RECORD_PUBLISH) return -1;
    hmq_slice rest = {data + RECORD_HEADER_BYTES, len - RECORD_HEADER_BYTES};
    return decode_publish(rest, flags, record) ? 0 : -1;
}

/* ---- delivery ---- */

static bool delivery_in_range(const hmq_delivery *delivery) {
    if (delivery->qos > 2) return false;
    switch (delivery->kind) {
    case HMQ_DELIVERY_QUEUED: return delivery->packet_id != 0 && delivery->serial != 0;
    case HMQ_DELIVERY_TRANSIENT:
        return !delivery->qos && !delivery->packet_id && !delivery->serial && !delivery->previous;
    case HMQ_DELIVERY_TAKEN_OVER:
    case HMQ_DELIVERY_DROPPED:
        return !delivery->qos && !delivery->retain && !delivery->packet_id && !delivery->previous &&
               !delivery->record.len;
    default: return false;
    }
}

size_t hmq_delivery_encode_header(const hmq_delivery *delivery, uint8_t *out, size_t capacity) {
    if (capacity < HMQ_DELIVERY_HEADER_BYTES || !delivery_in_range(delivery)) return 0;
    *out++ = HMQ_DELIVERY_MAGIC;
    *out++ = delivery->kind;
    *out++ = (uint8_t)(delivery->qos | (delivery->retain ? FLAG_RETAIN : 0));
    out = put(out, delivery->packet_id, 2);
    out = put(out, delivery->serial, 8);
    put(out, delivery->previous, 8);
    return HMQ_DELIVERY_HEADER_BYTES;
}

int hmq_delivery_decode(const uint8_t *data, size_t len, hmq_delivery *delivery) {
    *delivery = (hmq_delivery){0};
    if (len < HMQ_DELIVERY_HEADER_BYTES || data[0] != HMQ_DELIVERY_MAGIC) return -1;
    if (data[2] & ~(FLAG_QOS | FLAG_RETAIN)) return -1;
    delivery->kind = data[1];
    delivery->qos = data[2] & FLAG_QOS;
    delivery->retain = (data[2] & FLAG_RETAIN) != 0;
    delivery->packet_id = (uint16_t)get(data + 3, 2);
    delivery->serial = get(data + 5, 8);
    delivery->previous = get(data + 13, 8);
    delivery->record = (hmq_slice){data + HMQ_DELIVERY_HEADER_BYTES, len - HMQ_DELIVERY_HEADER_BYTES};
    return delivery_in_range(delivery) ? 0 : -1;
}
