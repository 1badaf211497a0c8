/* channel_key.c - builds and reads the names of the keys that keep messages of channels. */
#include "topic/channel_key.h"

#include <string.h>

#include "base/decimal.h"
#include "topic/slot.h"

#define PREFIX "holdmq:"
#define PREFIX_LEN (sizeof PREFIX - 1)
#define TAG_MAX (HMQ_DECIMAL_MAX + 3) /* %{<number>} */

static const char *const kinds[HMQ_CHANNEL_KEY_KINDS] = {"held:", "last:", "heard:", "aside:"};

typedef enum form { FORM_TAGGED = ':', FORM_PLAIN = '{', FORM_ENCODED = '%' } form;

/* Does the name have a hash tag, as the cluster understands it: '{', at least one byte, '}'? */
static bool has_hash_tag(const char *name, size_t len) {
    const char *open = len == 0 ? NULL : memchr(name, '{', len);
    if (open == NULL) return false;
    const char *close = memchr(open, '}', len - (size_t)(open - name));
    return close != NULL && close > open + 1;
}

static form form_of(const char *channel, size_t len) {
    if (has_hash_tag(channel, len)) return FORM_TAGGED;
    return len == 0 || memchr(channel, '}', len) != NULL ? FORM_ENCODED : FORM_PLAIN;
}

/* ---- the third form ---------------------------------------------------------------------------------------- */

static const char *escape_of(char c) {
    if (c == '{') return "7B";
    if (c == '}') return "7D";
    return c == '%' ? "25" : NULL;
}

/* %{<number>}<encoded>; the length. */
static size_t encode(const char *channel, size_t len, char *out) {
    size_t at = 0;
    out[at++] = FORM_ENCODED;
    out[at++] = '{';
    at += hmq_decimal_put(hmq_slot_tag(hmq_slot_of(channel, len)), out + at);
    out[at++] = '}';
    for (size_t i = 0; i < len; i++) {
        const char *escape = escape_of(channel[i]);
        out[at++] = escape == NULL ? channel[i] : '%';
        if (escape != NULL) memcpy(out + at, escape, 2), at += 2;
    }
    return at;
}

/* The character that the three bytes at `text` escape; 0 if they are not an escape. */
static char unescape(const char *text, size_t len) {
    static const char escaped[] = "{}%";
    for (const char *c = escaped; len >= 3 && *c != 0; c++) {
        if (memcmp(text + 1, escape_of(*c), 2) == 0) return *c;
    }
    return 0;
}

/* The inverse; -1 if the name has another form or the channel does not fit. */
static int64_t decode(const char *text, size_t len, char *out, size_t capacity) {
    const char *close = len < 3 || text[1] != '{' ? NULL : memchr(text, '}', len);
    if (close == NULL) return -1;
    size_t at = (size_t)(close - text) + 1, size = 0;
    for (; at < len && size < capacity; size++) {
        bool is_escape = text[at] == '%';
        out[size] = is_escape ? unescape(text + at, len - at) : text[at];
        if ((is_escape && out[size] == 0) || (!is_escape && escape_of(text[at]) != NULL)) return -1;
        at += is_escape ? 3 : 1;
    }
    char digits[HMQ_DECIMAL_MAX];
    size_t count = hmq_decimal_put(hmq_slot_tag(hmq_slot_of(out, size)), digits);
    bool is_tag = (size_t)(close - text) == count + 2 && memcmp(text + 2, digits, count) == 0;
    return at == len && is_tag ? (int64_t)size : -1;
}

/* ---- names ------------------------------------------------------------------------------------------------- */

size_t hmq_channel_key_encode(const char *channel, size_t channel_len, hmq_channel_key_kind kind, char *out,
                              size_t capacity) {
    size_t kind_len = strlen(kinds[kind]), len = PREFIX_LEN + kind_len;
    form f = form_of(channel, channel_len);
    if (capacity < len + (f == FORM_ENCODED ? 3 * channel_len + TAG_MAX : channel_len + 2)) return 0;
    memcpy(out, PREFIX, PREFIX_LEN);
    memcpy(out + PREFIX_LEN, kinds[kind], kind_len);
    if (f == FORM_ENCODED) return len + encode(channel, channel_len, out + len);
    out[len++] = (char)f;
    memcpy(out + len, channel, channel_len);
    len += channel_len;
    if (f == FORM_PLAIN) out[len++] = '}';
    return len;
}

/* Removes the text of the kind; false if the name has none. */
static bool take_kind(const char **name, size_t *len, hmq_channel_key_kind *kind) {
    if (*len <= PREFIX_LEN || memcmp(*name, PREFIX, PREFIX_LEN) != 0) return false;
    for (int k = 0; k < HMQ_CHANNEL_KEY_KINDS; k++) {
        size_t skipped = PREFIX_LEN + strlen(kinds[k]);
        if (*len <= skipped || memcmp(*name + PREFIX_LEN, kinds[k], skipped - PREFIX_LEN) != 0) continue;
        *name += skipped;
        *len -= skipped;
        *kind = (hmq_channel_key_kind)k;
        return true;
    }
    return false;
}

int64_t hmq_channel_key_decode(const char *name, size_t len, hmq_channel_key_kind *kind, char *out, size_t capacity) {
    if (!take_kind(&name, &len, kind)) return -1;
    form f = (form)name[0];
    size_t size = len - 1;
    if (f == FORM_ENCODED) {
        int64_t decoded = decode(name, len, out, capacity);
        return decoded >= 0 && form_of(out, (size_t)decoded) == f ? decoded : -1;
    }
    if (f == FORM_PLAIN) { /* its last byte is not the name's */
        if (size == 0 || name[size] != '}') return -1;
        size--;
    }
    if ((f != FORM_PLAIN && f != FORM_TAGGED) || size > capacity) return -1;
    memcpy(out, name + 1, size);
    return form_of(out, size) == f ? (int64_t)size : -1;
}
