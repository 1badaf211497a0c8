/* subscription.c - the options of one subscription. */
#include "index/subscription.h"

#include <stdio.h>
#include <string.h>

#include "topic/topic.h"
#include "server/errors.h"
#include "index/shares.h"

#define OPTIONS_MAX 47 /* retain handling at most 2 */
#define PROPERTY 0x0B
#define MOST_DIGITS 9
#define MOST_MS_DIGITS 15

/* Decimal digits without a leading zero (except 0 itself). */
static bool read_number(const uint8_t *digits, size_t len, long long max, long long *number) {
    if (len == 0 || len > MOST_DIGITS || (len > 1 && digits[0] == '0')) return false;
    *number = 0;
    for (size_t i = 0; i < len; i++) {
        if (digits[i] < '0' || digits[i] > '9') return false;
        *number = *number * 10 + (digits[i] - '0');
    }
    return *number <= max;
}

static bool read_options(hmq_slice all, subscription *s) {
    const uint8_t *colon = all.len == 0 ? NULL : memchr(all.data, ':', all.len);
    size_t len = colon == NULL ? all.len : (size_t)(colon - all.data);
    long long options, identifier = 0;
    if (!read_number(all.data, len, OPTIONS_MAX, &options) || (options & SUBSCRIPTION_QOS) == 3) return false;
    if (colon != NULL &&
        (!read_number(colon + 1, all.len - len - 1, SUBSCRIPTION_MAX_IDENTIFIER, &identifier) || identifier == 0))
        return false;
    *s = (subscription){.options = (uint8_t)options, .identifier = (uint32_t)identifier, .kind = SUBSCRIPTION_LIVE};
    return true;
}

/* The text before the mark; *rest is the text after it, if there is one (else NULL). */
static hmq_slice split(hmq_slice text, char mark, hmq_slice *rest) {
    const uint8_t *at = text.len == 0 ? NULL : memchr(text.data, mark, text.len);
    *rest = (hmq_slice){NULL, 0};
    if (at == NULL) return text;
    size_t len = (size_t)(at - text.data);
    *rest = (hmq_slice){at + 1, text.len - len - 1};
    return (hmq_slice){text.data, len};
}

/* text&block: true, and *valid says whether it is a right one. */
static bool read_note(hmq_slice text, subscription *s, bool *valid) {
    hmq_slice digits;
    long long block;
    hmq_slice options = split(text, '&', &digits);
    if (digits.data == NULL) return false;
    *valid = read_options(options, s) && read_number(digits.data, digits.len, SUBSCRIPTION_MOST_BLOCK, &block);
    if (!*valid) return true;
    s->kind = SUBSCRIPTION_NOTE;
    s->block = (uint8_t)block;
    return true;
}

bool subscription_read(const server_string *value, subscription *s) {
    hmq_slice mark;
    bool valid;
    if (read_note(slice_of(value), s, &valid)) return valid;
    if (!read_options(split(slice_of(value), '@', &mark), s)) return false;
    if (mark.data == NULL) return true;
    s->kind = mark.len == 0 ? SUBSCRIPTION_REPLAYS : SUBSCRIPTION_APPLICATION;
    return mark.len == 0 || (mark.len == 1 && mark.data[0] == '!');
}

server_string *subscription_text(subscription s) {
    static const char *const marks[] = {"", "@", "@!", "&"};
    char block[4] = "";
    if (s.kind == SUBSCRIPTION_NOTE) snprintf(block, sizeof block, "%u", s.block);
    if (s.identifier == 0) return sv.CreateStringPrintf(NULL, "%u%s%s", s.options, marks[s.kind], block);
    return sv.CreateStringPrintf(NULL, "%u:%u%s%s", s.options, s.identifier, marks[s.kind], block);
}

/* earliest, now, or milliseconds; empty: it continues. */
static bool read_start(hmq_slice start, subscription_request *r) {
    long long ms = 0;
    r->resumes = start.len == 0 && r->wanted.kind == SUBSCRIPTION_APPLICATION;
    r->now = slice_is(start, "now");
    if (r->resumes || r->now || slice_is(start, "earliest")) return true;
    if (start.len == 0 || start.len > MOST_MS_DIGITS) return false;
    for (size_t i = 0; i < start.len; i++) {
        if (start.data[i] < '0' || start.data[i] > '9') return false;
        ms = ms * 10 + (start.data[i] - '0');
    }
    r->from_ms = (uint64_t)ms;
    return true;
}

static bool read_request(hmq_slice text, subscription_request *r) {
    hmq_slice start;
    bool valid;
    *r = (subscription_request){0};
    if (read_note(text, &r->wanted, &valid)) return valid;
    if (!read_options(split(text, '@', &start), &r->wanted)) return false;
    r->replay = start.data != NULL;
    if (!r->replay) return true;
    r->wanted.kind = SUBSCRIPTION_REPLAYS;
    if (start.len > 0 && start.data[start.len - 1] == '!') {
        r->wanted.kind = SUBSCRIPTION_APPLICATION;
        start.len--;
    }
    return read_start(start, r);
}

bool subscription_parse(server_ctx *ctx, const server_string *text, subscription_request *request) {
    if (read_request(slice_of(text), request)) return true;
    reply_error(ctx, ERROR_OPTIONS_INVALID, shown(text));
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
        if (end >= properties.len || end >= most) break; /* not an option of HoldMQ's */
        at = end + 1;
    }
    return at;
}

bool subscription_check_filter(server_ctx *ctx, const server_string *filter, bool may_share) {
    hmq_slice text = slice_of(filter), inner;
    hmq_topic_error error = hmq_topic_check_filter((const char *)text.data, text.len);
    if (error != HMQ_TOPIC_OK) {
        reply_invalid_topic(ctx, "the topic filter", filter, error);
        return false;
    }
    if (may_share || !share_is(text, &inner)) return true;
    reply_error(ctx, ERROR_FILTER_SHARED, shown(filter));
    return false;
}
