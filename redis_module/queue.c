/* queue.c - the message queue of one session. */
#include "queue.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../src/packet_id.h"
#include "../src/session_key.h"
#include "../src/tbmq.h"
#include "index.h"
#include "session_hash.h"
#include "session_sweep.h"

#define MEMBER_MAX_BYTES 1024 /* longer session keys take the heap */
/* References looked at in one step when a walk drops expired ones, so that no page takes long. */
#define WALK_MAX_EXPIRED 10000
/* Names in one replicated command. */
#define REMOVE_CHUNK 1000
/* Queues at their limit that are remembered as free of expired references. */
#define CALM_MAX_SESSIONS 100000
/* Expiry times that follow the last message are moved in steps of 1/EXPIRY_SLACK, not with each message. */
#define EXPIRY_SLACK 64

/* ---- names ------------------------------------------------------------------------------------------------- */

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
    if (q->last_name != NULL) sv.FreeString(NULL, q->last_name);
    *q = (queue){0};
}

size_t queue_length(const queue *q) {
    return q->messages == NULL ? 0 : sv.ValueLength(q->messages);
}

static uint64_t serial_at_end(const queue *q, bool last) {
    if (queue_length(q) == 0) return 0;
    int found = last ? sv.ZsetLastInScoreRange(q->messages, 1, (double)QUEUE_MAX_SERIAL, 0, 0)
                     : sv.ZsetFirstInScoreRange(q->messages, 1, (double)QUEUE_MAX_SERIAL, 0, 0);
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

server_string *queue_counter_name(queue *q) {
    if (q->last_name == NULL) q->last_name = session_key_name(q->session, HMQ_SUFFIX_LAST_PACKET_ID);
    return q->last_name;
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
    server_key *key = sv.OpenKey(q->ctx, queue_counter_name(q), SERVER_READ);
    long long value = counter_value(key);
    if (key != NULL) sv.CloseKey(key);
    return value;
}

/* ---- removing ---------------------------------------------------------------------------------------------- */

/* Replicates the removal of references and of the messages that they name, in chunks. */
static void replicate_removal(queue *q, server_string **members, const bool *deleted, size_t count) {
    server_string *names[REMOVE_CHUNK];
    for (size_t from = 0; from < count; from += REMOVE_CHUNK) {
        size_t n = count - from < REMOVE_CHUNK ? count - from : REMOVE_CHUNK, named = 0;
        for (size_t i = from; i < from + n; i++) {
            if (deleted[i]) names[named++] = members[i];
        }
        sv.Replicate(q->ctx, "ZREM", "sv", q->messages_name, members + from, n);
        if (named > 0) sv.Replicate(q->ctx, "UNLINK", "v", names, named);
    }
}

/* The references are out of the set: removes their messages, replicates and notifies both. */
static void forget_messages(queue *q, server_string **members, size_t count) {
    bool small[64] = {false};
    bool *deleted = count <= sizeof small ? small : sv.Calloc(count, sizeof *deleted);
    for (size_t i = 0; i < count; i++) {
        if (packet_id_of(q->session, members[i]) == 0) continue; /* whatever it names is not ours */
        server_key *message = sv.OpenKey(q->ctx, members[i], SERVER_READ | SERVER_WRITE);
        deleted[i] =
            sv.KeyType(message) == SERVER_STRING; /* another type is somebody else's: only the reference goes */
        if (deleted[i]) sv.DeleteKey(message);
        sv.CloseKey(message);
        if (deleted[i]) index_notify(q->ctx, SERVER_NOTIFY_GENERIC, "del", members[i]);
    }
    replicate_removal(q, members, deleted, count);
    if (deleted != small) sv.Free(deleted);
    index_notify(q->ctx, SERVER_NOTIFY_ZSET, "zrem", q->messages_name);
    if (queue_length(q) > 0) return;
    q->emptied = true;
    index_notify(q->ctx, SERVER_NOTIFY_GENERIC, "del", q->messages_name);
}

/* Removes the members (names of message keys) from set and keyspace. */
static void remove_members(queue *q, server_string **members, size_t count) {
    for (size_t i = 0; i < count; i++) sv.ZsetRem(q->messages, members[i], NULL);
    forget_messages(q, members, count);
}

static void free_members(server_string **members, size_t count) {
    for (size_t i = 0; i < count; i++) sv.FreeString(NULL, members[i]);
}

/* Collects up to `most` of the oldest references behind `after`. */
static size_t collect_oldest(queue *q, uint64_t after, server_string **members, size_t most) {
    size_t found = 0;
    if (queue_length(q) == 0 || most == 0) return 0;
    sv.ZsetFirstInScoreRange(q->messages, (double)after, INFINITY, 1, 0);
    for (; !sv.ZsetRangeEndReached(q->messages) && found < most; sv.ZsetRangeNext(q->messages)) {
        members[found++] = sv.ZsetRangeCurrentElement(q->messages, NULL);
    }
    sv.ZsetRangeStop(q->messages);
    return found;
}

static size_t remove_oldest(queue *q, uint64_t after, size_t most) {
    server_string **members = sv.Alloc(most * sizeof *members);
    size_t found = collect_oldest(q, after, members, most);
    if (found > 0) remove_members(q, members, found);
    free_members(members, found);
    sv.Free(members);
    return found;
}

/* ---- the limit --------------------------------------------------------------------------------------------- */

/* Database and session key -> long long: no message in the queue expires before (ms since 1970).  Queues at their limit
 * would be searched for expired references by each ADD otherwise.  Only a hint: forgetting it costs one search. */
static server_dict *calm_until;

typedef struct calm_name {
    uint8_t *bytes;
    size_t len;
    uint8_t small[MEMBER_MAX_BYTES];
} calm_name;

static void calm_name_make(calm_name *name, int db, hmq_slice session) {
    name->len = sizeof db + session.len;
    name->bytes = name->len <= sizeof name->small ? name->small : sv.Alloc(name->len);
    memcpy(name->bytes, &db, sizeof db);
    memcpy(name->bytes + sizeof db, session.data, session.len);
}

static void calm_name_free(calm_name *name) {
    if (name->bytes != name->small) sv.Free(name->bytes);
}

static long long *calm_find(int db, hmq_slice session) {
    calm_name name;
    if (calm_until == NULL) return NULL;
    calm_name_make(&name, db, session);
    long long *known = sv.DictGetC(calm_until, name.bytes, name.len, NULL);
    calm_name_free(&name);
    return known;
}

void queue_forget_hints(void) {
    if (calm_until == NULL) return;
    server_dict_iter *iter = sv.DictIteratorStartC(calm_until, "^", NULL, 0);
    void *until;
    while (sv.DictNextC(iter, NULL, &until)) sv.Free(until);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, calm_until);
    calm_until = NULL;
}

