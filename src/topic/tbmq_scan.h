/* tbmq_scan.h - iterates over the members of a JSON object; private to tbmq*.c.
 *
 * Every well-formed object is accepted, and some ill-formed ones (literals are not checked).  Nothing is read outside the
 * text, and the time is linear: nesting is counted, without recursion. */
#ifndef HMQ_TBMQ_SCAN_H
#define HMQ_TBMQ_SCAN_H

#include <string.h>

#include "base/base.h"

typedef struct scanner {
    const char *at;
    const char *end;
} scanner;

typedef struct member {
    hmq_slice name;  /* without quotes */
    hmq_slice value; /* unchanged */
} member;

static inline void skip_blank(scanner *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\t' || *s->at == '\n' || *s->at == '\r')) s->at++;
}

static inline bool take(scanner *s, char expected) {
    skip_blank(s);
    if (s->at == s->end || *s->at != expected) return false;
    s->at++;
    return true;
}

/* Moves past the closing quote; false if there is none.  Linear: the search for the quote is repeated only when the search
 * for backslashes has passed it. */
static inline bool skip_string(scanner *s) {
    if (!take(s, '"')) return false;
    const char *quote = NULL;
    while (s->at < s->end) {
        if (quote == NULL || quote < s->at) quote = memchr(s->at, '"', (size_t)(s->end - s->at));
        if (quote == NULL) return false;
        const char *escape = memchr(s->at, '\\', (size_t)(quote - s->at));
        if (escape == NULL) {
            s->at = quote + 1;
            return true;
        }
        s->at = escape + 2; /* at most past the quote */
    }
    return false;
}

/* Moves past a value, to the comma or brace that follows it at its own depth. */
static inline bool skip_value(scanner *s) {
    size_t depth = 0;
    skip_blank(s);
    const char *start = s->at;
    while (s->at < s->end) {
        char c = *s->at;
        if (c == '"') {
            if (!skip_string(s)) return false;
            continue;
        }
        if (depth == 0 && (c == ',' || c == '}')) return s->at > start;
        if (c == '{' || c == '[') depth++;
        if (c == '}' || c == ']') {
            if (depth == 0) return false;
            depth--;
        }
        s->at++;
    }
    return false;
}

static inline hmq_slice trimmed(const char *from, const char *to) {
    while (to > from && (to[-1] == ' ' || to[-1] == '\t' || to[-1] == '\n' || to[-1] == '\r')) to--;
    return (hmq_slice){(const uint8_t *)from, (size_t)(to - from)};
}

static inline bool next_member(scanner *s, member *m) {
    skip_blank(s);
    const char *name = s->at;
    if (!skip_string(s)) return false;
    m->name = (hmq_slice){(const uint8_t *)name + 1, (size_t)(s->at - name) - 2};
    if (!take(s, ':')) return false;
    skip_blank(s);
    const char *value = s->at;
    if (!skip_value(s)) return false;
    m->value = trimmed(value, s->at);
    return true;
}

static inline bool equals(hmq_slice slice, const char *text) {
    return slice.len == strlen(text) && memcmp(slice.data, text, slice.len) == 0;
}

#endif
