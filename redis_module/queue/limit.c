/* limit.c - keeps a queue within its limits: removes expired references first, then applies its policy. */
#include "index/overflow.h"
#include "base/assert.h"
#include "queue/allowance.h"
#include "queue/bytes.h"
#include "queue/look.h"
#include "queue/notes.h"

/* ---- expired references ------------------------------------------------------------------------------------ */

void queue_expires_from(queue *q, long long soonest_ms) {
    queue_note *note = queue_note_find(q);
    if (note != NULL && soonest_ms < note->calm_until_ms) note->calm_until_ms = soonest_ms;
}

/* Removes references whose message is gone, unless it is known that there are none.  Otherwise each ADD would search
 * a queue at its limit. */
static long long remove_expired(queue *q, const session_facts *facts) {
    const queue_note *note = queue_note_find(q);
    if (note != NULL && sv.Milliseconds() < note->calm_until_ms) return 0;
    return (long long)queue_look_continue(q, facts);
}

/* ---- room -------------------------------------------------------------------------------------------------- */

/* The room that new messages need, and what the queue has. */
typedef struct demand {
    queue *q;
    const queue_item *items;
    size_t count, bytes;           /* of the new messages */
    size_t limit, bound;           /* messages and bytes that the queue may have */
    size_t own_bound;              /* ... if it were the only one */
    bool counts;                   /* its bytes are counted in any case (queue/usage.h) */
    queue_cause cause;             /* whose maximum `bound` is */
    size_t queued_bytes;           /* of the queue; 0: too few to matter */
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

/* Leaves out the oldest, or the newest, of the new messages. */
static void leave_one_out(demand *d, bool oldest) {
    d->bytes -= item_bytes(oldest ? d->items : &d->items[d->count - 1]);
    d->items += oldest;
    d->count--;
}

/* Removes the oldest messages that are not in flight until the new ones have room, or none is left.  Returns how
 * many. */
static size_t remove_for(const demand *d, const session_facts *facts) {
    queue *q = d->q;
    size_t length = queue_length(q), count = length + d->count > d->limit ? length + d->count - d->limit : 0;
    size_t bytes = d->queued_bytes + d->bytes > d->bound ? d->queued_bytes + d->bytes - d->bound : 0;
    return queue_remove_oldest_of(q, facts->sent, count, bytes);
}

/* How many bytes it has now; `largest`: of the new messages. */
static void measure(demand *d, size_t largest) {
    if (d->counts)
        d->queued_bytes = queue_usage_allowance(d->q).has;
    else if (d->bound < SIZE_MAX)
        d->queued_bytes = queue_bytes_before(d->q, d->count, largest, d->bound);
}

/* The queue's maximum, by its own setting and by those that it shares with others, and the bytes that it has. */
static void look(demand *d, size_t largest) {
    queue_allowance shared = queue_usage_allowance(d->q);
    d->counts = shared.counts;
    d->bound = shared.counts && shared.most < d->own_bound ? shared.most : d->own_bound;
    bool own_is_met =
        queue_length(d->q) + d->count > d->limit || (shared.counts && shared.has + d->bytes > d->own_bound);
    d->cause = d->bound == d->own_bound || own_is_met ? QUEUE_CAUSE_OWN : shared.cause;
    measure(d, largest);
}

static void drop_oldest(demand *d, const session_facts *facts, queue_result *result) {
    while (d->count > d->limit || d->bytes > d->bound) leave_one_out(d, true);
    if (d->count == 0) return;
    result->trimmed += (long long)remove_for(d, facts);
    if (d->queued_bytes > 0) measure(d, SIZE_MAX);
    while (d->count > 0 && !fits(d)) leave_one_out(d, true);
}

/* Do they fit after expired messages are removed? */
static bool finds_room(demand *d, const session_facts *facts, size_t largest, queue_result *result) {
    look(d, largest);
    if (fits(d)) return true;
    result->expired += remove_expired(d->q, facts);
    if (d->queued_bytes > 0) look(d, largest);
    result->cause = d->cause;
    return fits(d);
}

queue_room queue_make_room(queue *q, const session_facts *facts, const queue_item *items, size_t count, size_t limit,
                           overflow policy, queue_result *result) {
    size_t largest;
    demand d = {.q = q, .items = items, .count = count, .limit = limit};
    d.own_bound = overflow_bytes_of(facts);
    d.bytes = add_up(items, count, &largest);
    if (finds_room(&d, facts, largest, result)) return (queue_room){0, count};
    if (overflow_refuses(policy)) return (queue_room){0, 0};
    if (policy == OVERFLOW_DROP_OLDEST) drop_oldest(&d, facts, result);
    while (d.count > 0 && !fits(&d)) leave_one_out(&d, false);
    hmq_assert((size_t)(d.items - items) + d.count <= count);
    return (queue_room){(size_t)(d.items - items), d.count};
}

bool queue_has_room(queue *q, const session_facts *facts, size_t count, size_t bytes, size_t limit,
                    queue_result *result) {
    demand d = {.q = q, .count = count, .bytes = bytes, .limit = limit};
    d.own_bound = overflow_bytes_of(facts);
    return finds_room(&d, facts, bytes, result);
}