static void calm_set(int db, hmq_slice session, long long until_ms) {
    if (calm_until != NULL && sv.DictSize(calm_until) >= CALM_MAX_SESSIONS) queue_forget_hints();
    if (calm_until == NULL) calm_until = sv.CreateDict(NULL);
    long long *known = calm_find(db, session);
    if (known == NULL) {
        calm_name name;
        calm_name_make(&name, db, session);
        known = sv.Alloc(sizeof *known);
        sv.DictSetC(calm_until, name.bytes, name.len, known);
        calm_name_free(&name);
    }
    *known = until_ms;
}

void queue_message_gone(int db, hmq_slice session) {
    long long *known = calm_find(db, session);
    if (known != NULL) *known = 0;
}

/* When the message expires (ms since 1970); 0 if it is gone already. */
static long long message_expiry(queue *q, server_string *member) {
    if (packet_id_of(q->session, member) == 0) return 0;
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ);
    if (message == NULL || sv.KeyType(message) == SERVER_EMPTY) {
        if (message != NULL) sv.CloseKey(message);
        return 0;
    }
    long long expire_ms = sv.GetAbsExpire(message);
    sv.CloseKey(message);
    return expire_ms == SERVER_NO_EXPIRE ? INT64_MAX : expire_ms;
}

/* Removes all references whose message is gone, unless it is known that there are none. */
static long long remove_expired(queue *q) {
    const long long *known = calm_find(sv.GetSelectedDb(q->ctx), q->session);
    if (known != NULL && sv.Milliseconds() < *known) return 0;
    size_t length = queue_length(q), gone = 0;
    long long begun_ms = sv.Milliseconds();
    server_string **members = sv.Alloc(length * sizeof *members);
    size_t found = collect_oldest(q, 0, members, length);
    long long earliest = INT64_MAX;
    for (size_t i = 0; i < found; i++) {
        long long expire_ms = message_expiry(q, members[i]);
        if (expire_ms != 0) {
            if (expire_ms < earliest) earliest = expire_ms;
            sv.FreeString(NULL, members[i]);
        } else {
            members[gone++] = members[i];
        }
    }
    if (gone > 0) remove_members(q, members, gone);
    free_members(members, gone);
    sv.Free(members);
    slow_step("holdmq-queue-search", begun_ms);
    calm_set(sv.GetSelectedDb(q->ctx), q->session, earliest);
    return (long long)gone;
}

