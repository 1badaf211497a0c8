/* expiry.c - messages with an expiry of their own. */
#include "queue/expiry.h"

#include "topic/record.h"
#include "server/session_keys.h"
#include "queue/parts.h"

#define EXPIRING_AHEAD 255

void queue_note_expiring(queue *q, const session_facts *facts, const queue_item *items, size_t count,
                         long long keys_expire_ms) {
    uint64_t last = 0;
    for (size_t i = 0; i < count; i++) {
        hmq_slice value = slice_of(items[i].value);
        if (hmq_record_expires(value.data, value.len) > 0) last = items[i].serial;
    }
    if (last <= facts->expiring) return;
    uint64_t ahead = last + EXPIRING_AHEAD <= QUEUE_MAX_SERIAL ? last + EXPIRING_AHEAD : QUEUE_MAX_SERIAL;
    session_fact_write(q->ctx, q->session, "expiring", ahead, keys_expire_ms);
}

long long queue_in_flight_expiry_ms(int64_t own_ms, long long current_ms) {
    long long default_ms = sv.Milliseconds() + settings.session_ttl_s * 1000;
    if (own_ms == 0 || current_ms > own_ms + QUEUE_EXPIRY_GRACE_MS) return current_ms; /* none, or lifted before */
    return current_ms != SERVER_NO_EXPIRE && current_ms < default_ms ? default_ms : current_ms;
}

void queue_extend_expiry(queue *q, const session_facts *facts, long long expire_ms) {
    if (facts->opened || queue_length(q) == 0) return; /* the keys of an opened session end with it */
    if (expiry_is_later(expire_ms, sv.GetAbsExpire(q->messages)))
        key_set_expiry(q->ctx, q->messages, q->messages_name, expire_ms);
    server_key *last = sv.OpenKey(q->ctx, queue_counter_name(q), SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(last) != SERVER_EMPTY && expiry_is_later(expire_ms, sv.GetAbsExpire(last)))
        key_set_expiry(q->ctx, last, q->last_name, expire_ms);
    sv.CloseKey(last);
    session_hash_extend_expiry(q->ctx, q->session, expire_ms);
}

/* True if the message's expiry was moved to *end_ms. */
static bool extend_message_expiry(queue *q, server_string *member, long long *end_ms) {
    size_t len;
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ | SERVER_WRITE);
    bool moved = false;
    if (sv.KeyType(message) == SERVER_STRING) {
        const char *value = sv.StringDMA(message, &len, SERVER_READ);
        long long current_ms = sv.GetAbsExpire(message);
        long long lifted_ms = queue_in_flight_expiry_ms(hmq_record_expires((const uint8_t *)value, len), current_ms);
        moved = lifted_ms != current_ms;
        if (moved) *end_ms = lifted_ms, key_set_expiry(q->ctx, message, member, lifted_ms);
    }
    sv.CloseKey(message);
    return moved;
}

void queue_mark_in_flight(queue *q, const session_facts *facts, uint64_t serial) {
    uint64_t up_to = serial < facts->expiring ? serial : facts->expiring;
    size_t length = queue_length(q), moved = 0;
    long long end_ms = 0;
    if (length == 0 || up_to <= facts->sent) return;
    size_t before = queue_count_up_to(q, facts->sent, length);
    size_t most = queue_count_up_to(q, up_to, length) - before;
    server_string **members = sv.Alloc((most + 1) * sizeof *members);
    size_t found = queue_collect_oldest(q, facts->sent, members, most);
    for (size_t i = 0; i < found; i++) moved += extend_message_expiry(q, members[i], &end_ms);
    queue_free_members(members, found);
    sv.Free(members);
    if (moved > 0) queue_extend_expiry(q, facts, end_ms);
}

bool queue_set_sent(queue *q, uint64_t serial) {
    session_facts facts = session_facts_read(q->ctx, q->session);
    long long counter = queue_last_packet_id(q);
    uint64_t newest = queue_serial_before(&facts, queue_last_serial(q), counter < 0 ? 0 : (uint16_t)counter);
    if (serial > newest) serial = newest;
    if (!facts.usable) return false;
    if (serial <= facts.sent) return true;
    queue_mark_in_flight(q, &facts, serial);
    long long expire_ms = queue_length(q) == 0 ? sv.Milliseconds() : sv.GetAbsExpire(q->messages);
    return session_fact_write(q->ctx, q->session, "sent", serial, expire_ms);
}
