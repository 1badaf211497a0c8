/* queue.c - the message queue of one session. */
#include "queue.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../src/packet_id.h"
#include "../src/session_key.h"
#include "index.h"

#define MEMBER_MAX_BYTES 1024 /* longer session keys take the heap */
/* References looked at in one step when a walk drops expired ones, so that no page takes long. */
#define WALK_MAX_EXPIRED 10000
/* Names in one replicated command. */
#define REMOVE_CHUNK 1000
/* Expiry times that follow the last message are moved in steps of 1/EXPIRY_SLACK, not with each message. */
#define EXPIRY_SLACK 64

/* ---- names ------------------------------------------------------------------------------------------------- */

server_string *session_key_name(hmq_slice session, int suffix) {
    size_t len;
    const char *text = hmq_suffix_text((hmq_suffix)suffix, &len);
    char small[MEMBER_MAX_BYTES];
    size_t total = session.len + len;
    char *name = total <= sizeof small ? small : sv.Alloc(total);
    memcpy(name, session.data, session.len);
    memcpy(name + session.len, text, len);
    server_string *string = sv.CreateString(NULL, name, total);
    if (name != small) sv.Free(name);
    return string;
}

static server_string *message_name(hmq_slice session, uint16_t packet_id) {
    char small[MEMBER_MAX_BYTES];
    size_t capacity = session.len + 16;
    char *name = capacity <= sizeof small ? small : sv.Alloc(capacity);
    size_t len = hmq_message_key((const char *)session.data, session.len, packet_id, name, capacity);
    server_string *string = sv.CreateString(NULL, name, len);
    if (name != small) sv.Free(name);
    return string;
}

static uint16_t packet_id_of(hmq_slice session, const server_string *member) {
    hmq_slice name = slice_of(member);
    return hmq_message_key_packet_id((const char *)session.data, session.len, (const char *)name.data, name.len);
}

/* ---- opening ----------------------------------------------------------------------------------------------- */

bool queue_open(queue *q, server_ctx *ctx, hmq_slice session, int mode) {
    *q = (queue){.ctx = ctx, .session = session};
    q->messages_name = session_key_name(session, HMQ_SUFFIX_MESSAGES);
    q->last_name = session_key_name(session, HMQ_SUFFIX_LAST_PACKET_ID);
    q->messages = sv.OpenKey(ctx, q->messages_name, mode);
    int type = q->messages == NULL ? SERVER_EMPTY : sv.KeyType(q->messages);
    if (type == SERVER_EMPTY || type == SERVER_ZSET) return true;
    q->wrong_type = q->messages_name;
    q->wrong_expected = "a sorted set";
    return false;
}

void queue_close(queue *q) {
    if (q->messages != NULL) sv.CloseKey(q->messages);
    sv.FreeString(NULL, q->messages_name);
    sv.FreeString(NULL, q->last_name);
    *q = (queue){0};
}

size_t queue_length(const queue *q) {
    return q->messages == NULL ? 0 : sv.ValueLength(q->messages);
}

static uint64_t serial_at_end(const queue *q, bool last) {
    if (queue_length(q) == 0) return 0;
    int found = last ? sv.ZsetLastInScoreRange(q->messages, -INFINITY, INFINITY, 0, 0)
                     : sv.ZsetFirstInScoreRange(q->messages, -INFINITY, INFINITY, 0, 0);
    double score = 0;
    if (found == SERVER_OK) {
        server_string *member = sv.ZsetRangeCurrentElement(q->messages, &score);
        if (member != NULL) sv.FreeString(NULL, member);
    }
    sv.ZsetRangeStop(q->messages);
    return score > 0 ? (uint64_t)score : 0;
}

uint64_t queue_first_serial(const queue *q) {
    return serial_at_end(q, false);
}

uint64_t queue_last_serial(const queue *q) {
    return serial_at_end(q, true);
}

static long long counter_value(server_key *key) {
    if (key == NULL || sv.KeyType(key) == SERVER_EMPTY) return 0;
    if (sv.KeyType(key) != SERVER_STRING) return -1;
    size_t len;
    const char *digits = sv.StringDMA(key, &len, SERVER_READ);
    if (len == 0 || len > 5) return -1;
    long long value = 0;
    for (size_t i = 0; i < len; i++) {
        if (digits[i] < '0' || digits[i] > '9') return -1;
        value = value * 10 + (digits[i] - '0');
    }
    return value <= HMQ_PACKET_ID_MAX ? value : -1;
}

