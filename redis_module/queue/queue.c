/* queue.c - opens a session's queue, and answers questions about it. */
#include "queue/parts.h"

#include <math.h>
#include <string.h>

#include "topic/packet_id.h"
#include "topic/record.h"
#include "topic/session_key.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/memory.h"
#include "server/replication.h"
#include "server/session_keys.h"

#define NAME_MAX_BYTES 1024 /* longer session keys take the heap */

/* ---- names ------------------------------------------------------------------------------------------------- */

server_string *queue_message_name(hmq_slice session, uint16_t packet_id) {
    char small[NAME_MAX_BYTES];
    size_t capacity = session.len + 16;
    char *name = scratch_alloc(small, sizeof small, capacity);
    size_t len = hmq_message_key((const char *)session.data, session.len, packet_id, name, capacity);
    server_string *string = sv.CreateString(NULL, name, len);
    scratch_free(name, small);
    return string;
}

uint16_t queue_packet_id_of(hmq_slice session, const server_string *member) {
    hmq_slice name = slice_of(member);
    return hmq_message_key_packet_id((const char *)session.data, session.len, (const char *)name.data, name.len);
}

/* ---- opening ----------------------------------------------------------------------------------------------- */

bool queue_open(queue *q, server_ctx *ctx, hmq_slice session, int mode) {
    *q = (queue){.ctx = ctx, .session = session, .taken = replication_is_needed(ctx)};
    q->messages_name = session_key_name(session, HMQ_SUFFIX_MESSAGES);
    q->messages = sv.OpenKey(ctx, q->messages_name, mode);
    return key_may_be(q->messages, SERVER_ZSET);
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

int queue_reply_wrong_type(const queue *q) {
    return reply_wrong_type(q->ctx, q->messages_name, key_type_name(SERVER_ZSET));
}

int queue_reply_wrong_counter(queue *q) {
    return reply_wrong_type(q->ctx, queue_counter_name(q), "a string with a number from 0 to 65535");
}

long long queue_counter_value(server_key *key) {
    if (sv.KeyType(key) == SERVER_EMPTY) return 0;
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
    long long value = queue_counter_value(key);
    if (key != NULL) sv.CloseKey(key);
    return value;
}

/* ---- references ------------------------------------------------------------------------------------------- */

void queue_free_members(server_string **members, size_t count) {
    for (size_t i = 0; i < count; i++) sv.FreeString(NULL, members[i]);
}

size_t queue_collect_oldest(queue *q, uint64_t after, server_string **members, size_t most) {
    size_t found = 0;
    if (queue_length(q) == 0 || most == 0) return 0;
    sv.ZsetFirstInScoreRange(q->messages, (double)after, INFINITY, 1, 0);
    for (; !sv.ZsetRangeEndReached(q->messages) && found < most; sv.ZsetRangeNext(q->messages)) {
        members[found++] = sv.ZsetRangeCurrentElement(q->messages, NULL);
    }
    sv.ZsetRangeStop(q->messages);
    return found;
}

/* The expiry in the message itself; INT64_MAX if none. */
static long long own_expiry(server_key *message) {
    size_t len;
    if (sv.KeyType(message) != SERVER_STRING) return INT64_MAX;
    const char *value = sv.StringDMA(message, &len, SERVER_READ);
    int64_t expires_ms = hmq_record_expires((const uint8_t *)value, len);
    return expires_ms == 0 ? INT64_MAX : expires_ms;
}

long long queue_message_expiry(queue *q, server_string *member, bool own) {
    size_t bytes;
    return queue_message_read(q, member, own, &bytes);
}

long long queue_message_read(queue *q, server_string *member, bool own, size_t *bytes) {
    *bytes = 0;
    if (queue_packet_id_of(q->session, member) == 0) return 0;
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ);
    if (sv.KeyType(message) == SERVER_EMPTY) {
        if (message != NULL) sv.CloseKey(message);
        return 0;
    }
    if (sv.KeyType(message) == SERVER_STRING) *bytes = sv.ValueLength(message);
    long long expire_ms = sv.GetAbsExpire(message), own_ms = own ? own_expiry(message) : INT64_MAX;
    sv.CloseKey(message);
    if (expire_ms == SERVER_NO_EXPIRE || own_ms < expire_ms) expire_ms = own_ms;
    return own && expire_ms <= sv.Milliseconds() ? 0 : expire_ms;
}

/* ---- in flight --------------------------------------------------------------------------------------------- */

uint64_t queue_serial_before(const session_facts *facts, uint64_t last_in_queue, uint16_t counter) {
    uint64_t round = hmq_serial_round(last_in_queue, counter);
    return hmq_serial_of(round > facts->round ? round : facts->round, counter);
}

size_t queue_count_up_to(const queue *q, uint64_t serial, size_t most) {
    size_t count = 0;
    if (queue_length(q) == 0 || serial == 0) return 0;
    sv.ZsetFirstInScoreRange(q->messages, -INFINITY, (double)serial, 0, 0);
    for (; count < most && !sv.ZsetRangeEndReached(q->messages); sv.ZsetRangeNext(q->messages)) count++;
    sv.ZsetRangeStop(q->messages);
    return count;
}

uint64_t queue_serial_at(const queue *q, size_t place) {
    uint64_t serial = UINT64_MAX;
    if (place == 0 || queue_length(q) < place) return serial;
    sv.ZsetFirstInScoreRange(q->messages, -INFINITY, INFINITY, 0, 0);
    for (size_t at = 1; at < place && !sv.ZsetRangeEndReached(q->messages); at++) sv.ZsetRangeNext(q->messages);
    if (!sv.ZsetRangeEndReached(q->messages)) {
        double score;
        server_string *member = sv.ZsetRangeCurrentElement(q->messages, &score);
        serial = (uint64_t)score;
        sv.FreeString(NULL, member);
    }
    sv.ZsetRangeStop(q->messages);
    return serial;
}

size_t queue_value_bytes(queue *q, server_string *member, bool *there) {
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ | SERVER_OPEN_NOTOUCH);
    *there = sv.KeyType(message) == SERVER_STRING;
    size_t bytes = *there ? sv.ValueLength(message) : 0;
    if (message != NULL) sv.CloseKey(message);
    return bytes;
}
