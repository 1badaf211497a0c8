/* retained.c - keeps and reads retained messages. */
#include "routing/retained.h"

#include <string.h>

#include "topic/session_key.h"
#include "topic/topic.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/session_keys.h"
#include "server/slots.h"
#include "index/retained.h"
#include "index/retained_topics.h"
#include "index/usage.h"

enum { FIELD_TOPIC, FIELD_PAYLOAD, FIELD_QOS, FIELD_TIME, FIELD_PUBLISHER, FIELD_PROPERTIES };
static const char *const names[RETAINED_FIELDS] = {"topic", "payload", "qos", "time", "publisher", "properties"};

static server_string *key_of(hmq_slice topic) {
    size_t capacity = topic.len * 3 + 16;
    char *text = sv.Alloc(capacity);
    size_t len = hmq_retained_key((const char *)topic.data, topic.len, text, capacity);
    server_string *key = sv.CreateString(NULL, text, len);
    sv.Free(text);
    return key;
}

unsigned retained_slot(hmq_slice topic) {
    server_string *key = key_of(topic);
    unsigned slot = slots_of_key(slice_of(key));
    sv.FreeString(NULL, key);
    return slot;
}

static server_string *string_of(hmq_slice bytes) {
    return sv.CreateString(NULL, (const char *)bytes.data, bytes.len);
}

static void remove_key(server_ctx *ctx, index_t *index, server_key *key, server_string *name) {
    if (sv.KeyType(key) == SERVER_EMPTY) return;
    sv.UnlinkKey(key);
    sv.Replicate(ctx, "UNLINK", "s", name);
    index_remove_retained(index, slice_of(name));
    index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
}

/* It no longer counts for a user. */
static void remove_identity(server_ctx *ctx, server_key *key, server_string *name) {
    if (sv.KeyType(key) != SERVER_HASH) return;
    int removed =
        sv.HashSet(key, SERVER_HASH_CFIELDS | SERVER_HASH_COUNT_ALL, RETAINED_IDENTITY, SERVER_HASH_DELETE, NULL);
    if (removed > 0) sv.Replicate(ctx, "HDEL", "sc", name, RETAINED_IDENTITY);
}

static void write_key(server_ctx *ctx, index_t *index, server_key *key, server_string *name, const hmq_record *record,
                      hmq_slice identity) {
    if (identity.len == 0) remove_identity(ctx, key, name);
    server_string *values[RETAINED_FIELDS + 1] = {
        string_of(record->topic),
        string_of(record->payload),
        sv.CreateStringFromLongLong(NULL, record->qos),
        sv.CreateStringFromLongLong(NULL, record->time_ms),
        string_of(record->publisher),
        string_of(record->properties),
    };
    size_t count = RETAINED_FIELDS;
    if (identity.len > 0) values[count++] = string_of(identity);
    server_string *pairs[2 * (RETAINED_FIELDS + 1)];
    for (size_t i = 0; i < count; i++) {
        pairs[2 * i] = sv.CreateStringPrintf(NULL, "%s", i < RETAINED_FIELDS ? names[i] : RETAINED_IDENTITY);
        pairs[2 * i + 1] = values[i];
        sv.HashSet(key, SERVER_HASH_NONE, pairs[2 * i], values[i], NULL);
    }
    sv.Replicate(ctx, "HSET", "sv", name, pairs, 2 * count);
    long long expire_ms = record->expires_ms > 0 ? record->expires_ms : SERVER_NO_EXPIRE;
    if (sv.GetAbsExpire(key) != expire_ms) key_set_expiry(ctx, key, name, expire_ms);
    index_set_retained(index, slice_of(name), identity);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    for (size_t i = 0; i < 2 * count; i++) sv.FreeString(NULL, pairs[i]);
}

bool retained_write(server_ctx *ctx, index_t *index, const hmq_record *record, hmq_slice identity) {
    server_string *name = key_of(record->topic);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    bool usable = key_check(ctx, key, name, SERVER_HASH);
    if (usable && (record->payload.len == 0 || hmq_record_has_zero_ttl(record)))
        remove_key(ctx, index, key, name);
    else if (usable)
        write_key(ctx, index, key, name, record, identity);
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return usable;
}

bool retained_find(const index_t *index, hmq_slice topic, const usage_user **user) {
    server_string *name = key_of(topic);
    hmq_slice key = slice_of(name);
    const retained_entry *entry = sv.DictGetC(index->retained_keys, key.data, key.len, NULL);
    sv.FreeString(NULL, name);
    *user = entry == NULL ? NULL : entry->user;
    return entry != NULL;
}

bool retained_is_known(const index_t *index, hmq_slice topic) {
    const usage_user *user;
    return retained_find(index, topic, &user);
}