long long queue_last_packet_id(queue *q) {
    server_key *key = sv.OpenKey(q->ctx, q->last_name, SERVER_READ);
    long long value = counter_value(key);
    if (key != NULL) sv.CloseKey(key);
    return value;
}

/* ---- expiry ------------------------------------------------------------------------------------------------ */

/* Moves the key's expiry; replicated.  expire_ms SERVER_NO_EXPIRE: none. */
static void set_expiry(server_ctx *ctx, server_key *key, server_string *name, long long expire_ms) {
    sv.SetAbsExpire(key, expire_ms);
    if (expire_ms == SERVER_NO_EXPIRE) sv.Replicate(ctx, "PERSIST", "s", name);
    else sv.Replicate(ctx, "PEXPIREAT", "sl", name, expire_ms);
    index_notify(ctx, SERVER_NOTIFY_GENERIC, expire_ms == SERVER_NO_EXPIRE ? "persist" : "expire", name);
}

static bool later(long long expire_ms, long long standing) {
    if (standing == SERVER_NO_EXPIRE) return false;
    return expire_ms == SERVER_NO_EXPIRE || expire_ms > standing;
}

void session_keys_expire(server_ctx *ctx, hmq_slice session, long long expire_ms, bool only_later) {
    static const hmq_suffix keys[] = {HMQ_SUFFIX_SESSION, HMQ_SUFFIX_SUBSCRIPTIONS, HMQ_SUFFIX_MESSAGES,
                                      HMQ_SUFFIX_LAST_PACKET_ID, HMQ_SUFFIX_RECEIVED};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        server_string *name = session_key_name(session, keys[i]);
        server_key *key = sv.OpenKey(ctx, name, SERVER_WRITE);
        if (sv.KeyType(key) != SERVER_EMPTY) {
            long long standing = sv.GetAbsExpire(key);
            if (only_later ? later(expire_ms, standing) : expire_ms != standing) set_expiry(ctx, key, name, expire_ms);
        }
        sv.CloseKey(key);
        sv.FreeString(NULL, name);
    }
}

/* ---- the session's hash: round and end of life ------------------------------------------------------------- */

typedef struct session_facts {
    bool opened;
    uint64_t round;
    long long expire_ms; /* of the hash; SERVER_NO_EXPIRE if none or if there is no hash */
} session_facts;