/* Makes room for `count` new messages within `limit`; what is in flight, up to `sent`, stays.  Returns for how many there is room. */
static size_t make_room(queue *q, uint64_t sent, size_t count, size_t limit, queue_result *result) {
    size_t room = count < limit ? count : limit;
    if (queue_length(q) + room <= limit) return room;
    result->expired += remove_expired(q);
    size_t length = queue_length(q);
    if (length + room <= limit) return room;
    result->trimmed += (long long)remove_oldest(q, sent, length + room - limit);
    length = queue_length(q);
    return length >= limit ? 0 : length + room <= limit ? room : limit - length;
}

size_t queue_remove(queue *q, const uint16_t *packet_ids, size_t count) {
    server_string *small[64];
    if (queue_length(q) == 0) return 0;
    server_string **members = count <= sizeof small / sizeof small[0] ? small : sv.Alloc(count * sizeof *members);
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        int removed = 0;
        server_string *member = message_name(q->session, packet_ids[i]);
        sv.ZsetRem(q->messages, member, &removed);
        if (removed)
            members[found++] = member;
        else
            sv.FreeString(NULL, member);
    }
    if (found > 0) forget_messages(q, members, found);
    free_members(members, found);
    if (members != small) sv.Free(members);
    return found;
}

size_t queue_drop(queue *q) {
    size_t length = queue_length(q);
    long long begun_ms = sv.Milliseconds();
    if (length > 0) remove_oldest(q, 0, length);
    slow_step("holdmq-session-drop", begun_ms);
    server_key *last = sv.OpenKey(q->ctx, queue_counter_name(q), SERVER_WRITE);
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

/* The value to store: a message of TBMQ's kind carries its identifier inside.  The caller frees it. */
static server_string *value_of(const queue_item *item) {
    hmq_slice value = slice_of(item->value);
    if (value.len == 0 || value.data[0] != '{') return sv.HoldString(NULL, item->value);
    char *json = sv.Alloc(value.len + 20);
    size_t len = hmq_tbmq_with_packet_id((const char *)value.data, value.len, item->packet_id, json, value.len + 20);
    server_string *string = len > 0 ? sv.CreateString(NULL, json, len) : sv.HoldString(NULL, item->value);
    sv.Free(json);
    return string;
}

static void store_message(queue *q, server_string *member, const queue_item *item) {
    server_string *value = value_of(item);
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_WRITE);
    sv.StringSet(message, value);
    sv.SetAbsExpire(message, item->expire_ms);
    sv.CloseKey(message);
    sv.Replicate(q->ctx, "SET", "sscl", member, value, "PXAT", item->expire_ms);
    sv.FreeString(NULL, value);
    index_notify(q->ctx, SERVER_NOTIFY_STRING, "set", member);
    index_notify(q->ctx, SERVER_NOTIFY_GENERIC, "expire", member);
}

