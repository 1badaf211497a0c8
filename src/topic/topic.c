/* topic.c - the rules for topic names and filters.  Pure; every loop is bounded by the length.
 *
 * The first of several faults is reported, in this order: empty, too long, not UTF-8, NUL, then, for a $share
 * filter, a bad share, then wildcards, then too deep. */
#include "topic/topic.h"

#include <string.h>

#include "base/utf8.h"

static const char share_prefix[] = "$share/";
#define SHARE_PREFIX_LEN (sizeof share_prefix - 1)

/* The checks for both names and filters. */
static hmq_topic_error check_text(const char *text, size_t len) {
    if (len == 0) return HMQ_TOPIC_EMPTY;
    if (len > HMQ_TOPIC_MAX_BYTES) return HMQ_TOPIC_TOO_LONG;
    hmq_utf8_error error = hmq_utf8_check((const uint8_t *)text, len);
    if (error == HMQ_UTF8_ILL_FORMED) return HMQ_TOPIC_NOT_UTF8;
    return error == HMQ_UTF8_NUL ? HMQ_TOPIC_NUL : HMQ_TOPIC_OK;
}

static bool too_deep(const char *text, size_t len) {
    if (len < HMQ_TOPIC_MAX_LEVELS) return false; /* N levels need N - 1 slashes */
    size_t levels = 1;
    for (size_t i = 0; i < len; i++) levels += text[i] == '/';
    return levels > HMQ_TOPIC_MAX_LEVELS;
}

hmq_topic_error hmq_topic_check_name(const char *name, size_t len) {
    hmq_topic_error error = check_text(name, len);
    if (error) return error;
    if (memchr(name, '+', len) || memchr(name, '#', len)) return HMQ_TOPIC_WILDCARD;
    return too_deep(name, len) ? HMQ_TOPIC_TOO_DEEP : HMQ_TOPIC_OK;
}

static bool starts_level(const char *filter, size_t at) {
    return at == 0 || filter[at - 1] == '/';
}

static hmq_topic_error check_wildcards(const char *filter, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (filter[i] == '+' && !(starts_level(filter, i) && (i + 1 == len || filter[i + 1] == '/')))
            return HMQ_TOPIC_BAD_PLUS;
        if (filter[i] == '#' && !(starts_level(filter, i) && i + 1 == len)) return HMQ_TOPIC_BAD_HASH;
    }
    return too_deep(filter, len) ? HMQ_TOPIC_TOO_DEEP : HMQ_TOPIC_OK;
}

static bool is_share(const char *filter, size_t len) {
    return len >= SHARE_PREFIX_LEN && memcmp(filter, share_prefix, SHARE_PREFIX_LEN) == 0;
}

/* Are a group and a filter after "$share/"?  A share of a share is refused: nothing could subscribe to the inner one. */
static bool split_share(const char *filter, size_t len, hmq_slice *group, hmq_slice *inner) {
    const char *begin = filter + SHARE_PREFIX_LEN, *end = filter + len;
    const char *slash = memchr(begin, '/', (size_t)(end - begin));
    if (!slash || slash == begin || slash + 1 == end) return false;
    *group = (hmq_slice){(const uint8_t *)begin, (size_t)(slash - begin)};
    *inner = (hmq_slice){(const uint8_t *)slash + 1, (size_t)(end - slash - 1)};
    return !memchr(begin, '+', group->len) && !memchr(begin, '#', group->len) && !is_share(slash + 1, inner->len);
}

hmq_topic_error hmq_topic_check_filter(const char *filter, size_t len) {
    hmq_topic_error error = check_text(filter, len);
    if (error) return error;
    if (!is_share(filter, len)) return check_wildcards(filter, len);
    hmq_slice group, inner;
    if (!split_share(filter, len, &group, &inner)) return HMQ_TOPIC_BAD_SHARE;
    return check_wildcards((const char *)inner.data, inner.len);
}