static session_facts read_facts(const queue *q) {
    session_facts facts = {false, 0, SERVER_NO_EXPIRE};
    server_string *name = session_key_name(q->session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(q->ctx, name, SERVER_READ);
    if (key != NULL && sv.KeyType(key) == SERVER_HASH) {
        server_string *epoch = NULL, *round = NULL;
        long long number = 0;
        sv.HashGet(key, SERVER_HASH_CFIELDS, "epoch", &epoch, "round", &round, NULL);
        facts.opened = epoch != NULL;
        facts.expire_ms = sv.GetAbsExpire(key);
        if (round != NULL && sv.StringToLongLong(round, &number) == SERVER_OK && number > 0) facts.round = (uint64_t)number;
        if (epoch != NULL) sv.FreeString(NULL, epoch);
        if (round != NULL) sv.FreeString(NULL, round);
    }
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return facts;
}

static void write_round(const queue *q, uint64_t round, long long expire_ms) {
    server_string *name = session_key_name(q->session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(q->ctx, name, SERVER_WRITE);
    int type = sv.KeyType(key);
    if (type == SERVER_HASH || type == SERVER_EMPTY) {
        server_string *value = sv.CreateStringFromLongLong(NULL, (long long)round);
        sv.HashSet(key, SERVER_HASH_CFIELDS, "round", value, NULL);
        sv.Replicate(q->ctx, "HSET", "scs", name, "round", value);
        index_notify(q->ctx, SERVER_NOTIFY_HASH, "hset", name);
        if (type == SERVER_EMPTY) set_expiry(q->ctx, key, name, expire_ms);
        sv.FreeString(NULL, value);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

/* ---- removing ---------------------------------------------------------------------------------------------- */

/* The references are out of the set: removes their messages, replicates and notifies both, in chunks. */
static void forget_messages(queue *q, server_string **members, size_t count) {
    for (size_t i = 0; i < count; i++) {
        server_key *message = sv.OpenKey(q->ctx, members[i], SERVER_WRITE);
        bool there = sv.KeyType(message) != SERVER_EMPTY;
        if (there) sv.DeleteKey(message);
        sv.CloseKey(message);
        if (there) index_notify(q->ctx, SERVER_NOTIFY_GENERIC, "del", members[i]);
    }
    for (size_t from = 0; from < count; from += REMOVE_CHUNK) {
        size_t n = count - from < REMOVE_CHUNK ? count - from : REMOVE_CHUNK;
        sv.Replicate(q->ctx, "ZREM", "sv", q->messages_name, members + from, n);
        sv.Replicate(q->ctx, "UNLINK", "v", members + from, n);
    }
    index_notify(q->ctx, SERVER_NOTIFY_ZSET, "zrem", q->messages_name);
    if (queue_length(q) == 0) index_notify(q->ctx, SERVER_NOTIFY_GENERIC, "del", q->messages_name);
}

/* Removes the members (names of message keys) from set and keyspace. */
static void remove_members(queue *q, server_string **members, size_t count) {
    for (size_t i = 0; i < count; i++) sv.ZsetRem(q->messages, members[i], NULL);
    forget_messages(q, members, count);
}

static void free_members(server_string **members, size_t count) {
    for (size_t i = 0; i < count; i++) sv.FreeString(NULL, members[i]);
}

/* Collects up to `most` oldest references whose message expired (or, if `any`, whatever its state). */
static size_t collect_oldest(queue *q, server_string **members, size_t most, bool any) {
    size_t found = 0;
    if (queue_length(q) == 0 || most == 0) return 0;
    sv.ZsetFirstInScoreRange(q->messages, -INFINITY, INFINITY, 0, 0);
    while (!sv.ZsetRangeEndReached(q->messages) && found < most) {
        server_string *member = sv.ZsetRangeCurrentElement(q->messages, NULL);
        if (any || !sv.KeyExists(q->ctx, member)) members[found++] = member;
        else sv.FreeString(NULL, member);
        sv.ZsetRangeNext(q->messages);
    }
    sv.ZsetRangeStop(q->messages);
    return found;
}

static size_t remove_oldest(queue *q, size_t most, bool any) {
    server_string **members = sv.Alloc(most * sizeof *members);
    size_t found = collect_oldest(q, members, most, any);
    if (found > 0) remove_members(q, members, found);
    free_members(members, found);
    sv.Free(members);
    return found;
}

/* Makes room, so that `keep` references are left at most. */
static void trim(queue *q, size_t keep, queue_result *result) {
    size_t length = queue_length(q);
    if (length <= keep) return;
    /* All expired references go, not only as many as are needed: the scan was paid for. */
    result->expired += (long long)remove_oldest(q, length, false);
    length = queue_length(q);
    if (length > keep) result->trimmed += (long long)remove_oldest(q, length - keep, true);
}

size_t queue_remove(queue *q, const uint16_t *packet_ids, size_t count) {
    if (queue_length(q) == 0) return 0;
    server_string **members = sv.Alloc(count * sizeof *members);
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        int removed = 0;
        server_string *member = message_name(q->session, packet_ids[i]);
        sv.ZsetRem(q->messages, member, &removed);
        if (removed) members[found++] = member;
        else sv.FreeString(NULL, member);
    }
    if (found > 0) forget_messages(q, members, found);
    free_members(members, found);
    sv.Free(members);
    return found;
}

size_t queue_drop(queue *q) {
    size_t length = queue_length(q);
    if (length > 0) remove_oldest(q, length, true);
    server_key *last = sv.OpenKey(q->ctx, q->last_name, SERVER_WRITE);
    if (sv.KeyType(last) != SERVER_EMPTY) {
        sv.DeleteKey(last);
        sv.Replicate(q->ctx, "UNLINK", "s", q->last_name);
        index_notify(q->ctx, SERVER_NOTIFY_GENERIC, "del", q->last_name);
    }
    sv.CloseKey(last);
    return length;
}

/* ---- adding ------------------------------------------------------------------------------------------------ */

/* A reference under this identifier stands in the way: a live message keeps it, an expired one gives it up. */
static bool identifier_taken(queue *q, server_string *member) {
    double score;
    if (sv.ZsetScore(q->messages, member, &score) != SERVER_OK) return false;
    if (sv.KeyExists(q->ctx, member)) return true;
    remove_members(q, &member, 1);
    return false;
}

static void store_message(queue *q, server_string *member, const queue_item *item) {
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_WRITE);
    sv.StringSet(message, item->value);
    sv.SetAbsExpire(message, item->expire_ms);
    sv.CloseKey(message);
    sv.Replicate(q->ctx, "SET", "sscl", member, item->value, "PXAT", item->expire_ms);
    index_notify(q->ctx, SERVER_NOTIFY_STRING, "set", member);
    index_notify(q->ctx, SERVER_NOTIFY_GENERIC, "expire", member);
}

/* Writes the counter in place, so that its expiry stays. */
static void store_counter(queue *q, server_key *last, uint16_t packet_id, long long expire_ms) {
    char digits[8];
    size_t len = (size_t)snprintf(digits, sizeof digits, "%u", packet_id);
    if (sv.KeyType(last) == SERVER_EMPTY) {
        server_string *value = sv.CreateString(NULL, digits, len);
        sv.StringSet(last, value);
        sv.FreeString(NULL, value);
        if (expire_ms != SERVER_NO_EXPIRE) sv.SetAbsExpire(last, expire_ms);
        if (expire_ms != SERVER_NO_EXPIRE) sv.Replicate(q->ctx, "SET", "sbcl", q->last_name, digits, len, "PXAT", expire_ms);
        else sv.Replicate(q->ctx, "SET", "sb", q->last_name, digits, len);
    } else {
        size_t old;
        char *place = sv.StringDMA(last, &old, SERVER_READ | SERVER_WRITE);
        if (old != len) {
            sv.StringTruncate(last, len);
            place = sv.StringDMA(last, &old, SERVER_READ | SERVER_WRITE);
        }
        memcpy(place, digits, len);
        sv.Replicate(q->ctx, "SET", "sbc", q->last_name, digits, len, "KEEPTTL");
        if (later(expire_ms, sv.GetAbsExpire(last))) set_expiry(q->ctx, last, q->last_name, expire_ms);
    }
    index_notify(q->ctx, SERVER_NOTIFY_STRING, "set", q->last_name);
}

static void replicate_references(queue *q, server_string **members, const queue_item *items, size_t count) {
    if (count == 1) {
        sv.Replicate(q->ctx, "ZADD", "sls", q->messages_name, (long long)items[0].serial, members[0]);
        return;
    }
    for (size_t from = 0; from < count; from += REMOVE_CHUNK) {
        server_string *pairs[2 * REMOVE_CHUNK];
        size_t n = count - from < REMOVE_CHUNK ? count - from : REMOVE_CHUNK;
        for (size_t i = 0; i < n; i++) {
            pairs[2 * i] = sv.CreateStringFromLongLong(NULL, (long long)items[from + i].serial);
            pairs[2 * i + 1] = members[from + i];
        }
        sv.Replicate(q->ctx, "ZADD", "sv", q->messages_name, pairs, 2 * n);
        for (size_t i = 0; i < n; i++) sv.FreeString(NULL, pairs[2 * i]);
    }
}

/* Gives the item its identifier, serial and place.  False: no identifier is free. */
static bool place_item(queue *q, queue_item *item, uint16_t *packet_id, uint64_t *serial, server_string **member) {
    bool may_collide = queue_length(q) > 0;
    for (uint32_t tries = 0; tries < HMQ_PACKET_ID_MAX; tries++) {
        *packet_id = hmq_packet_id_next(*packet_id);
        *serial += 1;
        *member = message_name(q->session, *packet_id);
        if (!may_collide || !identifier_taken(q, *member)) {
            item->packet_id = *packet_id;
            item->serial = *serial;
            return true;
        }
        sv.FreeString(NULL, *member);
    }
    return false;
}

/* When the queue's own keys have to end: with the session if it was opened, else after the last message. */
static long long keys_expire(const session_facts *facts, long long newest_ms, long long now_ms) {
    if (facts->opened) return facts->expire_ms;
    return newest_ms + (newest_ms - now_ms) / EXPIRY_SLACK;
}

static long long newest_expiry(const queue_item *items, size_t count) {
    long long newest = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i].expire_ms > newest) newest = items[i].expire_ms;
    }
    return newest;
}