static void create_counter(queue *q, server_key *last, hmq_slice digits, long long expire_ms) {
    server_string *value = sv.CreateString(NULL, (const char *)digits.data, digits.len);
    sv.StringSet(last, value);
    sv.Replicate(q->ctx, "SET", "ss", q->last_name, value);
    index_notify(q->ctx, SERVER_NOTIFY_STRING, "set", q->last_name);
    if (expire_ms != SERVER_NO_EXPIRE) key_set_expiry(q->ctx, last, q->last_name, expire_ms);
    sv.FreeString(NULL, value);
}

/* Writes the digits in place, so that the expiry stays. */
static void overwrite_counter(queue *q, server_key *last, hmq_slice digits) {
    size_t old;
    char *place = sv.StringDMA(last, &old, SERVER_READ | SERVER_WRITE);
    if (old != digits.len) {
        sv.StringTruncate(last, digits.len);
        place = sv.StringDMA(last, &old, SERVER_READ | SERVER_WRITE);
    }
    memcpy(place, digits.data, digits.len);
    sv.Replicate(q->ctx, "SET", "sbc", q->last_name, digits.data, digits.len, "KEEPTTL");
    index_notify(q->ctx, SERVER_NOTIFY_STRING, "set", q->last_name);
}

static void store_counter(queue *q, server_key *last, uint16_t packet_id, long long expire_ms) {
    char text[8];
    hmq_slice digits = {(const uint8_t *)text, (size_t)snprintf(text, sizeof text, "%u", packet_id)};
    if (sv.KeyType(last) == SERVER_EMPTY) {
        create_counter(q, last, digits, expire_ms);
        return;
    }
    overwrite_counter(q, last, digits);
    if (expires_later(expire_ms, sv.GetAbsExpire(last))) key_set_expiry(q->ctx, last, q->last_name, expire_ms);
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

static long long newest_expiry(const queue_item *items, size_t count) {
    long long newest = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i].expire_ms > newest) newest = items[i].expire_ms;
    }
    return newest;
}

static long long soonest_expiry(const queue_item *items, size_t count, long long soonest) {
    for (size_t i = 0; i < count; i++) {
        if (items[i].expire_ms < soonest) soonest = items[i].expire_ms;
    }
    return soonest;
}

/* The serial of the identifier handed out last: behind all that were used, also when the messages behind the last one in
 * the queue were acknowledged or trimmed. */
static uint64_t serial_before(const session_facts *facts, uint64_t last_in_queue, uint16_t counter) {
    uint64_t round = hmq_serial_round(last_in_queue, counter);
    return hmq_serial_of(round > facts->round ? round : facts->round, counter);
}

/* The queue's keys end with the session, or not before its last message.  Returns when. */
static long long settle_expiry(queue *q, const session_facts *facts, long long newest_ms, bool was_empty) {
    long long now_ms = sv.Milliseconds();
    was_empty = was_empty || q->emptied;
    long long standing = was_empty ? now_ms : sv.GetAbsExpire(q->messages);
    bool move = facts->opened ? facts->expire_ms != standing : expires_later(newest_ms, standing);
    if (!move) return standing;
    long long expire_ms = facts->opened ? facts->expire_ms : newest_ms + (newest_ms - now_ms) / EXPIRY_SLACK;
    if (!was_empty || expire_ms != SERVER_NO_EXPIRE) key_set_expiry(q->ctx, q->messages, q->messages_name, expire_ms);
    if (facts->exists && !facts->opened) session_hash_outlive(q->ctx, q->session, expire_ms);
    return expire_ms;
}

/* Stores the items one behind the other.  Returns how many: fewer only if no identifier was left. */
static size_t store_items(queue *q, queue_item *items, size_t count, server_string **members, uint16_t *packet_id,
                          uint64_t *serial) {
    uint64_t previous = queue_last_serial(q);
    size_t done = 0;
    while (done < count && place_item(q, &items[done], packet_id, serial, &members[done])) {
        if (queue_length(q) == 0) previous = 0; /* placing it took the last, expired, reference */
        store_message(q, members[done], &items[done]);
        sv.ZsetAdd(q->messages, (double)*serial, members[done], NULL);
        items[done].previous = previous;
        previous = *serial;
        done++;
    }
    return done;
}

