/* look.c - looks through a queue, a bounded number of references at a time. */
#include "queue/look.h"

#include <math.h>

#include "queue/notes.h"
#include "queue/usage.h"

/* ---- how many ---------------------------------------------------------------------------------------------- */

/* References that may be looked at, and when that was counted. */
static size_t left = LOOK_MOST;
static long long left_ms;

static size_t allowed(long long now_ms) {
    long long passed = now_ms - left_ms;
    bool is_long = passed < 0 || passed >= LOOK_MOST / LOOK_PER_MS;
    size_t more = is_long ? LOOK_MOST : (size_t)passed * LOOK_PER_MS;
    left = left + more < LOOK_MOST ? left + more : LOOK_MOST;
    left_ms = now_ms;
    return left;
}

/* The time of the look itself does not count, or a slow machine would never finish. */
static void spend(size_t looked, long long now_ms) {
    left -= looked;
    left_ms = now_ms;
    counters.queue_references_searched += looked;
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

/* References of messages that are gone. */
typedef struct gone_list {
    server_string **members;
    size_t count;
} gone_list;

/* Looks at up to `most` references; returns how many.  *ended: there are no more. */
static size_t look_at(queue *q, const session_facts *facts, queue_look *look, size_t most, gone_list *gone,
                      bool *ended) {
    size_t count = 0;
    sv.ZsetFirstInScoreRange(q->messages, look->serial == 0 ? -INFINITY : (double)look->serial, INFINITY,
                             look->serial > 0, 0);
    for (; count < most && !sv.ZsetRangeEndReached(q->messages); sv.ZsetRangeNext(q->messages), count++) {
        double score;
        size_t bytes, gone_before = look->gone;
        server_string *member = sv.ZsetRangeCurrentElement(q->messages, &score);
        bool own = facts == NULL || (score > (double)facts->sent && score <= (double)facts->expiring);
        long long expire_ms = queue_message_read(q, member, own, &bytes);
        look->gone = gone_before; /* finding an expired key removes it, which causes a notification, too */
        look->bytes += bytes;
        if (score >= 1 && score <= (double)QUEUE_MAX_SERIAL) look->serial = (uint64_t)score;
        if (expire_ms != 0) {
            if (expire_ms < look->soonest_ms) look->soonest_ms = expire_ms;
            sv.FreeString(NULL, member);
            continue;
        }
        if (facts == NULL) {
            look->gone++; /* or past its own expiry, which may no longer apply: that does not matter here */
            sv.FreeString(NULL, member);
            continue;
        }
        look->bytes -= bytes;
        gone->members[gone->count++] = member;
    }
    *ended = sv.ZsetRangeEndReached(q->messages);
    sv.ZsetRangeStop(q->messages);
    return count;
}

static void finish(queue *q, const queue_look *look) {
    queue_note *note = queue_note_make(q);
    note->is_counted = true;
    note->bytes = look->bytes;
    note->length = queue_length(q);
    note->unknown = look->gone;
    note->calm_until_ms = look->gone > 0 ? 0 : look->soonest_ms;
    note->look.serial = 0;
    queue_usage_counted(q, look->bytes);
}

size_t queue_look_continue(queue *q, const session_facts *facts) {
    long long begun_ms = sv.Milliseconds();
    size_t length = queue_length(q), most = allowed(begun_ms);
    if (length == 0 || most == 0) return 0;
    if (most > length) most = length;
    queue_note *note = queue_note_make(q);
    if (note->look.serial == 0) note->look = (queue_look){.soonest_ms = INT64_MAX};
    gone_list gone = {.members = sv.Alloc(most * sizeof *gone.members)};
    bool ended;
    size_t looked = look_at(q, facts, &note->look, most, &gone, &ended);
    spend(looked, sv.Milliseconds());
    queue_look look = note->look;
    note->look.serial = 0; /* what is removed now was not counted */
    if (gone.count > 0) queue_remove_members(q, gone.members, gone.count);
    queue_free_members(gone.members, gone.count);
    sv.Free(gone.members);
    note = queue_note_find(q); /* it may have been forgotten with the last message */
    if (ended && queue_length(q) > 0)
        finish(q, &look);
    else if (note != NULL && queue_length(q) > 0)
        note->look = look;
    slow_step("holdmq-queue-search", begun_ms);
    return gone.count;
}
