/* retained_topics.c - the topics that have a retained message, in an order that a filter can follow. */
#include "index/retained_topics.h"

#include <string.h>

#define SEPARATOR 0x00
#define AFTER_SEPARATOR 0x01 /* after a prefix: skips everything below it */
#define AFTER_DOLLAR ('$' + 1)
#define BYTES_OF_A_VISIT 256 /* of a topic, which are copied and compared */

/* ---- encoding ---------------------------------------------------------------------------------------------- */

void retained_position_set(retained_position *position, hmq_slice topic) {
    for (size_t i = 0; i < topic.len; i++) position->bytes[i] = topic.data[i] == '/' ? SEPARATOR : topic.data[i];
    position->len = topic.len;
}

server_string *retained_position_topic(const retained_position *position) {
    char *text = sv.Alloc(position->len + 1);
    for (size_t i = 0; i < position->len; i++)
        text[i] = position->bytes[i] == SEPARATOR ? '/' : (char)position->bytes[i];
    server_string *topic = sv.CreateString(NULL, text, position->len);
    sv.Free(text);
    return topic;
}

bool retained_position_is_before(const retained_position *position, hmq_slice topic) {
    size_t least = position->len < topic.len ? position->len : topic.len;
    for (size_t i = 0; i < least; i++) {
        uint8_t other = topic.data[i] == '/' ? SEPARATOR : topic.data[i];
        if (position->bytes[i] != other) return position->bytes[i] < other;
    }
    return position->len < topic.len;
}

/* One encoded topic at a time: the server runs modules in one thread. */
static retained_position scratch;

void retained_topics_set(server_dict *topics, hmq_slice topic, server_string *key) {
    retained_position_set(&scratch, topic);
    sv.DictReplaceC(topics, scratch.bytes, scratch.len, key);
}

void retained_topics_remove(server_dict *topics, hmq_slice topic) {
    retained_position_set(&scratch, topic);
    sv.DictDelC(topics, scratch.bytes, scratch.len, NULL);
}

server_string *retained_topics_find(server_dict *topics, hmq_slice topic) {
    retained_position_set(&scratch, topic);
    return sv.DictGetC(topics, scratch.bytes, scratch.len, NULL);
}

/* ---- following a filter ------------------------------------------------------------------------------------ */

typedef enum next_step { MATCHES, NEXT, SEEK, OVER } next_step;

/* Where to look next: at the first topic that is not before these bytes. */
static struct {
    uint8_t bytes[2 * HMQ_TOPIC_MAX_BYTES + 2];
    size_t len;
} target;

static next_step seek(hmq_slice prefix, uint8_t byte, hmq_slice rest) {
    memcpy(target.bytes, prefix.data, prefix.len);
    target.len = prefix.len;
    target.bytes[target.len++] = byte;
    if (rest.len > 0) memcpy(target.bytes + target.len, rest.data, rest.len);
    target.len += rest.len;
    return SEEK;
}

/* Past everything below the prefix, which ends before a separator. */
static next_step seek_past(const uint8_t *topic, size_t prefix_len) {
    return seek((hmq_slice){topic, prefix_len}, AFTER_SEPARATOR, (hmq_slice){NULL, 0});
}

static hmq_slice level_at(hmq_slice text, size_t at, uint8_t separator) {
    const uint8_t *end = at < text.len ? memchr(text.data + at, separator, text.len - at) : NULL;
    return (hmq_slice){text.data + at, (end == NULL ? text.len : (size_t)(end - text.data)) - at};
}

static bool is_level(hmq_slice level, char wildcard) {
    return level.len == 1 && level.data[0] == (uint8_t)wildcard;
}

/* The topic ends with a level that matches; the filter continues at `at`, after its separator. */
static next_step after_topic(hmq_slice topic, hmq_slice filter, size_t at) {
    hmq_slice level = level_at(filter, at, '/');
    if (is_level(level, '#')) return MATCHES;
    return is_level(level, '+') ? NEXT : seek(topic, SEPARATOR, level);
}

/* The topic's level is not the filter's, which is not a wildcard. */
static next_step after_other_level(hmq_slice topic, size_t at, int order, hmq_slice level) {
    if (order < 0) {
        memcpy(target.bytes, topic.data, at);
        if (level.len > 0) memcpy(target.bytes + at, level.data, level.len);
        target.len = at + level.len;
        return SEEK;
    }
    return at == 0 ? OVER : seek_past(topic.data, at - 1);
}

static next_step compare_topic(hmq_slice topic, hmq_slice filter) {
    bool is_wild = filter.data[0] == '+' || filter.data[0] == '#';
    if (is_wild && topic.data[0] == '$') /* [MQTT-4.7.2-1] */
        return seek((hmq_slice){topic.data, 0}, AFTER_DOLLAR, (hmq_slice){NULL, 0});
    for (size_t at = 0, in_filter = 0;;) {
        hmq_slice wanted = level_at(filter, in_filter, '/'), level = level_at(topic, at, SEPARATOR);
        if (is_level(wanted, '#')) return MATCHES;
        int order = is_level(wanted, '+') ? 0 : hmq_slice_order(level, wanted);
        if (order != 0) return after_other_level(topic, at, order, wanted);
        bool topic_ends = at + level.len == topic.len, filter_ends = in_filter + wanted.len == filter.len;
        if (topic_ends) return filter_ends ? MATCHES : after_topic(topic, filter, in_filter + wanted.len + 1);
        if (filter_ends) return seek_past(topic.data, at + level.len);
        at += level.len + 1;
        in_filter += wanted.len + 1;
    }
}

void retained_topics_walk(server_dict *topics, hmq_slice filter, retained_position *position, retained_page *page) {
    size_t len;
    void *key;
    page->count = 0;
    page->end = false;
    server_dict_iter *iter =
        sv.DictIteratorStartC(topics, position->len > 0 ? ">" : "^", position->bytes, position->len);
    while (!page->end && page->count < page->room && page->visits > 0) {
        const uint8_t *topic = sv.DictNextC(iter, &len, &key);
        page->end = topic == NULL;
        if (topic == NULL) break;
        size_t visits = 1 + len / BYTES_OF_A_VISIT;
        page->visits -= page->visits < visits ? page->visits : visits;
        memcpy(position->bytes, topic, len);
        position->len = len;
        switch (compare_topic((hmq_slice){position->bytes, len}, filter)) {
        case MATCHES: page->keys[page->count++] = sv.HoldString(NULL, key); break;
        case NEXT: break;
        case SEEK: sv.DictIteratorReseekC(iter, ">=", target.bytes, target.len); break;
        case OVER: page->end = true;
        }
    }
    sv.DictIteratorStop(iter);
}
