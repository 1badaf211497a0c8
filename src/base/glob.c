/* glob.c - matches one text against one glob pattern, without recursion.
 *
 * Only the last '*' is retried: it can match everything that an earlier one could match in addition.  So there are at most
 * len(text) restarts of at most len(pattern) steps each.
 *
 * Odd patterns have the server's meaning: "[abc" (never closed) is the class of the characters in it, "[]" matches
 * nothing, "[z-a]" is "[a-z]", "[a-" is 'a' or '-', a lone backslash at the end is itself. */
#include "base/glob.h"

#include <string.h>

static bool in_range(uint8_t c, uint8_t from, uint8_t to) {
    return from <= to ? from <= c && c <= to : to <= c && c <= from;
}

/* Is c in the class whose '[' is at pattern[at - 1]?  *end: the place after the class. */
static bool in_class(const uint8_t *pattern, size_t len, size_t at, uint8_t c, size_t *end) {
    bool negated = at < len && pattern[at] == '^', found = false;
    if (negated) at++;
    while (at < len && pattern[at] != ']') {
        if (pattern[at] == '\\' && at + 1 < len) {
            found = found || pattern[at + 1] == c;
            at += 2;
        } else if (at + 2 < len && pattern[at + 1] == '-') {
            found = found || in_range(c, pattern[at], pattern[at + 2]);
            at += 3;
        } else {
            found = found || pattern[at] == c;
            at++;
        }
    }
    *end = at < len ? at + 1 : len;
    return found != negated;
}

/* Does the pattern item at `at` (no '*') match the byte c?  *end: the place after the item. */
static bool item_matches(const uint8_t *pattern, size_t len, size_t at, uint8_t c, size_t *end) {
    if (pattern[at] == '[') return in_class(pattern, len, at + 1, c, end);
    if (pattern[at] == '?') {
        *end = at + 1;
        return true;
    }
    if (pattern[at] == '\\' && at + 1 < len) at++;
    *end = at + 1;
    return pattern[at] == c;
}

/* The place in the text where a match may continue after a star: the next byte equal to the pattern's next item, if that is
 * a plain byte. */
static const uint8_t *next_place(const uint8_t *pattern, size_t len, size_t at, const uint8_t *text,
                                 const uint8_t *end) {
    bool is_plain = at < len && pattern[at] != '*' && pattern[at] != '?' && pattern[at] != '[' && pattern[at] != '\\';
    return is_plain ? memchr(text, pattern[at], (size_t)(end - text)) : text;
}

bool hmq_glob_matches(const char *pattern_text, size_t pattern_len, const char *text_text, size_t text_len) {
    const uint8_t *pattern = (const uint8_t *)pattern_text, *text = (const uint8_t *)text_text;
    size_t p = 0, t = 0, after_star = 0, star_took_to = 0;
    bool star = false;
    while (t < text_len) {
        size_t next;
        if (p < pattern_len && pattern[p] == '*') {
            star = true;
            after_star = ++p;
            star_took_to = t;
        } else if (p < pattern_len && item_matches(pattern, pattern_len, p, text[t], &next)) {
            p = next;
            t++;
        } else if (star) {
            p = after_star;
            const uint8_t *place = next_place(pattern, pattern_len, p, text + star_took_to + 1, text + text_len);
            if (place == NULL) return false;
            t = star_took_to = (size_t)(place - text);
        } else {
            return false;
        }
    }
    while (p < pattern_len && pattern[p] == '*') p++;
    return p == pattern_len;
}
