/* tbmq_message.c - reads a message in TBMQ's format: all members that its delivery needs.
 *
 *     {"clientId", "topicName" (or "topic"), "time" (ms), "qos", "packetId", "packetType", "payload" (base64), "retained",
 *      "userProperties": {"props": [{"k", "v"}, ...]}, "msgExpiryInterval" (s, from `time`), "payloadFormatIndicator",
 *      "contentType", "responseTopic", "correlationData" (base64), "subscriptionIds": [...]}
 *
 * Invariants
 *  1. Decoded bytes are never longer than their JSON, so the length of the message is enough room for all of them.
 *  2. hmq_record_encode accepts the record: topic, texts and numbers are checked like those of a client.
 *
 * A null member counts as missing, and other members are ignored.  The last one of repeated members counts. */
#include "base/utf8.h"
#include "topic/record.h"
#include "topic/tbmq.h"
#include "topic/tbmq_scan.h"
#include "topic/topic.h"

#define TIME_MAX ((1LL << 48) - 1)
#define SHORT_MAX 0xFFFFU
#define MAX_SUBSCRIPTION_ID 268435455LL

enum {
    FORMAT = 0x01,
    CONTENT_TYPE = 0x03,
    RESPONSE_TOPIC = 0x08,
    CORRELATION = 0x09,
    SUBSCRIPTION = 0x0B,
    USER = 0x26
};

/* The output for decoded bytes. */
typedef struct sink {
    uint8_t *at, *end;
    bool failed;
} sink;

static void put(sink *out, uint8_t byte) {
    if (out->at == out->end)
        out->failed = true;
    else
        *out->at++ = byte;
}

/* ---- JSON -------------------------------------------------------------------------------------------------- */

