/* add.c - appends messages to a queue. */
#include "queue/parts.h"

#include <string.h>

#include "base/assert.h"
#include "base/decimal.h"
#include "topic/packet_id.h"
#include "topic/record.h"
#include "topic/tbmq.h"
#include "server/keyspace.h"
#include "server/memory.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "index/index.h"
#include "index/sessions.h"
#include "queue/allowance.h"
#include "queue/full.h"
#include "queue/notes.h"

/* References in one replicated command. */
#define ADD_CHUNK 1000
#define SHORT_VALUE 128     /* bytes; no server embeds longer ones */
#define VALUE_ON_STACK 2048 /* bytes; longer messages take the heap */
/* An expiry that follows the last message is extended in steps of 1/EXPIRY_SLACK, not with each message. */
#define EXPIRY_SLACK 64
/* From this length on a tree is faster than a list, which servers keep up to LISTED_MOST entries by default. */
#define SORTED_FROM 32
#define LISTED_MOST 128

/* ---- references -------------------------------------------------------------------------------------------- */

/* Would the next `count` references be put into a list, which is searched from its beginning for each of them?  That
 * costs 40 ns per reference in the list, half of the cost of a batch of a hundred.  Small batches check this only once in
 * SORTED_FROM serials, because the server does not say how it stores a set. */
static bool needs_tree(size_t length, uint64_t serial, size_t count) {
    bool asked = serial / SORTED_FROM != (serial + count) / SORTED_FROM;
    return asked && length + count >= SORTED_FROM && length < LISTED_MOST;
}

/* Makes the server store the set, which is not empty, as a tree: it does so forever after a member was too long for a
 * list.  Other programs see the same set, and replicas get the same set, which they store as they choose. */
static void make_tree(queue *q) {
    static const char text[] = "holdmq: longer than the 64 bytes up to which a server keeps members in a list";
    server_string *member = sv.CreateString(NULL, text, sizeof text - 1);
    int flags = SERVER_ZADD_NX;
    sv.ZsetAdd(q->messages, 0, member, &flags);
    if (!(flags & SERVER_ZADD_NOP)) sv.ZsetRem(q->messages, member, NULL);
    sv.FreeString(NULL, member);
}

bool queue_put_reference(queue *q, server_string *member, uint64_t serial, uint64_t *last_serial) {
    int flags = SERVER_ZADD_NX;
    sv.ZsetAdd(q->messages, (double)serial, member, &flags);
    if (!(flags & SERVER_ZADD_NOP)) return true;
    if (sv.KeyExists(q->ctx, member)) return false;
    queue_remove_members(q, &member, 1);
    *last_serial = queue_last_serial(q);
    sv.ZsetAdd(q->messages, (double)serial, member, NULL);
    return true;
}

/* ---- messages ---------------------------------------------------------------------------------------------- */

/* The value to store.  A message in TBMQ's format contains its identifier.  The caller frees it. */
static server_string *value_of(const queue_item *item) {
    char small[VALUE_ON_STACK];
    hmq_slice value = slice_of(item->value);
    if (value.len == 0 || value.data[0] != '{') return sv.HoldString(NULL, item->value);
    size_t capacity = value.len + 20;
    char *json = scratch_alloc(small, sizeof small, capacity);
    size_t len = hmq_tbmq_with_packet_id((const char *)value.data, value.len, item->packet_id, json, capacity);
    server_string *string = len > 0 ? sv.CreateString(NULL, json, len) : sv.HoldString(NULL, item->value);
    scratch_free(json, small);
    return string;
}

/* Writes a short value into a string of its own.  Otherwise the server would embed the value in the key's object, and
 * a reader through the module API would first have to copy it out. */
static void set_value(server_key *message, server_string *value) {
    hmq_slice bytes = slice_of(value);
    if (bytes.len == 0 || bytes.len > SHORT_VALUE || sv.KeyType(message) != SERVER_EMPTY) {
        sv.StringSet(message, value);
        return;
    }
    size_t len;
    sv.StringTruncate(message, bytes.len);
    memcpy(sv.StringDMA(message, &len, SERVER_WRITE), bytes.data, bytes.len);
}

size_t queue_store_message(queue *q, server_string *member, const queue_item *item) {
    server_string *value = value_of(item);
    size_t bytes = slice_of(value).len;
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ | SERVER_WRITE);
    set_value(message, value);
    sv.SetAbsExpire(message, item->expire_ms);
    sv.CloseKey(message);
    queue_replicate_message(q, member, value, item->expire_ms);
    sv.FreeString(NULL, value);
    index_notify(q->ctx, SERVER_NOTIFY_STRING, "set", member);
    index_notify(q->ctx, SERVER_NOTIFY_GENERIC, "expire", member);
    return bytes;
}

