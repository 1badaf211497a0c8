/* record.h - the stored form of a message, and the form that is pushed to a session's inbox.
 *
 * RECORD (all integers little endian)
 *
 *   OFFSET  SIZE  DESCRIPTION
 *        0     1  magic 0xFA (a byte that occurs neither in UTF-8 nor at the start of JSON)
 *        1     1  high four bits: version 1; low four bits: type (1 publish, 2 pubrel)
 *        2     1  flags: bits 0-1 QoS 0..2, bit 2 retain (in a queue: of this delivery), bit 3 expires, bit 4 publisher, bit 5 properties,
 *                 bit 6 share; bit 7 is 0
 *        3     6  time of publishing, ms since 1970-01-01 UTC
 *        9     6  time of expiry, the same unit                                     (if bit 3)
 *        .     2  topic length, then the topic
 *        .     2  length of the publisher's client id, then the id                  (if bit 4)
 *        .     4  length of the properties, then the properties as MQTT 5.0 encodes them, without their length (bit 5)
 *        .     2  length of the share, then the filter $share/<group>/<filter> through which a session got it (bit 6)
 *        .     .  the payload: all that follows
 *
 *   A pubrel record ends after byte 8 (time): QoS 2 was released, and only the identifier in its key is needed.
 *
 * DELIVERY, a message on a session's inbox channel
 *
 *        0     1  magic 0xFB
 *        1     1  kind: 1 queued message, 2 message that is not stored (QoS 0), 3 notice: the session was taken over, 4 it was dropped
 *        2     1  QoS of this delivery 0..2 | retain flag 0x04 (to be sent to the client) | 0x00
 *        3     2  packet identifier, 0 for kinds 2 to 4
 *        5     8  serial (kind 1), 0 (kind 2), epoch of the new owner (kind 3), the last epoch (kind 4)
 *       13     8  serial of the message before it in the queue, 0 if it was the only one (kind 1), else 0
 *       21     .  the record (kinds 1 and 2); nothing (kinds 3 and 4)
 *
 * Decoding points into the input; nothing is copied.  Any input is safe. */
#ifndef HMQ_RECORD_H
#define HMQ_RECORD_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_RECORD_MAGIC 0xFA
#define HMQ_DELIVERY_MAGIC 0xFB
#define HMQ_DELIVERY_HEADER_BYTES 21

#define HMQ_RECORD_PUBLISH 1
#define HMQ_RECORD_PUBREL 2

#define HMQ_DELIVERY_QUEUED 1
#define HMQ_DELIVERY_TRANSIENT 2
#define HMQ_DELIVERY_TAKEN_OVER 3
#define HMQ_DELIVERY_DROPPED 4

typedef struct hmq_record {
    uint8_t type;          /* HMQ_RECORD_PUBLISH or HMQ_RECORD_PUBREL */
    uint8_t qos;           /* 0..2; in a queue or inbox that of the delivery, otherwise as published */
    bool retain;           /* likewise */
    int64_t time_ms;       /* 0 .. 2^48-1 */
    int64_t expires_ms;    /* 0: never, else 1 .. 2^48-1 */
    hmq_slice topic;       /* at most 65535 bytes */
    hmq_slice publisher;   /* client id; len 0: none */
    hmq_slice properties;  /* MQTT 5.0 encoding; len 0: none */
    hmq_slice share;       /* $share/<group>/<filter>; len 0: none */
    hmq_slice payload;
} hmq_record;

/* Bytes that hmq_record_encode will write; 0 if a field is out of range. */
size_t hmq_record_size(const hmq_record *record);
/* Writes the record; returns its size, 0 if it does not fit or a field is out of range. */
size_t hmq_record_encode(const hmq_record *record, uint8_t *out, size_t capacity);
/* 0, or -1 if the bytes are not a record of version 1. */
int hmq_record_decode(const uint8_t *data, size_t len, hmq_record *record);
/* When a publish record expires; 0: never, or the bytes are not a publish record.  Reads only the first bytes. */
int64_t hmq_record_expires(const uint8_t *data, size_t len);
/* Is it a publish record of QoS 0?  Reads only the first bytes. */
bool hmq_record_has_qos0(const uint8_t *data, size_t len);
/* Does it begin like a record?  (Values of other programs, such as TBMQ's JSON, do not.) */
bool hmq_record_is(const uint8_t *data, size_t len);

typedef struct hmq_delivery {
    uint8_t kind;
    uint8_t qos;
    bool retain;
    uint16_t packet_id;
    uint64_t serial;
    uint64_t previous;
    hmq_slice record;
} hmq_delivery;

/* Writes the 21 bytes before the record; returns 21, 0 if capacity is less or a field is out of range. */
size_t hmq_delivery_encode_header(const hmq_delivery *delivery, uint8_t *out, size_t capacity);
/* 0, or -1 if the bytes are not a delivery. */
int hmq_delivery_decode(const uint8_t *data, size_t len, hmq_delivery *delivery);
/* cffi-end */

/* Its time to live was 0: connected clients get it, and it is never queued (MQTT 5.0 section 3.3.2.3.3). */
static inline bool hmq_record_has_zero_ttl(const hmq_record *record) {
    return record->expires_ms > 0 && record->expires_ms <= record->time_ms;
}

#endif
