/* subscription.c - the options of one subscription. */
#include "subscription.h"

#include <string.h>

#include "errors.h"

#define OPTIONS_MAX 47 /* retain handling at most 2 */
#define PROPERTY 0x0B
#define MOST_DIGITS 9

/* Decimal digits without a leading zero (but 0 itself). */
static bool read_number(const uint8_t *digits, size_t len, long long max, long long *number) {
    if (len == 0 || len > MOST_DIGITS || (len > 1 && digits[0] == '0')) return false;
    *number = 0;
    for (size_t i = 0; i < len; i++) {
        if (digits[i] < '0' || digits[i] > '9') return false;
        *number = *number * 10 + (digits[i] - '0');
    }
    return *number <= max;
}

bool subscription_read(const server_string *text, subscription *s) {
    hmq_slice all = slice_of(text);
    const uint8_t *colon = all.len == 0 ? NULL : memchr(all.data, ':', all.len);
    size_t len = colon == NULL ? all.len : (size_t)(colon - all.data);
    long long options, identifier = 0;
    if (!read_number(all.data, len, OPTIONS_MAX, &options) || (options & SUBSCRIPTION_QOS) == 3) return false;
    if (colon != NULL &&
        (!read_number(colon + 1, all.len - len - 1, SUBSCRIPTION_MAX_IDENTIFIER, &identifier) || identifier == 0))
        return false;
    *s = (subscription){(uint8_t)options, (uint32_t)identifier};
    return true;
}

bool subscription_parse(server_ctx *ctx, const server_string *text, subscription *s) {
    if (subscription_read(text, s)) return true;
    reply_error(ctx, ERROR_SYNTAX,
                "options is %s: a subscription options byte (QoS 0 to 2, 4 no local, 8 retain as published, 16 or 32 "
                "retain handling) expected, or one with an identifier, <byte>:<1 to 268435455>",
                shown(text));
    return false;
}

uint32_t subscription_pack(subscription s) {
    const uint32_t mask = (1u << SUBSCRIPTION_IDENTIFIER_SHIFT) - 1;
    return s.identifier << SUBSCRIPTION_IDENTIFIER_SHIFT | (s.options & mask);
}

size_t subscription_write_property(uint32_t identifier, uint8_t *out) {
    size_t n = 0;
    out[n++] = PROPERTY;
    do {
        uint8_t low = identifier & 0x7F;
        identifier >>= 7;
        out[n++] = (uint8_t)(low | (identifier > 0 ? 0x80 : 0));
    } while (identifier > 0);
    return n;
}

size_t subscription_property_bytes(hmq_slice properties) {
    size_t at = 0;
    while (at < properties.len && properties.data[at] == PROPERTY) {
        size_t end = at + 1, most = at + SUBSCRIPTION_MOST_IDENTIFIER_BYTES;
        while (end < properties.len && end < most && (properties.data[end] & 0x80)) end++;
        if (end >= properties.len || end >= most) break; /* none of ours */
        at = end + 1;
    }
    return at;
}