queue_status queue_add(queue *q, queue_item *items, size_t count, size_t limit, queue_result *result) {
    *result = (queue_result){0};
    server_key *last = sv.OpenKey(q->ctx, q->last_name, SERVER_WRITE);
    long long counter = counter_value(last);
    if (counter < 0) {
        sv.CloseKey(last);
        return QUEUE_BAD_COUNTER;
    }
    size_t dropped = count > limit ? count - limit : 0; /* would be trimmed at once: never stored */
    for (size_t i = 0; i < dropped; i++) items[i].packet_id = 0, items[i].serial = 0;
    result->trimmed = (long long)dropped;
    items += dropped;
    count -= dropped;
    trim(q, limit - count, result);

    long long newest_ms = newest_expiry(items, count);
    bool was_empty = queue_length(q) == 0;
    uint64_t serial = queue_last_serial(q);
    long long standing = was_empty ? 0 : sv.GetAbsExpire(q->messages);
    bool facts_needed = was_empty || serial >= HMQ_PACKET_ID_MAX || later(newest_ms, standing);
    session_facts facts = facts_needed ? read_facts(q) : (session_facts){0};
    if (was_empty) serial = hmq_serial_of(facts.round, (uint16_t)counter);
    uint64_t previous = was_empty ? 0 : serial;

    server_string *small[16];
    server_string **members = count <= 16 ? small : sv.Alloc(count * sizeof *members);
    uint16_t packet_id = (uint16_t)counter;
    size_t done = 0;
    while (done < count && place_item(q, &items[done], &packet_id, &serial, &members[done])) {
        store_message(q, members[done], &items[done]);
        sv.ZsetAdd(q->messages, (double)serial, members[done], NULL);
        items[done].previous = previous;
        previous = serial;
        done++;
    }
    if (done > 0) {
        replicate_references(q, members, items, done);
        index_notify(q->ctx, SERVER_NOTIFY_ZSET, "zadd", q->messages_name);
        long long expire_ms = facts_needed ? keys_expire(&facts, newest_ms, sv.Milliseconds()) : standing;
        if (was_empty ? expire_ms != SERVER_NO_EXPIRE : facts_needed && later(expire_ms, standing)) {
            set_expiry(q->ctx, q->messages, q->messages_name, expire_ms);
        }
        store_counter(q, last, packet_id, expire_ms);
        uint64_t round = hmq_serial_round(serial, packet_id);
        if (round > 0 && round != facts.round) write_round(q, round, expire_ms);
    }
    sv.CloseKey(last);
    free_members(members, done);
    if (members != small) sv.Free(members);
    result->last_serial = serial;
    counters.session_trimmed += (unsigned long long)result->trimmed;
    counters.session_expired += (unsigned long long)result->expired;
    return done == count ? QUEUE_OK : QUEUE_FULL;
}