bool retained_may_write(server_ctx *ctx, hmq_slice topic) {
    server_string *name = key_of(topic);
    int type = key_type_of(ctx, name, SERVER_READ);
    sv.FreeString(NULL, name);
    return type == SERVER_HASH || type == SERVER_EMPTY;
}

/* Without it, only looks whether it is there: the server copies what it hands out. */
static bool take_payload(server_key *key, server_string **payload, bool with_payload) {
    int exists = 0;
    if (with_payload)
        sv.HashGet(key, SERVER_HASH_CFIELDS, names[FIELD_PAYLOAD], payload, NULL);
    else
        sv.HashGet(key, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, names[FIELD_PAYLOAD], &exists, NULL);
    return *payload != NULL || exists;
}

static bool take_fields(server_key *key, retained_message *message, bool with_payload) {
    long long qos = 0, time_ms = 0;
    server_string **f = message->fields;
    sv.HashGet(key, SERVER_HASH_CFIELDS, names[0], &f[0], names[2], &f[2], names[3], &f[3], names[4], &f[4], names[5],
               &f[5], NULL);
    if (f[FIELD_TOPIC] == NULL || f[FIELD_QOS] == NULL) return false;
    if (!take_payload(key, &f[FIELD_PAYLOAD], with_payload)) return false;
    if (!number_of(f[FIELD_QOS], 0, 2, &qos)) return false;
    if (f[FIELD_TIME] != NULL && !number_of(f[FIELD_TIME], 0, INT64_MAX, &time_ms)) return false;
    long long expire_ms = sv.GetAbsExpire(key);
    hmq_slice topic = slice_of(f[FIELD_TOPIC]);
    if (hmq_topic_check_name((const char *)topic.data, topic.len) != HMQ_TOPIC_OK) return false;
    message->record = (hmq_record){
        .type = HMQ_RECORD_PUBLISH,
        .qos = (uint8_t)qos,
        .retain = true,
        .time_ms = time_ms,
        .expires_ms = expire_ms == SERVER_NO_EXPIRE ? 0 : expire_ms,
        .topic = topic,
    };
    if (f[FIELD_PAYLOAD] != NULL) message->record.payload = slice_of(f[FIELD_PAYLOAD]);
    if (f[FIELD_PUBLISHER] != NULL) message->record.publisher = slice_of(f[FIELD_PUBLISHER]);
    if (f[FIELD_PROPERTIES] != NULL) message->record.properties = slice_of(f[FIELD_PROPERTIES]);
    return hmq_record_size(&message->record) > 0;
}

/* Is it the topic of this key?  (Another program may have written anything to the hash.) */
static bool belongs(const server_string *key_name, hmq_slice topic) {
    server_string *expected = key_of(topic);
    hmq_slice a = slice_of(expected), b = slice_of(key_name);
    bool same = hmq_slice_equal(a, b);
    sv.FreeString(NULL, expected);
    return same;
}

static bool read_key(server_ctx *ctx, server_string *key_name, retained_message *message, bool with_payload) {
    *message = (retained_message){0};
    server_key *key = sv.OpenKey(ctx, key_name, SERVER_READ);
    bool found = sv.KeyType(key) == SERVER_HASH && take_fields(key, message, with_payload) &&
                 belongs(key_name, message->record.topic);
    if (key != NULL) sv.CloseKey(key);
    if (!found) retained_read_end(message);
    return found;
}

bool retained_read(server_ctx *ctx, server_string *key_name, retained_message *message) {
    return read_key(ctx, key_name, message, true);
}

bool retained_read_head(server_ctx *ctx, server_string *key_name, retained_message *message) {
    return read_key(ctx, key_name, message, false);
}

void retained_read_end(retained_message *message) {
    for (int i = 0; i < RETAINED_FIELDS; i++) {
        if (message->fields[i] != NULL) sv.FreeString(NULL, message->fields[i]);
        message->fields[i] = NULL;
    }
}

server_string *retained_encoded(server_ctx *ctx, const index_t *index, hmq_slice topic) {
    retained_message kept;
    server_string *key = retained_topics_find(index->retained, topic);
    if (key == NULL) return sv.CreateString(NULL, "", 0);
    key = sv.HoldString(NULL, key); /* reading it may find it expired, and the index then forgets it */
    bool found = retained_read(ctx, key, &kept);
    size_t size = found ? hmq_record_size(&kept.record) : 0;
    uint8_t *bytes = sv.Alloc(size + 1);
    if (found) hmq_record_encode(&kept.record, bytes, size);
    server_string *encoded = sv.CreateString(NULL, (const char *)bytes, size);
    sv.Free(bytes);
    if (found) retained_read_end(&kept);
    sv.FreeString(NULL, key);
    return encoded;
}
