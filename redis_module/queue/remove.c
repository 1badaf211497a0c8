/* remove.c - removes messages from a queue: acknowledged, trimmed, expired, or dropped with it.
 *
 * A client acknowledges in order, so the removed messages are mostly a run: all that the sorted set holds from one
 * score to another.  Each removal is replicated exactly, with as few commands and bytes as possible:
 *
 *     the last reference is removed  UNLINK {c}_messages {c}_messages_<pid> ...
 *     a run                          ZREMRANGEBYSCORE {c}_messages <first> <last>    UNLINK {c}_messages_<pid> ...
 *     else                           ZREM {c}_messages {c}_messages_<pid> ...        UNLINK {c}_messages_<pid> ...
 *
 * Invariants
 *  1. A server that executes these commands had the same references before.  Additions are replicated before any removal,
 *     except references that queue/add.c is just adding.  These do no harm: they are not removed, and while they
 *     exist the set is not empty.
 *  2. A run is checked reference by reference before it is removed.  It ends at a gap, a score of another program,
 *     two references with one score, or a reference that was not named.
 *  3. Only strings are deleted.  A key of another type belongs to another program: only its reference is removed.
 *
 * O(log n) per message. */
#include "queue/parts.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "topic/packet_id.h"
#include "server/keyspace.h"
#include "server/memory.h"
#include "server/replication.h"
#include "queue/notes.h"
#include "queue/sweep.h"
#include "queue/usage.h"

/* Names in one replicated command. */
#define REMOVE_CHUNK 1000
/* Shorter runs are not searched for: finding one costs more than naming its references. */
#define RUN_LEAST 4

/* References that were removed from the set: the first `run` of them are all that it held from score `first` to
 * `last`. */
typedef struct removal {
    server_string **members;
    size_t count;
    bool ours; /* they name messages of this session */
    size_t run;
    long long first, last;
} removal;

/* ---- replicating ------------------------------------------------------------------------------------------- */

static void replicate_references(queue *q, const removal *r) {
    if (queue_length(q) == 0) return; /* the whole set is removed */
    if (r->run > 0) sv.Replicate(q->ctx, "ZREMRANGEBYSCORE", "sll", q->messages_name, r->first, r->last);
    for (size_t from = r->run; from < r->count; from += REMOVE_CHUNK) {
        size_t n = r->count - from < REMOVE_CHUNK ? r->count - from : REMOVE_CHUNK;
        sv.Replicate(q->ctx, "ZREM", "sv", q->messages_name, r->members + from, n);
    }
}

static void replicate_messages(queue *q, const removal *r, const bool *deleted) {
    server_string *names[REMOVE_CHUNK];
    size_t named = 0;
    if (queue_length(q) == 0) names[named++] = q->messages_name;
    for (size_t i = 0; i < r->count; i++) {
        if (!deleted[i]) continue;
        names[named++] = r->members[i];
        if (named < REMOVE_CHUNK) continue;
        sv.Replicate(q->ctx, "UNLINK", "v", names, named);
        named = 0;
    }
    if (named > 0) sv.Replicate(q->ctx, "UNLINK", "v", names, named);
}

static void replicate_removal(queue *q, const removal *r, const bool *deleted) {
    if (!q->taken) {
        sv.ReplicateVerbatim(q->ctx); /* counts as a change (server/replication.h) */
        return;
    }
    hmq_assert(r->run <= r->count && (r->run == 0 || (r->first >= 1 && r->first <= r->last))); /* invariant 2 */
    queue_replicate_now(q->ctx); /* invariant 1 */
    replicate_references(q, r);
    replicate_messages(q, r, deleted);
}

/* ---- removing ---------------------------------------------------------------------------------------------- */

static bool delete_message(queue *q, server_string *member, size_t *bytes) {
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ | SERVER_WRITE);
    bool is_message = sv.KeyType(message) == SERVER_STRING;
    if (is_message) *bytes += sv.ValueLength(message);
    if (is_message) sv.DeleteKey(message);
    sv.CloseKey(message);
    if (is_message) index_notify_others(q->ctx, SERVER_NOTIFY_GENERIC, "del", member);
    return is_message;
}

