/* session_keys.c - names, types and expiry of a session's keys. */
#include "server/session_keys.h"

#include <string.h>

#include "base/hash.h"
#include "topic/topic.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/memory.h"
#include "server/replication.h"

#define NAME_MAX_BYTES 1024 /* longer session keys take the heap */

uint64_t client_hash(hmq_slice name) {
    static const hmq_hash_seed seed = {0, 0};
    return hmq_hash_text(&seed, (const char *)name.data, name.len);
}

server_string *session_key_name(hmq_slice session, int suffix) {
    size_t len;
    const char *text = hmq_suffix_text((hmq_suffix)suffix, &len);
    char small[NAME_MAX_BYTES];
    size_t total = session.len + len;
    char *name = scratch_alloc(small, sizeof small, total);
    memcpy(name, session.data, session.len);
    memcpy(name + session.len, text, len);
    server_string *string = sv.CreateString(NULL, name, total);
    scratch_free(name, small);
    return string;
}

server_string *session_key_of(hmq_slice client_id) {
    size_t capacity = client_id.len * 3 + 2;
    char small[NAME_MAX_BYTES];
    char *text = scratch_alloc(small, sizeof small, capacity);
    size_t len = hmq_session_key_encode((const char *)client_id.data, client_id.len, text, capacity);
    server_string *key = sv.CreateString(NULL, text, len);
    scratch_free(text, small);
    return key;
}

hmq_slice session_key_text(hmq_slice client_id) {
    static char text[HMQ_TOPIC_MAX_BYTES * 3 + 2]; /* of the longest client id that a record can have */
    size_t len = hmq_session_key_encode((const char *)client_id.data, client_id.len, text, sizeof text);
    return (hmq_slice){(const uint8_t *)text, len};
}

bool session_key_is_of(hmq_slice session, hmq_slice client_id) {
    hmq_slice key = session_key_text(client_id);
    return key.len > 0 && hmq_slice_equal(key, session);
}

void key_set_expiry(server_ctx *ctx, server_key *key, server_string *name, long long expire_ms) {
    sv.SetAbsExpire(key, expire_ms);
    if (expire_ms == SERVER_NO_EXPIRE)
        replicate(ctx, "PERSIST", "s", name);
    else
        replicate(ctx, "PEXPIREAT", "sl", name, expire_ms);
    index_notify(ctx, SERVER_NOTIFY_GENERIC, expire_ms == SERVER_NO_EXPIRE ? "persist" : "expire", name);
}

bool expiry_is_later(long long expire_ms, long long current) {
    if (current == SERVER_NO_EXPIRE) return false;
    return expire_ms == SERVER_NO_EXPIRE || expire_ms > current;
}

void session_keys_expire(server_ctx *ctx, hmq_slice session, long long expire_ms, bool only_later) {
    static const hmq_suffix keys[] = {HMQ_SUFFIX_SESSION,        HMQ_SUFFIX_SUBSCRIPTIONS, HMQ_SUFFIX_MESSAGES,
                                      HMQ_SUFFIX_LAST_PACKET_ID, HMQ_SUFFIX_RECEIVED,      HMQ_SUFFIX_PRODUCERS,
                                      HMQ_SUFFIX_REPLAYS,        HMQ_SUFFIX_CURSORS,       HMQ_SUFFIX_PLACES};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        server_string *name = session_key_name(session, keys[i]);
        server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
        if (sv.KeyType(key) != SERVER_EMPTY) {
            long long current = sv.GetAbsExpire(key);
            long long due = keys[i] == HMQ_SUFFIX_LAST_PACKET_ID && expire_ms != SERVER_NO_EXPIRE
                                ? expire_ms + SWEEP_GRACE_MS
                                : expire_ms;
            if (only_later ? expiry_is_later(due, current) : due != current) key_set_expiry(ctx, key, name, due);
        }
        sv.CloseKey(key);
        sv.FreeString(NULL, name);
    }
}

void session_hash_extend_expiry(server_ctx *ctx, hmq_slice session, long long expire_ms) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(key) == SERVER_HASH && expiry_is_later(expire_ms, sv.GetAbsExpire(key)))
        key_set_expiry(ctx, key, name, expire_ms);
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

/* The keys whose types a session depends on. */
static const struct {
    hmq_suffix suffix;
    int type;
} expected[] = {{HMQ_SUFFIX_MESSAGES, SERVER_ZSET},      {HMQ_SUFFIX_LAST_PACKET_ID, SERVER_STRING},
                {HMQ_SUFFIX_SUBSCRIPTIONS, SERVER_HASH}, {HMQ_SUFFIX_SESSION, SERVER_HASH},
                {HMQ_SUFFIX_RECEIVED, SERVER_ZSET},      {HMQ_SUFFIX_PRODUCERS, SERVER_HASH},
                {HMQ_SUFFIX_REPLAYS, SERVER_HASH},       {HMQ_SUFFIX_CURSORS, SERVER_HASH},
                {HMQ_SUFFIX_PLACES, SERVER_HASH}};

#define EXPECTED_COUNT (sizeof expected / sizeof expected[0])

/* The first key of another type, as its place among the expected ones; EXPECTED_COUNT: all types are right. */
static size_t first_wrong_type(server_ctx *ctx, hmq_slice session) {
    size_t at = 0;
    for (; at < EXPECTED_COUNT; at++) {
        server_string *name = session_key_name(session, expected[at].suffix);
        int type = key_type_of(ctx, name, SERVER_READ);
        sv.FreeString(NULL, name);
        if (type != SERVER_EMPTY && type != expected[at].type) break;
    }
    return at;
}

bool session_types_are_valid(server_ctx *ctx, hmq_slice session) {
    return first_wrong_type(ctx, session) == EXPECTED_COUNT;
}

int session_reply_wrong_type(server_ctx *ctx, hmq_slice session, hmq_suffix suffix) {
    size_t at = 0;
    while (at + 1 < EXPECTED_COUNT && expected[at].suffix != suffix) at++;
    server_string *name = session_key_name(session, suffix);
    reply_wrong_type(ctx, name, key_type_name(expected[at].type));
    sv.FreeString(NULL, name);
    return SERVER_OK;
}

bool session_check_types(server_ctx *ctx, hmq_slice session) {
    size_t at = first_wrong_type(ctx, session);
    if (at == EXPECTED_COUNT) return true;
    session_reply_wrong_type(ctx, session, expected[at].suffix);
    return false;
}

bool session_fact_write(server_ctx *ctx, hmq_slice session, const char *field, uint64_t value, long long expire_ms) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    bool is_new = sv.KeyType(key) == SERVER_EMPTY, usable = key_may_be(key, SERVER_HASH);
    if (usable) {
        server_string *text = sv.CreateStringFromLongLong(NULL, (long long)value);
        sv.HashSet(key, SERVER_HASH_CFIELDS, field, text, NULL);
        replicate(ctx, "HSET", "scs", name, field, text);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
        if (is_new && expire_ms != SERVER_NO_EXPIRE) key_set_expiry(ctx, key, name, expire_ms);
        sv.FreeString(NULL, text);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return usable;
}

void session_delete_key(server_ctx *ctx, hmq_slice session, hmq_suffix suffix) {
    keyspace_drop(ctx, session_key_name(session, suffix));
}
