/* import.c - puts messages from elsewhere into a queue, with their identifiers, serials, order and state.  The layout
 * is exactly that of queue/add.c.
 *
 * A message whose identifier is in use gets a new one.  No new identifier is one that a later message already has.
 * O(N log M) for N messages and M in the queue. */
#include <string.h>

#include "topic/packet_id.h"
#include "queue/notes.h"

/* The progress of the import. */
typedef struct import {
    queue *q;
    uint64_t named[HMQ_PACKET_ID_MAX / 64 + 1]; /* a bit for each identifier of the imported messages */
    uint16_t packet_id; /* handed out last */
    uint64_t serial; /* the largest so far */
    uint64_t last_serial; /* of the last reference in the set, 0 if there is none */
} import;

static bool is_named(const import *in, uint16_t packet_id) {
    return (in->named[packet_id / 64] >> (packet_id % 64) & 1) != 0;
}

static void name_all(import *in, const queue_origin *origins, size_t count) {
    for (size_t i = 0; i < count; i++) in->named[origins[i].packet_id / 64] |= 1ULL << (origins[i].packet_id % 64);
}

/* Selects the newest messages that have room.  Queued messages are left out before those in flight. */
static size_t leave_out(queue_item *items, queue_origin *origins, size_t count, size_t room) {
    size_t surplus = count - room, queued = 0, kept = 0;
    for (size_t i = 0; i < count; i++) queued += origins[i].state == QUEUE_QUEUED;
    size_t out_queued = surplus < queued ? surplus : queued, out_others = surplus - out_queued;
    for (size_t i = 0; i < count; i++) {
        size_t *out = origins[i].state == QUEUE_QUEUED ? &out_queued : &out_others;
        if (*out > 0) {
            (*out)--;
            continue;
        }
        items[kept] = items[i];
        origins[kept++] = origins[i];
    }
    return kept;
}

/* Stores the item under this identifier; false if that is in use. */
static bool place_as(import *in, queue_item *item, uint64_t wanted, uint16_t packet_id, server_string **member) {
    uint64_t next = hmq_serial_of(hmq_serial_round(in->serial + 1, packet_id), packet_id);
    uint64_t serial = wanted > in->serial ? wanted : next;
    *member = queue_message_name(in->q->session, packet_id);
    if (!queue_put_reference(in->q, *member, serial, &in->last_serial)) {
        sv.FreeString(NULL, *member);
        return false;
    }
    item->packet_id = packet_id;
    item->serial = serial;
    item->previous = in->last_serial;
    in->packet_id = packet_id;
    in->serial = in->last_serial = serial;
    return true;
}

/* False: no identifier is free. */
static bool place(import *in, queue_item *item, const queue_origin *origin, server_string **member) {
    if (origin->packet_id != 0 && place_as(in, item, origin->serial, origin->packet_id, member)) return true;
    uint16_t candidate = in->packet_id;
    for (uint32_t tries = 0; tries < HMQ_PACKET_ID_MAX; tries++) {
        candidate = hmq_packet_id_next(candidate);
        if (!is_named(in, candidate) && place_as(in, item, origin->serial, candidate, member)) return true;
    }
    return false;
}

/* The serial of the last message that will be in flight, 0 if none. */
static uint64_t in_flight_up_to(const queue_item *items, const queue_origin *origins, size_t count) {
    uint64_t serial = 0;
    for (size_t i = 0; i < count && origins[i].state != QUEUE_QUEUED; i++) serial = items[i].serial;
    return serial;
}

/* When the counter ends, if nothing was added. */
static long long counter_end(const session_facts *facts) {
    return facts->opened ? facts->expire_ms : sv.Milliseconds() + settings.session_ttl_s * 1000;
}

static size_t import_all(import *in, server_key *last, const session_facts *facts, queue_item *items,
                         const queue_origin *origins, size_t count, uint16_t counter, queue_result *result) {
    queue *q = in->q;
    bool was_empty = queue_length(q) == 0, none_queued = in->last_serial <= facts->sent;
    server_string **members = sv.Alloc((count + 1) * sizeof *members);
    size_t done = 0, bytes = 0;
    name_all(in, origins, count);
    for (; done < count && place(in, &items[done], &origins[done], &members[done]); done++)
        bytes += queue_store_message(q, members[done], &items[done]);
    queue_note_added(q, done, bytes);
    uint16_t packet_id = counter != 0 ? counter : in->packet_id;
    queue_added added = {items, members, done, packet_id, in->serial, was_empty};
    if (done == 0) result->keys_expire_ms = counter_end(facts);
    if (packet_id != 0) queue_settle(q, last, facts, added, result);
    uint64_t sent = none_queued ? in_flight_up_to(items, origins, done) : 0;
    if (sent > 0) queue_set_sent(q, sent);
    queue_free_members(members, done);
    sv.Free(members);
    return done;
}

queue_status queue_import(queue *q, queue_item *items, queue_origin *origins, size_t *count, size_t limit,
                          uint16_t counter, queue_result *result) {
    *result = (queue_result){0};
    server_key *last = sv.OpenKey(q->ctx, queue_counter_name(q), SERVER_READ | SERVER_WRITE);
    long long current = queue_counter_value(last);
    session_facts facts = session_facts_read(q->ctx, q->session);
    if (current < 0 || !facts.usable) {
        sv.CloseKey(last);
        return current < 0 ? QUEUE_BAD_COUNTER : QUEUE_BAD_SESSION;
    }
    size_t room = queue_make_room(q, &facts, items, *count, limit, OVERFLOW_DROP_OLDEST, result).count;
    result->trimmed += (long long)(*count - room);
    *count = leave_out(items, origins, *count, room);
import in = {.q = q, .packet_id =(uint16_t) current, .last_serial = queue_last_serial(q) };
    in.serial = queue_serial_before(&facts, in.last_serial, in.packet_id);
    size_t done = import_all(&in, last, &facts, items, origins, *count, counter, result);
    result->last_serial = in.serial;
    queue_expires_from(q, queue_soonest_expiry(items, done));
    sv.CloseKey(last);
    counters.session_trimmed += (unsigned long long)result->trimmed;
    counters.session_expired += (unsigned long long)result->expired;
    return done == *count ? QUEUE_OK : QUEUE_FULL;
}

bool queue_has_messages(queue *q) {
    size_t length = queue_length(q);
    server_string **members = sv.Alloc((length + 1) * sizeof *members);
    size_t found = queue_collect_oldest(q, 0, members, length);
    bool lives = false;
    for (size_t i = 0; i < found && !lives; i++) lives = queue_message_expiry(q, members[i], true) != 0;
    queue_free_members(members, found);
    sv.Free(members);
    return lives;
}