bool hmq_topic_split_share(const char *filter, size_t len, hmq_slice *group, hmq_slice *inner) {
    return is_share(filter, len) && split_share(filter, len, group, inner);
}

const char *hmq_topic_error_text(hmq_topic_error error) {
    switch (error) {
    case HMQ_TOPIC_OK: return "the topic is valid";
    case HMQ_TOPIC_EMPTY: return "the topic is empty; expected at least one character";
    case HMQ_TOPIC_TOO_LONG: return "the topic is too long; expected at most 65535 bytes";
    case HMQ_TOPIC_TOO_DEEP: return "the topic has too many levels; expected at most 128";
    case HMQ_TOPIC_NUL: return "the topic contains U+0000; expected no such character";
    case HMQ_TOPIC_NOT_UTF8: return "the topic is invalid UTF-8; expected valid UTF-8";
    case HMQ_TOPIC_WILDCARD: return "the topic name contains a wildcard; expected no + and no #";
    case HMQ_TOPIC_BAD_PLUS: return "a + shares its level with other characters; expected + as a whole level";
    case HMQ_TOPIC_BAD_HASH: return "a # is not the whole last level; expected # only there";
    case HMQ_TOPIC_BAD_SHARE:
        return "the shared subscription is malformed; expected $share/<group>/<filter> and no wildcard in the group";
    }
    return "unknown topic error";
}

/* End of the level that begins at `at`. */
static size_t level_end(const char *text, size_t len, size_t at) {
    const char *slash = memchr(text + at, '/', len - at);
    return slash ? (size_t)(slash - text) : len;
}

/* Compares level by level.  Filter and name must end together (f_end == filter_len, likewise for the name), except for a
 * '#' after the last level of the name: "a/#" matches "a". */
bool hmq_topic_matches(const char *filter, size_t filter_len, const char *name, size_t name_len) {
    if (filter_len == 0 || name_len == 0) return false;
    if (name[0] == '$' && (filter[0] == '+' || filter[0] == '#')) return false;
    size_t f = 0, n = 0;
    for (;;) {
        if (f + 1 == filter_len && filter[f] == '#') return true; /* an empty last level has no filter[f] */
        size_t f_end = level_end(filter, filter_len, f), n_end = level_end(name, name_len, n);
        bool plus = f_end - f == 1 && filter[f] == '+';
        if (!plus && (f_end - f != n_end - n || memcmp(filter + f, name + n, n_end - n) != 0)) return false;
        if (n_end == name_len) return f_end == filter_len || (f_end + 2 == filter_len && filter[f_end + 1] == '#');
        if (f_end == filter_len) return false;
        f = f_end + 1;
        n = n_end + 1;
    }
}

bool hmq_topic_covers(const char *outer, size_t outer_len, const char *inner, size_t inner_len) {
    if (outer_len == 0 || inner_len == 0) return false;
    if (inner[0] == '$' && (outer[0] == '+' || outer[0] == '#')) return false;
    size_t o = 0, i = 0;
    for (;;) {
        if (o + 1 == outer_len && outer[o] == '#') return true;
        size_t o_end = level_end(outer, outer_len, o), i_end = level_end(inner, inner_len, i);
        bool plus = o_end - o == 1 && outer[o] == '+', rest = i_end - i == 1 && inner[i] == '#';
        /* Without a wildcard, `outer` covers only equal bytes: no wildcard of `inner`. */
        if (plus ? rest && i > 0 : o_end - o != i_end - i || memcmp(outer + o, inner + i, i_end - i) != 0) return false;
        if (rest) return o_end + 2 == outer_len && outer[o_end + 1] == '#'; /* "+/#" is "#" */
        if (i_end == inner_len) return o_end == outer_len || (o_end + 2 == outer_len && outer[o_end + 1] == '#');
        if (o_end == outer_len) return false;
        o = o_end + 1;
        i = i_end + 1;
    }
}
