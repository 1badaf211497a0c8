/* core_targets.c - each part of the core on bytes from anybody, and the laws that must hold whatever they are.
 *
 * Inputs and outputs lie in blocks of exactly their size, so that the address sanitizer sees each byte beyond. */
#include "core_targets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/glob.h"
#include "mqtt/mqtt.h"
#include "mqtt/properties.h"
#include "topic/packed_page.h"
#include "topic/packet_id.h"
#include "topic/policy.h"
#include "topic/record.h"
#include "topic/session_key.h"
#include "topic/tbmq.h"
#include "topic/topic.h"
#include "topic/trie.h"
#include "base/utf8.h"

#define HOLDS(law)                                                                                                     \
    do {                                                                                                               \
        if (!(law)) {                                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #law);                                   \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* ---- memory ------------------------------------------------------------------------------------------------ */

static void *block(size_t size) {
    void *memory = malloc(size);
    HOLDS(memory != NULL || size == 0);
    return memory;
}

static void *copied(const void *data, size_t len) {
    void *copy = block(len);
    if (len > 0) memcpy(copy, data, len);
    return copy;
}

static bool equal(hmq_slice a, hmq_slice b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static bool inside(hmq_slice part, const uint8_t *data, size_t len) {
    return part.len == 0 || (part.data >= data && part.len <= len && part.data <= data + len - part.len);
}

/* The input in two: the first byte says how long the first part is, as a fraction of the rest. */
typedef struct halves {
    char *first, *second;
    size_t first_len, second_len;
} halves;

static halves split(const uint8_t *data, size_t len) {
    size_t rest = len > 0 ? len - 1 : 0, at = len > 0 ? rest * data[0] / 255 : 0;
    return (halves){copied(data + 1, at), copied(data + 1 + at, rest - at), at, rest - at};
}

static void free_halves(halves h) {
    free(h.first);
    free(h.second);
}

/* ---- records ----------------------------------------------------------------------------------------------- */

static bool same_record(const hmq_record *a, const hmq_record *b) {
    return a->type == b->type && a->qos == b->qos && a->retain == b->retain && a->time_ms == b->time_ms &&
           a->expires_ms == b->expires_ms && equal(a->topic, b->topic) && equal(a->publisher, b->publisher) &&
           equal(a->properties, b->properties) && equal(a->payload, b->payload);
}

static void record(const uint8_t *data, size_t len) {
    hmq_record decoded, again;
    bool is = hmq_record_is(data, len);
    if (hmq_record_decode(data, len, &decoded) != 0) return;
    HOLDS(is);
    HOLDS(inside(decoded.topic, data, len) && inside(decoded.publisher, data, len));
    HOLDS(inside(decoded.properties, data, len) && inside(decoded.payload, data, len));
    size_t size = hmq_record_size(&decoded);
    HOLDS(size > 0 && size <= len);
    uint8_t *out = block(size);
    HOLDS(hmq_record_encode(&decoded, out, size - 1) == 0);
    HOLDS(hmq_record_encode(&decoded, out, size) == size);
    HOLDS(hmq_record_decode(out, size, &again) == 0 && same_record(&decoded, &again));
    free(out);
}

static void delivery(const uint8_t *data, size_t len) {
    hmq_delivery decoded;
    if (hmq_delivery_decode(data, len, &decoded) != 0) return;
    HOLDS(inside(decoded.record, data, len));
    uint8_t *out = block(HMQ_DELIVERY_HEADER_BYTES);
    HOLDS(hmq_delivery_encode_header(&decoded, out, HMQ_DELIVERY_HEADER_BYTES) == HMQ_DELIVERY_HEADER_BYTES);
    HOLDS(memcmp(out, data, HMQ_DELIVERY_HEADER_BYTES) == 0);
    free(out);
}

static void packed_page(const uint8_t *data, size_t len) {
    hmq_packed_entry entry;
    size_t at = 0, before = 0;
    int read;
    while ((read = hmq_packed_entry_next(data, len, &at, &entry)) == 1) {
        HOLDS(at == before + HMQ_PACKED_ENTRY_BYTES + entry.value.len && at <= len);
        HOLDS(inside(entry.value, data, len) && entry.serial > 0 && entry.packet_id > 0 && entry.state <= 2);
        uint8_t *out = block(HMQ_PACKED_ENTRY_BYTES);
        hmq_packed_entry_put(&entry, out);
        HOLDS(memcmp(out, data + before, HMQ_PACKED_ENTRY_BYTES) == 0);
        free(out);
        before = at;
    }
    HOLDS(at == before && (read == 0) == (at == len));
}

/* What the server sends of a queue: pushed, or fetched. */
static void queued(const uint8_t *data, size_t len) {
    delivery(data, len);
    packed_page(data, len);
}

static void tbmq(const uint8_t *data, size_t len) {
    if (len < 2) return;
    uint16_t packet_id = (uint16_t)(data[0] << 8 | data[1]);
    const char *json = (const char *)data + 2;
    len -= 2;
    bool is = hmq_tbmq_is(json, len);
    HOLDS(is || !hmq_tbmq_is_released(json, len));
    char *out = block(len + 20);
    size_t size = hmq_tbmq_with_packet_id(json, len, packet_id, out, len + 20);
    HOLDS((size > 0) == is && size <= len + 20);
    HOLDS(size == 0 || hmq_tbmq_is(out, size));
    char *less = block(size > 0 ? size - 1 : 0);
    HOLDS(size == 0 || hmq_tbmq_with_packet_id(json, len, packet_id, less, size - 1) == 0);
    free(less);
    size = hmq_tbmq_released(json, len, out, len + 8);
    HOLDS((size > 0) == is && size <= len + 8);
    HOLDS(size == 0 || hmq_tbmq_is_released(out, size));
    free(out);
    hmq_record record;
    uint8_t *decoded = block(len);
    bool is_read = hmq_tbmq_read(json, len, decoded, len, &record);
    HOLDS(!is_read || (is && hmq_record_size(&record) > 0));
    HOLDS(!is_read || (inside(record.topic, decoded, len) && inside(record.payload, decoded, len) &&
                       inside(record.properties, decoded, len)));
    free(decoded);
}

/* ---- MQTT packets ------------------------------------------------------------------------------------------ */

static void take_apart(const hmq_mqtt_packet *packet) {
    hmq_mqtt_entry entry;
    hmq_mqtt_connect connect;
    size_t at = 0, entries = 0;
    if (packet->type == HMQ_MQTT_CONNECT) {
        HOLDS(hmq_mqtt_read_connect(packet, &connect) == HMQ_MQTT_OK);
        uint8_t *out = block(packet->payload.len);
        HOLDS(hmq_mqtt_encode_connect(&connect, out, packet->payload.len) == packet->payload.len);
        HOLDS(equal((hmq_slice){out, packet->payload.len}, packet->payload));
        free(out);
    } else if (packet->type == HMQ_MQTT_SUBSCRIBE || packet->type == HMQ_MQTT_UNSUBSCRIBE) {
        while (hmq_mqtt_next_entry(packet, &at, &entry)) {
            entries++;
            HOLDS(inside(entry.filter, packet->payload.data, packet->payload.len) && at <= packet->payload.len);
        }
        HOLDS(entries > 0 && at == packet->payload.len);
    }
}

/* Each property by itself, written again: the same bytes. */
static void properties_again(hmq_slice properties) {
    hmq_mqtt_property property;
    uint8_t *out = block(properties.len);
    size_t at = 0, written = 0;
    while (hmq_mqtt_next_property(properties, &at, &property)) {
        HOLDS(inside(property.name, properties.data, properties.len));
        HOLDS(inside(property.value, properties.data, properties.len));
        HOLDS(hmq_mqtt_put_property(&property, out + written, at - written - 1) == 0);
        written += hmq_mqtt_put_property(&property, out + written, properties.len - written);
        HOLDS(written == at);
    }
    HOLDS(at == properties.len && equal((hmq_slice){out, at}, properties));
    free(out);
}

/* What a PUBLISH passes on comes out of another PUBLISH as it went in. */
static void pass_on(const hmq_mqtt_packet *packet) {
    hmq_mqtt_publish_properties split, again;
    hmq_mqtt_packet sent;
    HOLDS(hmq_mqtt_split_publish_properties(packet->properties, &split) == HMQ_MQTT_OK);
    HOLDS(split.passed.len == (split.contiguous ? split.passed_len : 0));
    HOLDS(inside(split.passed, packet->properties.data, packet->properties.len));
    uint8_t *copy = block(split.passed_len);
    HOLDS(hmq_mqtt_copy_passed(packet->properties, copy, split.passed_len) == split.passed_len);
    const hmq_slice passed = {copy, split.passed_len};
    HOLDS(!split.contiguous || equal(passed, split.passed));
    int64_t expiry_s = split.has_message_expiry ? (int64_t)split.message_expiry_s : -1;
    size_t size =
        hmq_mqtt_publish5_size(packet->topic, packet->payload, packet->qos, passed, expiry_s, split.topic_alias);
    uint8_t *out = block(size);
    for (size_t room = size - 1; room <= size; room++) {
        size_t done = hmq_mqtt_encode_publish5(packet->topic, packet->payload, packet->qos, packet->retain, packet->dup,
                                               packet->packet_id, passed, expiry_s, split.topic_alias, out, room);
        HOLDS(done == (room == size ? size : 0));
    }
    HOLDS(hmq_mqtt_decode(out, size, HMQ_MQTT_5_0, size, &sent) == (int64_t)size);
    HOLDS(hmq_mqtt_split_publish_properties(sent.properties, &again) == HMQ_MQTT_OK);
    HOLDS(again.contiguous && equal(again.passed, passed) && again.topic_alias == split.topic_alias);
    HOLDS(equal(sent.topic, packet->topic) && equal(sent.payload, packet->payload));
    free(out);
    free(copy);
}

static bool same_packet(const hmq_mqtt_packet *a, const hmq_mqtt_packet *b) {
    return a->type == b->type && a->qos == b->qos && a->dup == b->dup && a->retain == b->retain && a->code == b->code &&
           a->session_present == b->session_present && a->packet_id == b->packet_id && a->version == b->version &&
           equal(a->topic, b->topic) && equal(a->properties, b->properties) && equal(a->payload, b->payload);
}

/* A packet of 3.1.1, and a CONNECT, is the same bytes again; one of 5.0 may get shorter, but stays the same packet.  (A
 * remaining length of 3.1.1 may be written longer than need be: then the sizes differ.) */
static void encode_again(const hmq_mqtt_packet *packet, const uint8_t *data, size_t len) {
    hmq_mqtt_packet again;
    size_t size = hmq_mqtt_size(packet, packet->version);
    HOLDS(size > 0 && size <= packet->bytes);
    uint8_t *out = block(size);
    HOLDS(hmq_mqtt_encode(packet, packet->version, out, size - 1) == 0);
    HOLDS(hmq_mqtt_encode(packet, packet->version, out, size) == size);
    HOLDS(size != packet->bytes || memcmp(out, data, size) == 0);
    HOLDS(hmq_mqtt_decode(out, size, packet->version, len, &again) == (int64_t)size && same_packet(packet, &again));
    free(out);
}

static void decode(const uint8_t *data, size_t len, uint8_t version) {
    enum { MOST = 16 };
    hmq_mqtt_packet packets[MOST];
    size_t consumed = 0, at = 0;
    hmq_mqtt_error error = HMQ_MQTT_OK;
    size_t count = hmq_mqtt_decode_many(data, len, version, 4096, packets, MOST, &consumed, &error);
    HOLDS(count <= MOST && consumed <= len && error <= 0);
    HOLDS(hmq_mqtt_error_text(error) != NULL && (error == HMQ_MQTT_OK) == (hmq_mqtt_error_reason(error) < 0x80));
    for (size_t i = 0; i < count; i++) {
        const hmq_mqtt_packet *packet = &packets[i];
        HOLDS(packet->version == (version ? version : packets[0].version));
        HOLDS(inside(packet->topic, data, len) && inside(packet->payload, data, len));
        HOLDS(inside(packet->properties, data, len));
        encode_again(packet, data + at, len);
        take_apart(packet);
        properties_again(packet->properties);
        if (packet->type == HMQ_MQTT_PUBLISH && packet->version == HMQ_MQTT_5_0) pass_on(packet);
        at += packet->bytes;
    }
    HOLDS(at == consumed);
}

static void mqtt(const uint8_t *data, size_t len) {
    decode(data, len, HMQ_MQTT_3_1_1);
}

static void mqtt5(const uint8_t *data, size_t len) {
    decode(data, len, HMQ_MQTT_5_0);
    decode(data, len, HMQ_MQTT_ANY_VERSION);
}

/* The first byte says where they are to stand. */
static void mqtt_properties(const uint8_t *data, size_t len) {
    if (len == 0) return;
    const hmq_slice properties = {data + 1, len - 1};
    hmq_mqtt_publish_properties split;
    hmq_mqtt_error error = hmq_mqtt_check_properties(properties, data[0] & 15);
    hmq_mqtt_error fault = hmq_mqtt_split_publish_properties(properties, &split);
    HOLDS(split.passed_len <= properties.len && inside(split.passed, properties.data, properties.len));
    uint8_t *out = block(properties.len);
    HOLDS(hmq_mqtt_copy_passed(properties, out, properties.len) >= split.passed_len);
    free(out);
    if (error != HMQ_MQTT_OK) return;
    HOLDS(fault == HMQ_MQTT_OK || ((data[0] & 15) != HMQ_MQTT_PUBLISH && (data[0] & 15) != HMQ_MQTT_WILL));
    properties_again(properties);
}

/* ---- topics ------------------------------------------------------------------------------------------------ */

static void topic(const uint8_t *data, size_t len) {
    halves h = split(data, len);
    hmq_topic_error filter = hmq_topic_check_filter(h.first, h.first_len);
    hmq_topic_error name = hmq_topic_check_name(h.second, h.second_len);
    hmq_slice group, inner;
    HOLDS(hmq_topic_error_text(filter) != NULL && hmq_topic_error_text(name) != NULL);
    if (filter == HMQ_TOPIC_OK) {
        const char *plain = h.first;
        size_t plain_len = h.first_len;
        if (hmq_topic_split_share(h.first, h.first_len, &group, &inner)) {
            HOLDS(inside(group, (const uint8_t *)h.first, h.first_len) && group.len > 0);
            HOLDS(inside(inner, (const uint8_t *)h.first, h.first_len) && inner.len > 0);
            HOLDS(hmq_topic_check_filter((const char *)inner.data, inner.len) == HMQ_TOPIC_OK);
            plain = (const char *)inner.data, plain_len = inner.len;
        }
        if (name == HMQ_TOPIC_OK) hmq_topic_matches(plain, plain_len, h.second, h.second_len);
    }
    if (name == HMQ_TOPIC_OK) HOLDS(hmq_topic_matches(h.second, h.second_len, h.second, h.second_len));
    if (name == HMQ_TOPIC_OK) HOLDS(hmq_utf8_check((const uint8_t *)h.second, h.second_len) == HMQ_UTF8_OK);
    free_halves(h);
}

static void glob(const uint8_t *data, size_t len) {
    halves h = split(data, len);
    char *starred = block(h.first_len + 1);
    starred[0] = '*';
    if (h.first_len > 0) memcpy(starred + 1, h.first, h.first_len);
    if (hmq_glob_matches(h.first, h.first_len, h.second, h.second_len)) {
        HOLDS(hmq_glob_matches(starred, h.first_len + 1, h.second, h.second_len));
    }
    free(starred);
    free_halves(h);
}

static void policy(const uint8_t *data, size_t len) {
    char *error = block(64);
    memset(error, 'x', 64);
    size_t capacity = len % 64;
    hmq_policy *parsed = hmq_policy_parse(&hmq_libc_allocator, (const char *)data, len, error, capacity);
    if (parsed == NULL) {
        HOLDS(capacity == 0 || memchr(error, 0, capacity) != NULL);
    } else {
        size_t count = hmq_policy_count(parsed);
        HOLDS(count <= HMQ_POLICY_MAX_RULES);
        for (size_t i = 0; i < count; i++) {
            const hmq_rule *rule = hmq_policy_rule(parsed, i);
            HOLDS(rule->maxlen >= 1 && rule->maxlen <= HMQ_POLICY_MAX_LENGTH && rule->ttl_s <= HMQ_POLICY_MAX_TTL_S);
            hmq_policy_find(parsed, (const char *)rule->glob.data, rule->glob.len);
        }
        hmq_policy_free(parsed);
    }
    free(error);
}

/* ---- names of keys ----------------------------------------------------------------------------------------- */

static void id_to_key_and_back(const char *id, size_t len) {
    size_t capacity = 3 * len + 2;
    char *key = block(capacity), *back = block(len);
    size_t key_len = hmq_session_key_encode(id, len, key, capacity);
    HOLDS((key_len > 0) == (len > 0)); /* an empty id is no hash tag */
    HOLDS(len == 0 || hmq_session_key_check(key, key_len));
    if (len > 0) HOLDS(hmq_session_key_decode(key, key_len, back, len) == (int64_t)len && memcmp(back, id, len) == 0);
    free(back);
    free(key);
}

static void session_key(const uint8_t *data, size_t len) {
    const char *name = (const char *)data;
    uint16_t packet_id = len > 1 ? (uint16_t)(data[0] << 8 | data[1]) : 1;
    char *out = block(len + 16);
    if (packet_id == 0) packet_id = 1;
    id_to_key_and_back(name, len);
    bool is = hmq_session_key_check(name, len);
    hmq_session_key_decode(name, len, out, len);
    for (int suffix = 0; suffix < HMQ_SUFFIX_COUNT; suffix++) {
        size_t key_len = hmq_session_key_of(name, len, (hmq_suffix)suffix);
        HOLDS(key_len <= len && (key_len == 0 || hmq_session_key_check(name, key_len)));
    }
    if (is) {
        size_t size = hmq_message_key(name, len, packet_id, out, len + 16);
        HOLDS(size > 0 && hmq_message_key_packet_id(name, len, out, size) == packet_id);
    }
    for (size_t i = 0; i <= len && i < 64; i++) hmq_message_key_packet_id(name, i, name, len);
    char *key = block(3 * len + 16);
    size_t key_len = hmq_retained_key(name, len, key, 3 * len + 16);
    HOLDS((key_len > 0) == (len > 0));
    if (len > 0) HOLDS(hmq_retained_topic(key, key_len, out, len) == (int64_t)len && memcmp(out, name, len) == 0);
    hmq_retained_topic(name, len, out, len);
    free(key);
    free(out);
}

/* ---- the trie ---------------------------------------------------------------------------------------------- */

/* Operations, each: a byte (kind and subscriber), a byte (length, and more of the subscriber), the filter or name. */
enum { MODEL_PAIRS = 128, MODEL_TEXT = 40 };

typedef struct pair {
    char filter[MODEL_TEXT];
    size_t len;
    uint64_t subscriber;
} pair;

typedef struct model {
    pair pairs[MODEL_PAIRS];
    size_t count;
} model;

static int calls_to_failure; /* negative: never */

static bool fails_now(void) {
    return calls_to_failure >= 0 && calls_to_failure-- == 0;
}

static void *failing_alloc(size_t size) {
    return fails_now() ? NULL : malloc(size);
}

static void *failing_resize(void *old, size_t size) {
    return fails_now() ? NULL : realloc(old, size);
}

static const hmq_allocator failing = {failing_alloc, failing_resize, free};

static void model_remove(model *m, const char *filter, size_t len, uint64_t subscriber) {
    for (size_t i = 0; i < m->count; i++) {
        pair *p = &m->pairs[i];
        if (p->subscriber == subscriber && p->len == len && memcmp(p->filter, filter, len) == 0) {
            *p = m->pairs[--m->count];
            return;
        }
    }
}

static void model_add(model *m, const char *filter, size_t len, uint64_t subscriber) {
    pair *p = &m->pairs[m->count++];
    memcpy(p->filter, filter, len);
    p->len = len;
    p->subscriber = subscriber;
}

static void trie_change(hmq_trie *trie, model *m, uint8_t kind, uint64_t subscriber, const char *filter, size_t len) {
    if (kind & 1) {
        if (hmq_trie_remove(trie, filter, len, subscriber) == HMQ_TRIE_REMOVED)
            model_remove(m, filter, len, subscriber);
    } else if (m->count < MODEL_PAIRS) {
        calls_to_failure = kind & 4 ? kind >> 6 : -1;
        hmq_trie_result result = hmq_trie_set(trie, filter, len, subscriber, kind);
        calls_to_failure = -1;
        HOLDS((result == HMQ_TRIE_BAD_FILTER) ==
              (hmq_topic_check_filter(filter, len) != HMQ_TOPIC_OK || (len >= 7 && memcmp(filter, "$share/", 7) == 0)));
        if (result == HMQ_TRIE_ADDED) model_add(m, filter, len, subscriber);
    }
    HOLDS(hmq_trie_pairs(trie) == m->count);
}

static bool count_one(void *context, uint64_t subscriber, uint32_t options) {
    (void)subscriber, (void)options;
    ++*(size_t *)context;
    return true;
}

static size_t count_in_steps(const hmq_trie *trie, const char *name, size_t len, size_t units) {
    hmq_trie_place place = {.depth = 0};
    size_t count = 0, left = units;
    while (!hmq_trie_match_some(trie, name, len, &place, &left, count_one, &count)) left = units;
    return count;
}

static void trie_ask(const hmq_trie *trie, const model *m, const char *name, size_t len) {
    hmq_trie_entry found[MODEL_PAIRS];
    size_t expected = 0;
    if (hmq_topic_check_name(name, len) != HMQ_TOPIC_OK) return;
    for (size_t i = 0; i < m->count; i++) {
        if (hmq_topic_matches(m->pairs[i].filter, m->pairs[i].len, name, len)) expected++;
    }
    HOLDS(hmq_trie_collect(trie, name, len, found, MODEL_PAIRS) == expected);
    HOLDS(count_in_steps(trie, name, len, 1) == expected && count_in_steps(trie, name, len, 7) == expected);
}

static void trie(const uint8_t *data, size_t len) {
    static model m;
    m.count = 0;
    calls_to_failure = -1;
    hmq_trie *made = hmq_trie_new(&failing);
    HOLDS(made != NULL);
    while (len >= 2) {
        uint8_t kind = data[0];
        size_t text_len = data[1] % MODEL_TEXT;
        uint64_t subscriber = (uint64_t)(kind >> 4) + 16U * (data[1] / MODEL_TEXT);
        data += 2, len -= 2;
        if (text_len > len) text_len = len;
        char *text = copied(data, text_len);
        data += text_len, len -= text_len;
        if (kind & 2)
            trie_ask(made, &m, text, text_len);
        else
            trie_change(made, &m, kind, subscriber, text, text_len);
        free(text);
    }
    while (m.count > 0) {
        pair p = m.pairs[0];
        HOLDS(hmq_trie_remove(made, p.filter, p.len, p.subscriber) == HMQ_TRIE_REMOVED);
        model_remove(&m, p.filter, p.len, p.subscriber);
    }
    HOLDS(hmq_trie_nodes(made) == 1);
    hmq_trie_free(made);
}

/* ---- identifiers ------------------------------------------------------------------------------------------- */

static void packet_id(const uint8_t *data, size_t len) {
    uint64_t serial = 0;
    if (len < 10) return;
    uint16_t id = (uint16_t)(data[0] << 8 | data[1]);
    for (size_t i = 2; i < 10; i++) serial = serial << 8 | data[i];
    serial %= 1ULL << 53; /* a score of a sorted set is exact up to there */
    if (id == 0) id = 1;
    HOLDS(hmq_packet_id_next(id) != 0);
    uint64_t round = hmq_serial_round(serial, id);
    HOLDS(hmq_serial_of(round, id) >= serial);
    HOLDS(round == 0 || hmq_serial_of(round - 1, id) < serial);
}

typedef void (*target)(const uint8_t *data, size_t len);
static const target targets[] = {record,
                                 queued,
                                 tbmq,
                                 mqtt,
                                 topic,
                                 glob,
                                 policy,
                                 session_key,
                                 trie,
                                 packet_id,
                                 mqtt5,
                                 mqtt_properties,
                                 fuzz_history_patterns,
                                 fuzz_history_lists,
                                 fuzz_history_texts,
                                 fuzz_history_learner,
                                 fuzz_engine,
                                 fuzz_websocket};

void fuzz_one(const uint8_t *data, size_t len) {
    if (len == 0) return;
    uint8_t *rest = copied(data + 1, len - 1);
    targets[data[0] % (sizeof targets / sizeof targets[0])](rest, len - 1);
    free(rest);
}
