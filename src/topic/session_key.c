/* session_key.c - names of keys and channels.  Pure functions that write to the caller's buffer.  A function that reports
 * "does not fit" may have written a part. */
#include "topic/session_key.h"

#include <string.h>

#include "base/decimal.h"

/* In the order of hmq_suffix. */
static const char *const suffixes[HMQ_SUFFIX_COUNT] = {"_messages", "_last_packet_id", "_subscriptions", "_session",
                                                       "_received", "_inbox",          "_producers",     "_replays",
                                                       "_cursors",  "_places"};
static const char retained_suffix[] = "_retained";
#define RETAINED_SUFFIX_LEN (sizeof retained_suffix - 1)
#define PACKET_ID_DIGITS 5 /* of 65535 */

const char *hmq_suffix_text(hmq_suffix suffix, size_t *len) {
    const char *text = suffixes[suffix];
    if (len) *len = strlen(text);
    return text;
}

/* ---- the braces, and the name between them ---- */

static const char *escape_of(char c) {
    if (c == '{') return "%7B";
    if (c == '}') return "%7D";
    return c == '%' ? "%25" : NULL;
}

size_t hmq_session_key_encode(const char *id, size_t id_len, char *out, size_t capacity) {
    if (id_len == 0 || capacity < 2) return 0; /* "{}" is not a hash tag: the server would hash the whole key */
    size_t at = 0;
    out[at++] = '{';
    for (size_t i = 0; i < id_len; i++) {
        const char *escape = escape_of(id[i]);
        size_t size = escape ? 3 : 1;
        if (size >= capacity - at) return 0; /* the closing brace needs its byte, too */
        memcpy(out + at, escape ? escape : id + i, size);
        at += size;
    }
    out[at++] = '}';
    return at;
}

/* The text within the braces of [prefix]{...}; data NULL if the key has another form. */
static hmq_slice inside_braces(const char *key, size_t len) {
    const hmq_slice none = {NULL, 0};
    if (len < 3 || key[len - 1] != '}') return none;
    const char *open = memchr(key, '{', len);
    if (!open) return none;
    const char *begin = open + 1;
    size_t inside = (size_t)(key + len - 1 - begin);
    if (inside == 0 || memchr(begin, '{', inside) || memchr(begin, '}', inside)) return none;
    return (hmq_slice){(const uint8_t *)begin, inside};
}

bool hmq_session_key_check(const char *key, size_t key_len) {
    return inside_braces(key, key_len).data != NULL;
}

/* The byte that the three bytes at `text` escape; 0 if they are not an escape. */
static char unescape(const char *text, size_t len) {
    if (len < 3) return 0;
    if (memcmp(text, "%7B", 3) == 0) return '{';
    if (memcmp(text, "%7D", 3) == 0) return '}';
    return memcmp(text, "%25", 3) == 0 ? '%' : 0;
}

int64_t hmq_session_key_decode(const char *key, size_t key_len, char *out, size_t capacity) {
    hmq_slice inside = inside_braces(key, key_len);
    if (!inside.data) return -1;
    const char *text = (const char *)inside.data;
    size_t size = 0;
    for (size_t i = 0; i < inside.len; size++) {
        char c = text[i];
        if (c == '%' && (c = unescape(text + i, inside.len - i)) == 0) return -1;
        if (size == capacity) return -1;
        out[size] = c;
        i += text[i] == '%' ? 3 : 1;
    }
    return (int64_t)size;
}

/* ---- names after a session key ---- */

/* Length of the name before the suffix; 0 if that is empty, or the name has another ending. */
static size_t stem(const char *name, size_t len, const char *suffix, size_t suffix_len) {
    if (len <= suffix_len || memcmp(name + len - suffix_len, suffix, suffix_len) != 0) return 0;
    return len - suffix_len;
}

size_t hmq_session_key_of(const char *name, size_t len, hmq_suffix suffix) {
    size_t suffix_len;
    const char *text = hmq_suffix_text(suffix, &suffix_len);
    size_t key_len = stem(name, len, text, suffix_len);
    return key_len && hmq_session_key_check(name, key_len) ? key_len : 0;
}

size_t hmq_message_key(const char *key, size_t key_len, uint16_t packet_id, char *out, size_t capacity) {
    size_t suffix_len;
    const char *suffix = hmq_suffix_text(HMQ_SUFFIX_MESSAGES, &suffix_len);
    char digits[HMQ_DECIMAL_MAX];
    size_t count = hmq_decimal_put(packet_id, digits);
    if (key_len > capacity || capacity - key_len < suffix_len + 1 + count) return 0;
    memcpy(out, key, key_len);
    memcpy(out + key_len, suffix, suffix_len);
    out[key_len + suffix_len] = '_';
    memcpy(out + key_len + suffix_len + 1, digits, count);
    return key_len + suffix_len + 1 + count;
}

/* 1..65535 without leading zeros, else 0. */
static uint16_t read_packet_id(const char *digits, size_t len) {
    if (len == 0 || len > PACKET_ID_DIGITS || digits[0] == '0') return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < len; i++) {
        if (digits[i] < '0' || digits[i] > '9') return 0;
        value = value * 10 + (uint32_t)(digits[i] - '0');
    }
    return value <= UINT16_MAX ? (uint16_t)value : 0;
}

uint16_t hmq_message_key_packet_id(const char *key, size_t key_len, const char *name, size_t len) {
    size_t suffix_len;
    const char *suffix = hmq_suffix_text(HMQ_SUFFIX_MESSAGES, &suffix_len);
    if (len <= key_len || len - key_len <= suffix_len + 1) return 0;
    const char *rest = name + key_len;
    if (memcmp(name, key, key_len) != 0 || memcmp(rest, suffix, suffix_len) != 0 || rest[suffix_len] != '_') return 0;
    return read_packet_id(rest + suffix_len + 1, len - key_len - suffix_len - 1);
}

/* ---- retained messages ---- */

size_t hmq_retained_key(const char *topic, size_t topic_len, char *out, size_t capacity) {
    size_t size = hmq_session_key_encode(topic, topic_len, out, capacity);
    if (size == 0 || capacity - size < RETAINED_SUFFIX_LEN) return 0;
    memcpy(out + size, retained_suffix, RETAINED_SUFFIX_LEN);
    return size + RETAINED_SUFFIX_LEN;
}

int64_t hmq_retained_topic(const char *key, size_t key_len, char *out, size_t capacity) {
    size_t tag_len = stem(key, key_len, retained_suffix, RETAINED_SUFFIX_LEN);
    return tag_len ? hmq_session_key_decode(key, tag_len, out, capacity) : -1;
}
