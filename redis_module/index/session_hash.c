/* session_hash.c - reads and writes the hash {c}_session for the queue, and the expiry of a session's keys. */
#include "index/session_hash.h"

#include <string.h>

#include "topic/packet_id.h"
#include "topic/session_key.h"
#include "server/errors.h"
#include "index/index.h"
#include "server/replication.h"
#include "queue/queue.h"
#include "queue/overflow.h"
#include "session/sweep.h"

#define NAME_MAX_BYTES 1024 /* longer session keys take the heap */

server_string *session_key_name(hmq_slice session, int suffix) {
    size_t len;
    const char *text = hmq_suffix_text((hmq_suffix)suffix, &len);
    char small[NAME_MAX_BYTES];
    size_t total = session.len + len;
    char *name = total <= sizeof small ? small : sv.Alloc(total);
    memcpy(name, session.data, session.len);
    memcpy(name + session.len, text, len);
    server_string *string = sv.CreateString(NULL, name, total);
    if (name != small) sv.Free(name);
    return string;
}

/* ---- expiry ------------------------------------------------------------------------------------------------ */

void key_set_expiry(server_ctx *ctx, server_key *key, server_string *name, long long expire_ms) {
    sv.SetAbsExpire(key, expire_ms);
    if (expire_ms == SERVER_NO_EXPIRE)
        replicate(ctx, "PERSIST", "s", name);
    else
        replicate(ctx, "PEXPIREAT", "sl", name, expire_ms);
    index_notify(ctx, SERVER_NOTIFY_GENERIC, expire_ms == SERVER_NO_EXPIRE ? "persist" : "expire", name);
}

bool expires_later(long long expire_ms, long long standing) {
    if (standing == SERVER_NO_EXPIRE) return false;
    return expire_ms == SERVER_NO_EXPIRE || expire_ms > standing;
}

void session_keys_expire(server_ctx *ctx, hmq_slice session, long long expire_ms, bool only_later) {
    static const hmq_suffix keys[] = {HMQ_SUFFIX_SESSION,        HMQ_SUFFIX_SUBSCRIPTIONS, HMQ_SUFFIX_MESSAGES,
                                      HMQ_SUFFIX_LAST_PACKET_ID, HMQ_SUFFIX_RECEIVED,      HMQ_SUFFIX_PRODUCERS,
                                      HMQ_SUFFIX_REPLAYS,        HMQ_SUFFIX_CURSORS};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        server_string *name = session_key_name(session, keys[i]);
        server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
        if (sv.KeyType(key) != SERVER_EMPTY) {
            long long standing = sv.GetAbsExpire(key);
            long long due = keys[i] == HMQ_SUFFIX_LAST_PACKET_ID && expire_ms != SERVER_NO_EXPIRE
                                ? expire_ms + SWEEP_GRACE_MS
                                : expire_ms;
            if (only_later ? expires_later(due, standing) : due != standing) key_set_expiry(ctx, key, name, due);
        }
        sv.CloseKey(key);
        sv.FreeString(NULL, name);
    }
}

/* ---- fields ------------------------------------------------------------------------------------------------ */

/* 0 as well for what others wrote and nobody can mean. */
static uint64_t take_number(server_string *field, long long max) {
    long long number = 0;
    if (field == NULL) return 0;
    if (sv.StringToLongLong(field, &number) != SERVER_OK || number < 0 || number > max) number = 0;
    sv.FreeString(NULL, field);
    return (uint64_t)number;
}

/* Takes them from the hash: a tenth of what it costs to deliver a message to a session. */
static void take_facts(server_key *key, session_facts *facts) {
    server_string *round = NULL, *sent = NULL, *expiring = NULL, *policy = NULL, *max_bytes = NULL, *dropped = NULL;
    int opened = 0;
    overflow own;
    sv.HashGet(key, SERVER_HASH_CFIELDS, "round", &round, "sent", &sent, "expiring", &expiring, "overflow", &policy,
               "max_bytes", &max_bytes, "dropped", &dropped, NULL);
    sv.HashGet(key, SERVER_HASH_CFIELDS | SERVER_HASH_EXISTS, "epoch", &opened, NULL);
    facts->exists = true;
    facts->opened = opened != 0;
    facts->round = take_number(round, QUEUE_MAX_SERIAL / HMQ_PACKET_ID_MAX - 1);
    facts->sent = take_number(sent, QUEUE_MAX_SERIAL);
    facts->expiring = take_number(expiring, QUEUE_MAX_SERIAL);
    facts->max_bytes = take_number(max_bytes, OVERFLOW_MAX_BYTES);
    facts->dropped = take_number(dropped, QUEUE_MAX_SERIAL);
    facts->has_overflow = policy != NULL && overflow_of(slice_of(policy), &own);
    if (facts->has_overflow) facts->overflow = (uint8_t)own;
    if (policy != NULL) sv.FreeString(NULL, policy);
}