/* The events of the commands that are replicated. */
static void notify_removal(queue *q, const removal *r) {
    if (queue_length(q) == 0) {
        q->emptied = true;
        index_notify_others(q->ctx, SERVER_NOTIFY_GENERIC, "del", q->messages_name);
        return;
    }
    if (r->run > 0) index_notify_others(q->ctx, SERVER_NOTIFY_ZSET, "zremrangebyscore", q->messages_name);
    if (r->run < r->count) index_notify_others(q->ctx, SERVER_NOTIFY_ZSET, "zrem", q->messages_name);
}

/* The references are removed from the set: removes their messages, replicates and announces both. */
static void forget_messages(queue *q, const removal *r) {
    bool small[64];
    bool *deleted = scratch_alloc(small, sizeof small, r->count * sizeof *deleted);
    size_t bytes = 0, unknown = 0;
    for (size_t i = 0; i < r->count; i++) {
        bool is_ours = r->ours || queue_packet_id_of(q->session, r->members[i]) != 0;
        deleted[i] = is_ours && delete_message(q, r->members[i], &bytes);
        unknown += !deleted[i];
    }
    queue_note_removed(q, r->count, bytes, unknown);
    replicate_removal(q, r, deleted);
    scratch_free(deleted, small);
    notify_removal(q, r);
}

void queue_remove_members(queue *q, server_string **members, size_t count) {
    for (size_t i = 0; i < count; i++) {
        queue_note_leaving(q, members[i]);
        sv.ZsetRem(q->messages, members[i], NULL);
    }
    forget_messages(q, &(removal){.members = members, .count = count});
}

size_t queue_remove_oldest(queue *q, uint64_t after, size_t most) {
    server_string **members = sv.Alloc(most * sizeof *members);
    size_t found = queue_collect_oldest(q, after, members, most);
    if (found > 0) queue_remove_members(q, members, found);
    queue_free_members(members, found);
    sv.Free(members);
    return found;
}

static size_t bytes_of(queue *q, server_string *member) {
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ | SERVER_OPEN_NOTOUCH);
    size_t bytes = sv.KeyType(message) == SERVER_STRING ? sv.ValueLength(message) : 0;
    if (message != NULL) sv.CloseKey(message);
    return bytes;
}

size_t queue_remove_oldest_of(queue *q, uint64_t after, size_t count, size_t bytes) {
    size_t length = queue_length(q), found = 0, freed = 0;
    if (bytes == 0) return count == 0 ? 0 : queue_remove_oldest(q, after, count);
    if (length == 0) return 0;
    server_string **members = sv.Alloc(length * sizeof *members);
    sv.ZsetFirstInScoreRange(q->messages, (double)after, INFINITY, 1, 0);
    for (; !sv.ZsetRangeEndReached(q->messages) && (found < count || freed < bytes); sv.ZsetRangeNext(q->messages)) {
        members[found] = sv.ZsetRangeCurrentElement(q->messages, NULL);
        freed += bytes_of(q, members[found++]);
    }
    sv.ZsetRangeStop(q->messages);
    if (found > 0) queue_remove_members(q, members, found);
    queue_free_members(members, found);
    sv.Free(members);
    return found;
}

/* ---- by packet identifier ---------------------------------------------------------------------------------- */

/* Is it a score that text can represent exactly? */
static bool is_serial(double score) {
    return score >= 1 && score <= (double)QUEUE_MAX_SERIAL && score == (double)(long long)score;
}