/* ---- walking ----------------------------------------------------------------------------------------------- */

/* Visits one reference; false if its message is gone. */
static bool visit_member(queue *q, server_string *member, uint64_t serial, queue_visit visit, void *context, size_t *bytes) {
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ);
    if (message == NULL) return false;
    bool live = sv.KeyType(message) == SERVER_STRING;
    if (live) {
        size_t len;
        const char *value = sv.StringDMA(message, &len, SERVER_READ);
        visit(context, serial, packet_id_of(q->session, member), value, len);
        *bytes += len;
    }
    sv.CloseKey(message);
    return live;
}

size_t queue_walk(queue *q, uint64_t after, size_t count, size_t bytes, queue_visit visit, void *context, bool *more,
                  long long *expired) {
    size_t visited = 0, seen = 0, gone_count = 0, gone_room = 0;
    server_string **gone = NULL;
    *more = false;
    *expired = 0;
    if (queue_length(q) == 0) return 0;
    sv.ZsetFirstInScoreRange(q->messages, (double)after, INFINITY, 1, 0);
    while (!sv.ZsetRangeEndReached(q->messages)) {
        if (visited == count || (visited > 0 && seen >= bytes) || gone_count == WALK_MAX_EXPIRED) {
            *more = true;
            break;
        }
        double score;
        server_string *member = sv.ZsetRangeCurrentElement(q->messages, &score);
        if (visit_member(q, member, (uint64_t)score, visit, context, &seen)) {
            visited++;
            sv.FreeString(NULL, member);
        } else {
            if (gone_count == gone_room) {
                gone_room = gone_room == 0 ? 64 : gone_room * 2;
                gone = sv.Realloc(gone, gone_room * sizeof *gone);
            }
            gone[gone_count++] = member;
        }
        sv.ZsetRangeNext(q->messages);
    }
    sv.ZsetRangeStop(q->messages);
    if (gone_count > 0) remove_members(q, gone, gone_count);
    free_members(gone, gone_count);
    sv.Free(gone);
    *expired = (long long)gone_count;
    counters.session_expired += gone_count;
    return visited;
}