/* `entry`: where the facts are remembered, NULL: nowhere. */
static session_facts read_facts(server_ctx *ctx, hmq_slice session, session_entry *entry) {
    session_facts facts = {.usable = true, .expire_ms = SERVER_NO_EXPIRE};
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    int type = key == NULL ? SERVER_EMPTY : sv.KeyType(key);
    facts.usable = type == SERVER_HASH || type == SERVER_EMPTY;
    if (type == SERVER_HASH) {
        if (entry != NULL && entry->facts_known)
            facts = entry->facts;
        else
            take_facts(key, &facts);
        facts.expire_ms = sv.GetAbsExpire(key);
        if (entry != NULL) entry->facts = facts, entry->facts_known = true;
    }
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return facts;
}

session_facts session_facts_read(server_ctx *ctx, hmq_slice session) {
    return read_facts(ctx, session, index_opened(ctx, session));
}

bool session_facts_hold(server_ctx *ctx, const session_entry *entry) {
    if (!entry->facts_known) return true;
    session_facts now = read_facts(ctx, slice_of(entry->key), NULL);
    return now.exists == entry->facts.exists && now.opened == entry->facts.opened && now.round == entry->facts.round &&
           now.sent == entry->facts.sent && now.expiring == entry->facts.expiring &&
           now.has_overflow == entry->facts.has_overflow && now.overflow == entry->facts.overflow &&
           now.max_bytes == entry->facts.max_bytes && now.dropped == entry->facts.dropped;
}

void session_hash_outlive(server_ctx *ctx, hmq_slice session, long long expire_ms) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(key) == SERVER_HASH && expires_later(expire_ms, sv.GetAbsExpire(key)))
        key_set_expiry(ctx, key, name, expire_ms);
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

/* The name of the first key that holds something else than it should, NULL if all hold; what is expected of it. */
static server_string *wrong_key(server_ctx *ctx, hmq_slice session, const char **wanted) {
    static const struct {
        hmq_suffix suffix;
        int type;
        const char *text;
    } expected[] = {
        {HMQ_SUFFIX_MESSAGES, SERVER_ZSET, "a sorted set"}, {HMQ_SUFFIX_LAST_PACKET_ID, SERVER_STRING, "a string"},
        {HMQ_SUFFIX_SUBSCRIPTIONS, SERVER_HASH, "a hash"},  {HMQ_SUFFIX_SESSION, SERVER_HASH, "a hash"},
        {HMQ_SUFFIX_RECEIVED, SERVER_ZSET, "a sorted set"}, {HMQ_SUFFIX_PRODUCERS, SERVER_HASH, "a hash"},
        {HMQ_SUFFIX_REPLAYS, SERVER_HASH, "a hash"},        {HMQ_SUFFIX_CURSORS, SERVER_HASH, "a hash"}};
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        server_string *name = session_key_name(session, expected[i].suffix);
        server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
        int type = key == NULL ? SERVER_EMPTY : sv.KeyType(key);
        *wanted = expected[i].text;
        if (key != NULL) sv.CloseKey(key);
        if (type != SERVER_EMPTY && type != expected[i].type) return name;
        sv.FreeString(NULL, name);
    }
    return NULL;
}

bool session_types_hold(server_ctx *ctx, hmq_slice session) {
    const char *wanted;
    server_string *name = wrong_key(ctx, session, &wanted);
    if (name != NULL) sv.FreeString(NULL, name);
    return name == NULL;
}

bool session_check_types(server_ctx *ctx, hmq_slice session) {
    const char *wanted;
    server_string *name = wrong_key(ctx, session, &wanted);
    if (name == NULL) return true;
    reply_wrong_type(ctx, name, wanted);
    sv.FreeString(NULL, name);
    return false;
}

bool session_fact_write(server_ctx *ctx, hmq_slice session, const char *field, uint64_t value, long long expire_ms) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    int type = sv.KeyType(key);
    bool usable = type == SERVER_HASH || type == SERVER_EMPTY;
    if (usable) {
        server_string *text = sv.CreateStringFromLongLong(NULL, (long long)value);
        sv.HashSet(key, SERVER_HASH_CFIELDS, field, text, NULL);
        replicate(ctx, "HSET", "scs", name, field, text);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
        if (type == SERVER_EMPTY && expire_ms != SERVER_NO_EXPIRE) key_set_expiry(ctx, key, name, expire_ms);
        sv.FreeString(NULL, text);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return usable;
}