/* ---- the counter ------------------------------------------------------------------------------------------- */

static hmq_slice digits_of(unsigned number, char text[HMQ_DECIMAL_MAX]) {
    return (hmq_slice){(const uint8_t *)text, hmq_decimal_put(number, text)};
}

static void create_counter(queue *q, server_key *last, hmq_slice digits, long long expire_ms) {
    server_string *value = sv.CreateString(NULL, (const char *)digits.data, digits.len);
    sv.StringSet(last, value);
    replicate_if(q->taken, q->ctx, "SET", "ss", q->last_name, value);
    index_notify(q->ctx, SERVER_NOTIFY_STRING, "set", q->last_name);
    if (expire_ms != SERVER_NO_EXPIRE) key_set_expiry(q->ctx, last, q->last_name, expire_ms);
    sv.FreeString(NULL, value);
}

/* By how much the number in a counter grows.  0: INCRBY cannot express it, because the identifiers wrapped, or the text
 * is not written as the server writes numbers. */
static unsigned grows_by(const char *old, size_t len, uint16_t packet_id) {
    unsigned before = 0;
    char text[HMQ_DECIMAL_MAX];
    for (size_t i = 0; i < len; i++) before = before * 10 + (unsigned)(old[i] - '0');
    hmq_slice written = digits_of(before, text);
    return before < packet_id && written.len == len && memcmp(old, written.data, len) == 0 ? packet_id - before : 0;
}

/* Writes the digits in place, so that the expiry stays.  Replicated as INCR or INCRBY where they have the same
 * effect, because the cost of a replicated command is its words. */
static void overwrite_counter(queue *q, server_key *last, uint16_t packet_id, hmq_slice digits) {
    size_t old;
    char *place = sv.StringDMA(last, &old, SERVER_READ | SERVER_WRITE);
    unsigned grown = grows_by(place, old, packet_id);
    if (old != digits.len) {
        sv.StringTruncate(last, digits.len);
        place = sv.StringDMA(last, &old, SERVER_READ | SERVER_WRITE);
    }
    memcpy(place, digits.data, digits.len);
    if (grown == 1)
        replicate_if(q->taken, q->ctx, "INCR", "s", q->last_name);
    else if (grown > 1)
        replicate_if(q->taken, q->ctx, "INCRBY", "sl", q->last_name, (long long)grown);
    else
        replicate_if(q->taken, q->ctx, "SET", "sbc", q->last_name, digits.data, digits.len, "KEEPTTL");
    index_notify(q->ctx, SERVER_NOTIFY_STRING, grown > 0 ? "incrby" : "set", q->last_name);
}

static void store_counter(queue *q, server_key *last, uint16_t packet_id, long long expire_ms) {
    char text[HMQ_DECIMAL_MAX];
    hmq_slice digits = digits_of(packet_id, text);
    if (sv.KeyType(last) == SERVER_EMPTY) {
        create_counter(q, last, digits, expire_ms);
        return;
    }
    overwrite_counter(q, last, packet_id, digits);
    if (expiry_is_later(expire_ms, sv.GetAbsExpire(last))) key_set_expiry(q->ctx, last, q->last_name, expire_ms);
}

/* ---- appending --------------------------------------------------------------------------------------------- */

static void replicate_references(queue *q, server_string **members, const queue_item *items, size_t count) {
    if (!q->taken || count == 1) {
        replicate_if(q->taken, q->ctx, "ZADD", "sls", q->messages_name, (long long)items[0].serial, members[0]);
        return;
    }
    for (size_t from = 0; from < count; from += ADD_CHUNK) {
        server_string *pairs[2 * ADD_CHUNK];
        size_t n = count - from < ADD_CHUNK ? count - from : ADD_CHUNK;
        for (size_t i = 0; i < n; i++) {
            pairs[2 * i] = sv.CreateStringFromLongLong(NULL, (long long)items[from + i].serial);
            pairs[2 * i + 1] = members[from + i];
        }
        sv.Replicate(q->ctx, "ZADD", "sv", q->messages_name, pairs, 2 * n);
        for (size_t i = 0; i < n; i++) sv.FreeString(NULL, pairs[2 * i]);
    }
}

/* A lost primary may have handed out identifiers that were not replicated.  A client that gets another message under such
 * an identifier takes it for a repetition (QoS 2), or acknowledges a message that it has not received.  So a promoted
 * replica skips identifiers, once in each session that it knows. */
#define SKIPPED_WHEN_PROMOTED 16384U

/* NULL: the session was not opened, or no primary was lost. */
static session_entry *promoted_entry(server_ctx *ctx, hmq_slice session) {
    return replication_promotions() == 0 ? NULL : session_index_find(index_of(ctx)->opened, session);
}