static size_t append(queue *q, server_key *last, const session_facts *facts, long long counter, queue_item *items,
                     size_t count, queue_result *result) {
    bool was_empty = queue_length(q) == 0;
    uint16_t packet_id = (uint16_t)counter;
    uint64_t serial = serial_before(facts, queue_last_serial(q), packet_id);
    server_string *small[16];
    server_string **members = count <= 16 ? small : sv.Alloc(count * sizeof *members);
    size_t done = store_items(q, items, count, members, &packet_id, &serial);
    if (done > 0) {
        replicate_references(q, members, items, done);
        index_notify(q->ctx, SERVER_NOTIFY_ZSET, "zadd", q->messages_name);
        result->keys_expire_ms = settle_expiry(q, facts, newest_expiry(items, done), was_empty);
        long long counter_expire_ms = result->keys_expire_ms;
        if (facts->opened && counter_expire_ms != SERVER_NO_EXPIRE) counter_expire_ms += SWEEP_GRACE_MS;
        store_counter(q, last, packet_id, counter_expire_ms);
        uint64_t round = hmq_serial_round(serial, packet_id);
        if (round > facts->round) session_fact_write(q->ctx, q->session, "round", round, result->keys_expire_ms);
    }
    result->last_serial = serial;
    free_members(members, done);
    if (members != small) sv.Free(members);
    return done;
}

queue_status queue_add(queue *q, queue_item *items, size_t count, size_t limit, queue_result *result) {
    *result = (queue_result){0};
    server_key *last = sv.OpenKey(q->ctx, queue_counter_name(q), SERVER_READ | SERVER_WRITE);
    long long counter = counter_value(last);
    session_facts facts = session_facts_read(q->ctx, q->session);
    if (counter < 0 || !facts.usable) {
        sv.CloseKey(last);
        return counter < 0 ? QUEUE_BAD_COUNTER : QUEUE_BAD_SESSION;
    }
    size_t dropped =
        count - make_room(q, facts.sent, count, limit, result); /* the oldest of the new ones: trimmed at once */
    for (size_t i = 0; i < dropped; i++) items[i].packet_id = 0, items[i].serial = 0;
    result->trimmed += (long long)dropped;
    size_t done = append(q, last, &facts, counter, items + dropped, count - dropped, result);
    long long *calm = calm_find(sv.GetSelectedDb(q->ctx), q->session);
    if (calm != NULL) *calm = soonest_expiry(items + dropped, done, *calm);
    sv.CloseKey(last);
    counters.session_trimmed += (unsigned long long)result->trimmed;
    counters.session_expired += (unsigned long long)result->expired;
    return dropped + done == count ? QUEUE_OK : QUEUE_FULL;
}

bool queue_set_sent(queue *q, uint64_t serial) {
    session_facts facts = session_facts_read(q->ctx, q->session);
    long long counter = queue_last_packet_id(q);
    uint64_t newest = serial_before(&facts, queue_last_serial(q), counter < 0 ? 0 : (uint16_t)counter);
    if (serial > newest) serial = newest;
    if (!facts.usable) return false;
    if (serial <= facts.sent) return true;
    long long expire_ms = queue_length(q) == 0 ? sv.Milliseconds() : sv.GetAbsExpire(q->messages);
    return session_fact_write(q->ctx, q->session, "sent", serial, expire_ms);
}

/* ---- walking ----------------------------------------------------------------------------------------------- */

/* Visits one reference; false if its message is gone. */
static bool visit_member(queue *q, server_string *member, uint64_t serial, queue_visit visit, void *context,
                         size_t *bytes) {
    uint16_t packet_id = packet_id_of(q->session, member);
    if (packet_id == 0) return false; /* no message of this session, whatever it is */
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ);
    if (message == NULL) return false;
    bool live = sv.KeyType(message) == SERVER_STRING;
    if (live) {
        size_t len;
        const char *value = sv.StringDMA(message, &len, SERVER_READ);
        visit(context, serial, packet_id, value, len);
        *bytes += len;
    }
    sv.CloseKey(message);
    return live;
}

