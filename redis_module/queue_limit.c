/* queue_limit.c - keeps a queue within its limits: expired references first, then as its policy says. */
#include "queue_notes.h"
#include "queue_overflow.h"

/* ---- expired references ------------------------------------------------------------------------------------ */

void queue_expires_from(queue *q, long long soonest_ms) {
    queue_note *note = queue_note_find(q);
    if (note != NULL && soonest_ms < note->calm_until_ms) note->calm_until_ms = soonest_ms;
}

/* Removes all references whose message is gone, unless it is known that there are none: queues at their limit would be
 * searched by each ADD otherwise.  The bytes of the others are counted on the way. */
static long long remove_expired(queue *q, const session_facts *facts) {
    const queue_note *note = queue_note_find(q);
    if (note != NULL && sv.Milliseconds() < note->calm_until_ms) return 0;
    size_t length = queue_length(q), gone = 0, bytes = 0;
    long long begun_ms = sv.Milliseconds();
    server_string **members = sv.Alloc((length + 1) * sizeof *members);
    size_t found = queue_collect_oldest(q, 0, members, length);
    size_t in_flight = queue_count_up_to(q, facts->sent, length);
    size_t may_expire = queue_count_up_to(q, facts->expiring, length);
    long long earliest = INT64_MAX;
    for (size_t i = 0; i < found; i++) {
        size_t size;
        long long expire_ms = queue_message_look(q, members[i], i >= in_flight && i < may_expire, &size);
        if (expire_ms != 0) {
            bytes += size;
            if (expire_ms < earliest) earliest = expire_ms;
            sv.FreeString(NULL, members[i]);
        } else {
            members[gone++] = members[i];
        }
    }
    if (gone > 0) queue_remove_members(q, members, gone);
    queue_free_members(members, gone);
    sv.Free(members);
    slow_step("holdmq-queue-search", begun_ms);
    queue_note_make(q)->calm_until_ms = earliest;
    queue_note_counted(q, bytes);
    return (long long)gone;
}

/* ---- room -------------------------------------------------------------------------------------------------- */

/* What is asked of a queue, and what it has. */
typedef struct demand {
    queue *q;
    const queue_item *items;
    size_t count, bytes;           /* of the new messages */
    size_t limit, bound;           /* messages and bytes that the queue may have */
    size_t queued_bytes;           /* that it has; 0: so few that they do not matter */
} demand;

static size_t item_bytes(const queue_item *item) {
    return slice_of(item->value).len;
}

static size_t add_up(const queue_item *items, size_t count, size_t *largest) {
    size_t bytes = 0;
    *largest = 0;
    for (size_t i = 0; i < count; i++) {
        size_t one = item_bytes(&items[i]);
        bytes += one;
        if (one > *largest) *largest = one;
    }
    return bytes;
}

static bool fits(const demand *d) {
    return queue_length(d->q) + d->count <= d->limit && d->queued_bytes + d->bytes <= d->bound;
}

/* Leaves the oldest, or the newest, of the new messages out. */
static void leave_one_out(demand *d, bool oldest) {
    d->bytes -= item_bytes(oldest ? d->items : &d->items[d->count - 1]);
    d->items += oldest;
    d->count--;
}

/* Removes the oldest messages that are not in flight until the new ones have room, or none is left.  How many. */
static size_t remove_for(const demand *d, const session_facts *facts) {
    queue *q = d->q;
    size_t length = queue_length(q), count = length + d->count > d->limit ? length + d->count - d->limit : 0;
    size_t bytes = d->queued_bytes + d->bytes > d->bound ? d->queued_bytes + d->bytes - d->bound : 0;
    return queue_remove_oldest_of(q, facts->sent, count, bytes);
}

static void drop_oldest(demand *d, const session_facts *facts, queue_result *result) {
    while (d->count > d->limit || d->bytes > d->bound) leave_one_out(d, true);
    if (d->count == 0) return;
    result->trimmed += (long long)remove_for(d, facts);
    if (d->queued_bytes > 0) d->queued_bytes = queue_bytes_before(d->q, d->count, SIZE_MAX, d->bound);
    while (d->count > 0 && !fits(d)) leave_one_out(d, true);
}

/* Do they fit, once what has expired is gone? */
static bool finds_room(demand *d, const session_facts *facts, size_t largest, queue_result *result) {
    if (d->bound < SIZE_MAX) d->queued_bytes = queue_bytes_before(d->q, d->count, largest, d->bound);
    if (fits(d)) return true;
    result->expired += remove_expired(d->q, facts);
    if (d->queued_bytes > 0) d->queued_bytes = queue_bytes_before(d->q, d->count, largest, d->bound);
    return fits(d);
}

queue_room queue_make_room(queue *q, const session_facts *facts, const queue_item *items, size_t count, size_t limit,
                           overflow policy, queue_result *result) {
    size_t largest;
    demand d = {.q = q, .items = items, .count = count, .limit = limit, .bound = overflow_bytes_of(facts)};
    d.bytes = add_up(items, count, &largest);
    if (finds_room(&d, facts, largest, result)) return (queue_room){0, count};
    if (overflow_refuses(policy)) return (queue_room){0, 0};
    if (policy == OVERFLOW_DROP_OLDEST) drop_oldest(&d, facts, result);
    while (d.count > 0 && !fits(&d)) leave_one_out(&d, false);
    return (queue_room){(size_t)(d.items - items), d.count};
}

bool queue_has_room(queue *q, const session_facts *facts, size_t bytes, size_t limit, queue_result *result) {
    demand d = {.q = q, .count = 1, .bytes = bytes, .limit = limit, .bound = overflow_bytes_of(facts)};
    return finds_room(&d, facts, bytes, result);
}