static bool skips(queue *q) {
    const session_entry *entry = promoted_entry(q->ctx, q->session);
    return entry != NULL && entry->promotions != replication_promotions();
}

void queue_note_new_session(server_ctx *ctx, hmq_slice session) {
    session_entry *entry = promoted_entry(ctx, session);
    if (entry != NULL) entry->promotions = replication_promotions();
}

/* Where the next item goes. */
typedef struct place {
    uint16_t packet_id; /* handed out last */
    uint64_t serial;
    uint64_t last_serial; /* of the last reference in the set, 0 if there is none */
} place;

/* Gives the item its identifier, serial and place in the set.  False: no identifier is free. */
static bool place_item(queue *q, queue_item *item, place *at, server_string **member) {
    for (uint32_t tries = 0; tries < HMQ_PACKET_ID_MAX; tries++) {
        at->packet_id = hmq_packet_id_next(at->packet_id);
        at->serial++;
        *member = queue_message_name(q->session, at->packet_id);
        if (queue_put_reference(q, *member, at->serial, &at->last_serial)) {
            item->packet_id = at->packet_id;
            item->serial = at->serial;
            item->previous = at->last_serial;
            at->last_serial = at->serial;
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

long long queue_soonest_expiry(const queue_item *items, size_t count) {
    long long soonest = INT64_MAX;
    for (size_t i = 0; i < count; i++) {
        hmq_slice value = slice_of(items[i].value);
        int64_t own_ms = hmq_record_expires(value.data, value.len);
        if (items[i].expire_ms < soonest) soonest = items[i].expire_ms;
        if (own_ms > 0 && own_ms < soonest) soonest = own_ms;
    }
    return soonest;
}

/* Makes the queue's keys end with the session, or not before its last message.  Returns when. */
static long long settle_expiry(queue *q, const session_facts *facts, long long newest_ms, bool was_empty) {
    long long now_ms = sv.Milliseconds();
    was_empty = was_empty || q->emptied;
    long long current = was_empty ? now_ms : sv.GetAbsExpire(q->messages);
    bool move = facts->opened ? facts->expire_ms != current : expiry_is_later(newest_ms, current);
    if (!move) return current;
    long long expire_ms = facts->opened ? facts->expire_ms : newest_ms + (newest_ms - now_ms) / EXPIRY_SLACK;
    if (!was_empty || expire_ms != SERVER_NO_EXPIRE) key_set_expiry(q->ctx, q->messages, q->messages_name, expire_ms);
    if (facts->exists && !facts->opened) session_hash_extend_expiry(q->ctx, q->session, expire_ms);
    return expire_ms;
}

/* Stores the items in order.  Returns how many: fewer only if no identifier was free. */
static size_t store_items(queue *q, queue_item *items, size_t count, server_string **members, place *at) {
    size_t done = 0, bytes = 0;
    bool tree = needs_tree(queue_length(q), at->serial, count);
    queue_replicate_begin();
    while (done < count && place_item(q, &items[done], at, &members[done])) {
        if (tree && done == 0) make_tree(q);
        bytes += queue_store_message(q, members[done], &items[done]);
        done++;
    }
    queue_replicate_end(q->ctx);
    queue_note_added(q, done, bytes);
    return done;
}

void queue_settle(queue *q, server_key *last, const session_facts *facts, queue_added added, queue_result *result) {
    if (added.count > 0) {
        replicate_references(q, added.members, added.items, added.count);
        index_notify(q->ctx, SERVER_NOTIFY_ZSET, "zadd", q->messages_name);
        result->keys_expire_ms = settle_expiry(q, facts, newest_expiry(added.items, added.count), added.was_empty);
    }
    long long counter_expire_ms = result->keys_expire_ms;
    if (facts->opened && counter_expire_ms != SERVER_NO_EXPIRE) counter_expire_ms += SWEEP_GRACE_MS;
    store_counter(q, last, added.packet_id, counter_expire_ms);
    uint64_t round = hmq_serial_round(added.serial, added.packet_id);
    if (round > facts->round) session_fact_write(q->ctx, q->session, "round", round, result->keys_expire_ms);
    queue_note_expiring(q, facts, added.items, added.count, result->keys_expire_ms);
}

static size_t append(queue *q, server_key *last, const session_facts *facts, long long counter, queue_item *items,
                     size_t count, queue_result *result) {
    bool was_empty = queue_length(q) == 0;
    place at = {.packet_id = (uint16_t)counter, .last_serial = was_empty ? 0 : queue_last_serial(q)};
    at.serial = queue_serial_before(facts, at.last_serial, at.packet_id);
    bool skipping = skips(q);
    if (skipping) {
        at.serial += SKIPPED_WHEN_PROMOTED;
        at.packet_id = (uint16_t)((at.packet_id + SKIPPED_WHEN_PROMOTED - 1) % HMQ_PACKET_ID_MAX + 1);
    }
    server_string *small[16];
    server_string **members = scratch_alloc(small, sizeof small, count * sizeof *members);
    size_t done = store_items(q, items, count, members, &at);
    queue_added added = {items, members, done, at.packet_id, at.serial, was_empty};
    for (size_t i = 1; i < done; i++) hmq_assert(items[i].serial > items[i - 1].serial); /* invariant 1 of queue.h */
    if (done > 0) queue_settle(q, last, facts, added, result);
    if (done > 0 && skipping) queue_note_new_session(q->ctx, q->session); /* the entry may have been replaced */
    result->last_serial = at.serial;
    queue_free_members(members, done);
    scratch_free(members, small);
    return done;
}

static void leave_out(queue_item *items, size_t count) {
    for (size_t i = 0; i < count; i++) items[i].packet_id = 0, items[i].serial = 0;
}

/* The counter and the facts are usable. */
static queue_status add(queue *q, server_key *last, const session_facts *facts, overflow policy, queue_item *items,
                        size_t count, size_t limit, queue_result *result) {
    queue_room room = queue_make_room(q, facts, items, count, limit, policy, result);
    size_t dropped = count - room.count;
    leave_out(items, room.first);
    leave_out(items + room.first + room.count, dropped - room.first);
    counters.session_expired += (unsigned long long)result->expired;
    if (dropped > 0 && overflow_refuses(policy)) return policy == OVERFLOW_WAIT ? QUEUE_WAITS : QUEUE_REFUSED;
    result->trimmed += (long long)dropped;
    long long counter = queue_counter_value(last);
    queue_item *stored = items + room.first;
    size_t done = append(q, last, facts, counter, stored, room.count, result);
    hmq_assert(done == 0 || queue_length(q) <= limit); /* invariant 6 of queue.h */
    queue_expires_from(q, queue_soonest_expiry(stored, done));
    counters.session_trimmed += (unsigned long long)result->trimmed;
    if (result->trimmed > 0) overflow_note(q, facts, (size_t)result->trimmed);
    if (result->trimmed > 0) queue_usage_full(q, result->cause);
    return dropped + done == count ? QUEUE_OK : QUEUE_FULL;
}

/* `whole`: all or none, whatever the session's policy is. */
static queue_status add_checked(queue *q, queue_item *items, size_t count, size_t limit, bool whole,
                                queue_result *result) {
    *result = (queue_result){0};
    server_key *last = sv.OpenKey(q->ctx, queue_counter_name(q), SERVER_READ | SERVER_WRITE);
    session_facts facts = session_facts_read(q->ctx, q->session);
    queue_status status = QUEUE_OK;
    if (queue_counter_value(last) < 0)
        status = QUEUE_BAD_COUNTER;
    else if (!facts.usable)
        status = QUEUE_BAD_SESSION;
    else
        status =
            add(q, last, &facts, whole ? OVERFLOW_REFUSE : overflow_of_session(&facts), items, count, limit, result);
    sv.CloseKey(last);
    if (!whole && (status == QUEUE_REFUSED || status == QUEUE_WAITS)) queue_usage_full(q, result->cause);
    return status;
}

queue_status queue_add(queue *q, queue_item *items, size_t count, size_t limit, queue_result *result) {
    return add_checked(q, items, count, limit, false, result);
}

queue_status queue_add_whole(queue *q, queue_item *items, size_t count, size_t limit, queue_result *result) {
    return add_checked(q, items, count, limit, true, result);
}

void queue_dropped(queue *q) {
    session_facts facts = session_facts_read(q->ctx, q->session);
    counters.session_trimmed++;
    if (facts.usable) overflow_note(q, &facts, 1);
}

queue_status queue_check_room(queue *q, size_t bytes, size_t messages_ahead, size_t bytes_ahead) {
    session_facts facts = session_facts_read(q->ctx, q->session);
    overflow policy = overflow_of_session(&facts);
    if (!facts.usable || !overflow_refuses(policy)) {
        queue_usage_reserve(q, bytes);
        return QUEUE_OK;
    }
    queue_result result = {0};
    size_t limit = (size_t)settings.session_limit;
    bool has_room = queue_has_room(q, &facts, 1, bytes, limit, &result);
    bool has_room_then = has_room && (messages_ahead == 0 || queue_has_room(q, &facts, 1 + messages_ahead,
                                                                            bytes + bytes_ahead, limit, &result));
    counters.session_expired += (unsigned long long)result.expired;
    queue_usage_reserve(q, bytes);
    if (has_room) return has_room_then ? QUEUE_OK : QUEUE_WAITS;
    queue_usage_full(q, result.cause);
    return policy == OVERFLOW_WAIT ? QUEUE_WAITS : QUEUE_REFUSED;
}