/* References found without their message, to be removed after the walk: removing would end it. */
typedef struct gone_list {
    server_string **members;
    size_t count, room;
} gone_list;

static void gone_append(gone_list *gone, server_string *member) {
    if (gone->count == gone->room) {
        gone->room = gone->room == 0 ? 64 : gone->room * 2;
        gone->members = sv.Realloc(gone->members, gone->room * sizeof *gone->members);
    }
    gone->members[gone->count++] = member;
}

static bool is_full(const queue_walked *walked, const queue_range *range, size_t bytes) {
    return walked->visited >= range->count || (walked->visited > 0 && bytes >= range->bytes);
}

queue_walked queue_walk(queue *q, queue_range range, queue_visit visit, void *context) {
    queue_walked walked = {0};
    gone_list gone = {0};
    size_t bytes = 0;
    if (queue_length(q) == 0 || range.up_to == 0) return walked;
    double last = range.up_to == UINT64_MAX ? INFINITY : (double)range.up_to;
    sv.ZsetFirstInScoreRange(q->messages, (double)range.after, last, 1, 0);
    for (; !sv.ZsetRangeEndReached(q->messages) && !walked.more; sv.ZsetRangeNext(q->messages)) {
        double score;
        server_string *member = sv.ZsetRangeCurrentElement(q->messages, &score);
        bool live;
        if (!(score >= 1 && score <= (double)QUEUE_MAX_SERIAL)) {
            live = false; /* somebody else's entry: no serial */
        } else if (is_full(&walked, &range, bytes)) {
            live = walked.more = gone.count == WALK_MAX_EXPIRED || message_expiry(q, member) != 0;
        } else {
            live = visit_member(q, member, (uint64_t)score, visit, context, &bytes);
            if (live) walked.visited++, walked.last = (uint64_t)score;
        }
        if (live)
            sv.FreeString(NULL, member);
        else
            gone_append(&gone, member);
        if (gone.count == WALK_MAX_EXPIRED) walked.more = true;
    }
    sv.ZsetRangeStop(q->messages);
    if (gone.count > 0) remove_members(q, gone.members, gone.count);
    free_members(gone.members, gone.count);
    sv.Free(gone.members);
    walked.expired = (long long)gone.count;
    counters.session_expired += gone.count;
    return walked;
}

size_t queue_count_up_to(const queue *q, uint64_t serial, size_t most) {
    size_t count = 0;
    if (queue_length(q) == 0 || serial == 0) return 0;
    sv.ZsetFirstInScoreRange(q->messages, -INFINITY, (double)serial, 0, 0);
    for (; count < most && !sv.ZsetRangeEndReached(q->messages); sv.ZsetRangeNext(q->messages)) count++;
    sv.ZsetRangeStop(q->messages);
    return count;
}

/* ---- replacing --------------------------------------------------------------------------------------------- */

bool queue_replace(queue *q, uint16_t packet_id, queue_rewrite rewrite, void *context) {
    double score;
    server_string *member = message_name(q->session, packet_id);
    server_key *message = NULL;
    bool there = queue_length(q) > 0 && sv.ZsetScore(q->messages, member, &score) == SERVER_OK;
    if (there) {
        message = sv.OpenKey(q->ctx, member, SERVER_READ | SERVER_WRITE);
        there = sv.KeyType(message) == SERVER_STRING;
    }
    if (there) {
        size_t len;
        const char *value = sv.StringDMA(message, &len, SERVER_READ);
        server_string *replaced = rewrite(context, packet_id, value, len);
        long long expire_ms = sv.GetAbsExpire(message);
        sv.StringSet(message, replaced);
        sv.SetAbsExpire(message, expire_ms);
        sv.Replicate(q->ctx, "SET", "ssc", member, replaced, "KEEPTTL");
        index_notify(q->ctx, SERVER_NOTIFY_STRING, "set", member);
        sv.FreeString(NULL, replaced);
    }
    if (message != NULL) sv.CloseKey(message);
    sv.FreeString(NULL, member);
    return there;
}