static int hex_digit(uint8_t c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The value of the four digits of an escape \uXXXX at `at`; -1 if they are missing. */
static int32_t code_unit(hmq_slice text, size_t at) {
    int32_t unit = 0;
    if (at + 4 > text.len) return -1;
    for (size_t i = at; i < at + 4; i++) {
        int digit = hex_digit(text.data[i]);
        if (digit < 0) return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

static void put_character(sink *out, uint32_t c) {
    if (c < 0x80) {
        put(out, (uint8_t)c);
    } else if (c < 0x800) {
        put(out, (uint8_t)(0xC0 | c >> 6));
        put(out, (uint8_t)(0x80 | (c & 0x3F)));
    } else {
        if (c < 0x10000) {
            put(out, (uint8_t)(0xE0 | c >> 12));
        } else {
            put(out, (uint8_t)(0xF0 | c >> 18));
            put(out, (uint8_t)(0x80 | (c >> 12 & 0x3F)));
        }
        put(out, (uint8_t)(0x80 | (c >> 6 & 0x3F)));
        put(out, (uint8_t)(0x80 | (c & 0x3F)));
    }
}

/* Decodes \uXXXX, whose digits begin at `at`, with the low surrogate after a high one.  Returns the bytes read, 0: invalid. */
static size_t put_escaped(sink *out, hmq_slice text, size_t at) {
    int32_t unit = code_unit(text, at), low = -1;
    if (unit < 0) return 0;
    if (unit < 0xD800 || unit > 0xDFFF) {
        put_character(out, (uint32_t)unit);
        return 4;
    }
    if (at + 6 <= text.len && text.data[at + 4] == '\\' && text.data[at + 5] == 'u') low = code_unit(text, at + 6);
    if (unit > 0xDBFF || low < 0xDC00 || low > 0xDFFF) return 0;
    put_character(out, 0x10000 + ((uint32_t)(unit - 0xD800) << 10) + (uint32_t)(low - 0xDC00));
    return 10;
}

/* Decodes a JSON string into `out`; sets failed for any other value. */
static hmq_slice take_text(sink *out, hmq_slice value) {
    static const char names[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
    const uint8_t *begin = out->at;
    bool is_string = value.len >= 2 && value.data[0] == '"';
    hmq_slice text = is_string ? (hmq_slice){value.data + 1, value.len - 2} : (hmq_slice){0};
    out->failed |= !is_string;
    for (size_t i = 0; i < text.len && !out->failed; i++) {
        if (text.data[i] != '\\') {
            put(out, text.data[i]);
            continue;
        }
        uint8_t escape = ++i < text.len ? text.data[i] : 0;
        const char *known = escape == 0 ? NULL : strchr(names, escape);
        size_t read = escape == 'u' ? put_escaped(out, text, i + 1) : 0;
        i += read;
        if (known != NULL)
            put(out, (uint8_t)characters[known - names]);
        else if (read == 0)
            out->failed = true;
    }
    return (hmq_slice){begin, (size_t)(out->at - begin)};
}

/* Reads an integer of at most `max`; sets failed for any other value. */
static int64_t take_number(sink *out, hmq_slice value, int64_t max) {
    int64_t number = 0;
    out->failed |= value.len == 0 || value.len > 15;
    for (size_t i = 0; i < value.len && !out->failed; i++) {
        uint8_t digit = (uint8_t)(value.data[i] - '0');
        out->failed = digit > 9;
        number = number * 10 + digit;
    }
    out->failed |= number > max;
    return out->failed ? 0 : number;
}

/* ---- base64 ------------------------------------------------------------------------------------------------ */

static int base64_digit(uint8_t c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decodes a JSON string in base64 (RFC 4648, with or without padding), in place. */
static hmq_slice take_base64(sink *out, hmq_slice value) {
    uint8_t *begin = out->at, *to = begin;
    hmq_slice text = take_text(out, value);
    uint32_t bits = 0;
    int count = 0;
    while (text.len > 0 && text.data[text.len - 1] == '=') text.len--;
    for (size_t i = 0; i < text.len && !out->failed; i++) {
        int digit = base64_digit(text.data[i]);
        out->failed = digit < 0;
        bits = bits << 6 | (uint32_t)(digit & 0x3F);
        count += 6;
        if (count >= 8) *to++ = (uint8_t)(bits >> (count -= 8));
    }
    out->failed |= count == 6; /* a single digit makes no byte */
    out->at = to;
    return (hmq_slice){begin, (size_t)(to - begin)};
}

static bool is_topic(hmq_slice text) {
    return hmq_topic_check_name((const char *)text.data, text.len) == HMQ_TOPIC_OK;
}

static hmq_slice take_topic(sink *out, hmq_slice value) {
    hmq_slice topic = take_text(out, value);
    out->failed |= !is_topic(topic);
    return topic;
}

/* ---- properties -------------------------------------------------------------------------------------------- */

/* Writes a two-byte length, then the bytes that `read` decodes. */
static void put_counted(sink *out, hmq_slice value, hmq_slice (*read)(sink *out, hmq_slice value)) {
    uint8_t *length = out->at;
    put(out, 0);
    put(out, 0);
    if (out->failed) return;
    hmq_slice bytes = read(out, value);
    bool is_text = read == take_text;
    out->failed |= bytes.len > SHORT_MAX || (is_text && hmq_utf8_check(bytes.data, bytes.len) != HMQ_UTF8_OK);
    length[0] = (uint8_t)(bytes.len >> 8);
    length[1] = (uint8_t)bytes.len;
}

static void put_property(sink *out, uint8_t name, hmq_slice value, hmq_slice (*read)(sink *out, hmq_slice value)) {
    if (value.data == NULL) return;
    put(out, name);
    put_counted(out, value, read);
}

static void put_subscription_ids(sink *out, hmq_slice list) {
    if (list.data == NULL || equals(list, "{}")) return; /* Lua has no empty list */
    scanner s = {(const char *)list.data, (const char *)list.data + list.len};
    out->failed |= !take(&s, '[');
    if (take(&s, ']')) return;
    while (!out->failed) {
        skip_blank(&s);
        const char *from = s.at;
        while (s.at < s.end && *s.at >= '0' && *s.at <= '9') s.at++;
        int64_t number =
            take_number(out, (hmq_slice){(const uint8_t *)from, (size_t)(s.at - from)}, MAX_SUBSCRIPTION_ID);
        out->failed |= number == 0;
        put(out, SUBSCRIPTION);
        for (; number > 0x7F; number >>= 7) put(out, (uint8_t)(number | 0x80));
        put(out, (uint8_t)number);
        if (!take(&s, ',')) break;
    }
    out->failed |= !take(&s, ']');
}

/* {"k": name, "v": value} */
static void put_user_property(sink *out, scanner *s) {
    member m;
    hmq_slice name = {0}, value = {0};
    out->failed |= !take(s, '{');
    while (!out->failed) {
        if (!next_member(s, &m)) {
            out->failed = true;
            return;
        }
        if (equals(m.name, "k")) name = m.value;
        if (equals(m.name, "v")) value = m.value;
        if (!take(s, ',')) break;
    }
    out->failed |= !take(s, '}') || name.data == NULL || value.data == NULL;
    if (out->failed) return;
    put(out, USER);
    put_counted(out, name, take_text);
    if (!out->failed) put_counted(out, value, take_text);
}

/* {"props": [{"k", "v"}, ...]} */
static void put_user_properties(sink *out, hmq_slice object) {
    if (object.data == NULL) return;
    member m;
    scanner s = {(const char *)object.data, (const char *)object.data + object.len};
    if (!take(&s, '{') || !next_member(&s, &m) || !equals(m.name, "props")) {
        out->failed = true;
        return;
    }
    if (equals(m.value, "{}")) return; /* as above */
    s = (scanner){(const char *)m.value.data, (const char *)m.value.data + m.value.len};
    out->failed |= !take(&s, '[');
    if (take(&s, ']')) return;
    do put_user_property(out, &s);
    while (!out->failed && take(&s, ','));
    out->failed |= !take(&s, ']');
}

/* ---- the message ------------------------------------------------------------------------------------------- */

enum {
    TYPE,
    TOPIC,
    TIME,
    QOS,
    PAYLOAD,
    RETAINED,
    EXPIRY,
    FORMAT_INDICATOR,
    CONTENT,
    RESPONSE,
    CORRELATION_DATA,
    SUBSCRIPTIONS,
    USER_PROPERTIES,
    MEMBERS
};
static const char *const names[MEMBERS] = {"packetType",
                                           "topicName",
                                           "time",
                                           "qos",
                                           "payload",
                                           "retained",
                                           "msgExpiryInterval",
                                           "payloadFormatIndicator",
                                           "contentType",
                                           "responseTopic",
                                           "correlationData",
                                           "subscriptionIds",
                                           "userProperties"};

/* Finds the members; false if the text is not an object. */
static bool collect(const char *json, size_t len, hmq_slice found[MEMBERS]) {
    scanner s = {json, json + len};
    member m;
    if (!take(&s, '{')) return false;
    do {
        if (!next_member(&s, &m)) return false;
        for (int i = 0; i < MEMBERS; i++) {
            bool is_match = equals(m.name, names[i]) || (i == TOPIC && equals(m.name, "topic"));
            if (is_match && !equals(m.value, "null")) found[i] = m.value;
        }
    } while (take(&s, ','));
    if (!take(&s, '}')) return false;
    skip_blank(&s);
    return s.at == s.end;
}

static void put_properties(sink *out, const hmq_slice found[MEMBERS]) {
    put_subscription_ids(out, found[SUBSCRIPTIONS]); /* first, as in all records */
    if (found[FORMAT_INDICATOR].data != NULL) {
        put(out, FORMAT);
        put(out, (uint8_t)take_number(out, found[FORMAT_INDICATOR], 1));
    }
    put_property(out, CONTENT_TYPE, found[CONTENT], take_text);
    put_property(out, RESPONSE_TOPIC, found[RESPONSE], take_topic);
    put_property(out, CORRELATION, found[CORRELATION_DATA], take_base64);
    put_user_properties(out, found[USER_PROPERTIES]);
}

bool hmq_tbmq_read(const char *json, size_t len, uint8_t *out, size_t capacity, hmq_record *record) {
    hmq_slice found[MEMBERS] = {{0}};
    sink to = {out, out + capacity, false};
    *record = (hmq_record){.type = HMQ_RECORD_PUBLISH};
    if (!collect(json, len, found) || found[TYPE].data == NULL) return false;
    if (equals(found[TYPE], "\"PUBREL\"")) {
        record->type = HMQ_RECORD_PUBREL;
        record->qos = 2;
        return true;
    }
    record->retain = equals(found[RETAINED], "true");
    if (found[QOS].data != NULL) record->qos = (uint8_t)take_number(&to, found[QOS], 2);
    if (found[TIME].data != NULL) record->time_ms = take_number(&to, found[TIME], TIME_MAX);
    if (found[EXPIRY].data != NULL)
        record->expires_ms = record->time_ms + take_number(&to, found[EXPIRY], UINT32_MAX) * 1000;
    record->topic = take_text(&to, found[TOPIC]);
    if (found[PAYLOAD].data != NULL) record->payload = take_base64(&to, found[PAYLOAD]);
    const uint8_t *properties = to.at;
    put_properties(&to, found);
    record->properties = (hmq_slice){properties, (size_t)(to.at - properties)};
    return !to.failed && equals(found[TYPE], "\"PUBLISH\"") && record->expires_ms <= TIME_MAX &&
           is_topic(record->topic);
}