/* Collects references from score `first` on, while they are those of the identifiers, in their order. */
static void collect_run(queue *q, const uint16_t *packet_ids, size_t count, double first, removal *r) {
    double score, last = 0, before = 0; /* of the last member, of the one before it */
    bool is_next = true;
    sv.ZsetFirstInScoreRange(q->messages, first, INFINITY, 0, 0);
    for (; is_next && !sv.ZsetRangeEndReached(q->messages); sv.ZsetRangeNext(q->messages)) {
        server_string *member = sv.ZsetRangeCurrentElement(q->messages, &score);
        is_next = r->count < count && score > last && is_serial(score) &&
                  queue_packet_id_of(q->session, member) == packet_ids[r->count];
        if (is_next) {
            r->members[r->count++] = member;
            before = last, last = score;
            continue;
        }
        sv.FreeString(NULL, member);
        if (r->count > 0 && score == last) { /* it stays, so the range must not end with this score */
            sv.FreeString(NULL, r->members[--r->count]);
            last = before;
        }
    }
    sv.ZsetRangeStop(q->messages);
    r->first = (long long)first;
    r->last = (long long)last;
}

/* The messages with the first identifiers, if they are a run. */
static void remove_run(queue *q, const uint16_t *packet_ids, size_t count, removal *r) {
    double first;
    if (count < RUN_LEAST) return;
    server_string *member = queue_message_name(q->session, packet_ids[0]);
    bool there = sv.ZsetScore(q->messages, member, &first) == SERVER_OK;
    sv.FreeString(NULL, member);
    if (!there || !is_serial(first)) return;
    collect_run(q, packet_ids, count, first, r);
    if (r->count >= RUN_LEAST) r->run = r->count;
    if (r->count == queue_length(q)) {
        sv.DeleteKey(q->messages);
        return;
    }
    for (size_t i = 0; i < r->count; i++) {
        queue_note_leaving(q, r->members[i]);
        sv.ZsetRem(q->messages, r->members[i], NULL);
    }
}

static void remove_one(queue *q, uint16_t packet_id, removal *r) {
    int removed = 0;
    server_string *member = queue_message_name(q->session, packet_id);
    queue_note_leaving(q, member);
    sv.ZsetRem(q->messages, member, &removed);
    if (removed)
        r->members[r->count++] = member;
    else
        sv.FreeString(NULL, member);
}

size_t queue_remove(queue *q, const uint16_t *packet_ids, size_t count) {
    server_string *small[64];
    if (queue_length(q) == 0) return 0;
    removal r = {.members = scratch_alloc(small, sizeof small, count * sizeof *r.members), .ours = true};
    remove_run(q, packet_ids, count, &r);
    for (size_t i = r.count; i < count; i++) remove_one(q, packet_ids[i], &r);
    if (r.count > 0) forget_messages(q, &r);
    queue_free_members(r.members, r.count);
    scratch_free(r.members, small);
    return r.count;
}

/* Without their messages. */
static void drop_references(queue *q) {
    queue_replicate_now(q->ctx); /* invariant 1 */
    sv.UnlinkKey(q->messages);
    replicate_if(q->taken, q->ctx, "UNLINK", "s", q->messages_name);
    q->emptied = true;
    index_notify_others(q->ctx, SERVER_NOTIFY_GENERIC, "del", q->messages_name);
    queue_usage_counted(q, 0);
}

size_t queue_drop(queue *q) {
    size_t length = queue_length(q);
    long long begun_ms = sv.Milliseconds(), last_id = length == 0 ? 0 : queue_last_packet_id(q);
    if (length > 0 && sweep_defer_removal(sv.GetSelectedDb(q->ctx), q->session, length, last_id))
        drop_references(q);
    else if (length > 0)
        queue_remove_oldest(q, 0, length);
    slow_step("holdmq-session-drop", begun_ms);
    queue_note_forget(q);
    server_key *last = sv.OpenKey(q->ctx, queue_counter_name(q), SERVER_WRITE);
    if (sv.KeyType(last) != SERVER_EMPTY) {
        sv.DeleteKey(last);
        replicate_if(q->taken, q->ctx, "UNLINK", "s", q->last_name);
        index_notify(q->ctx, SERVER_NOTIFY_GENERIC, "del", q->last_name);
    }
    sv.CloseKey(last);
    return length;
}
