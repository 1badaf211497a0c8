/* walk.c - reads a part of a queue, and replaces a message. */
#include <math.h>

#include "topic/record.h"
#include "server/keyspace.h"
#include "server/memory.h"
#include "server/replication.h"
#include "queue/notes.h"

/* References that a walk looks at in one step while it removes expired ones, so that no page takes long. */
#define WALK_MAX_EXPIRED 10000

/* The state of a walk. */
typedef struct walk {
    queue *q;
    const queue_range *range;
    queue_visit visit;
    void *context;
    size_t bytes; /* of the values visited */
    long long now_ms;
} walk;

/* Is it past its own expiry, and not handed out? */
static bool is_past(const walk *w, uint64_t serial, const char *value, size_t len) {
    if (serial <= w->range->sent) return false;
    int64_t expires_ms = hmq_record_expires((const uint8_t *)value, len);
    return expires_ms > 0 && expires_ms <= w->now_ms;
}

/* Does the range take one more message?  If not, the walk is over. */
static bool has_room(const walk *w, uint64_t serial, uint16_t packet_id, size_t len, queue_walked *walked) {
    walked->more = w->range->bounded && w->bytes + len > w->range->bytes;
    if (!walked->more || walked->visited > 0) return !walked->more;
    walked->too_large = len;
    walked->too_large_serial = serial;
    walked->too_large_id = packet_id;
    return false;
}

/* Visits one reference; false if its message is gone. */
static bool visit_member(walk *w, server_string *member, uint64_t serial, queue_walked *walked) {
    queue *q = w->q;
    uint16_t packet_id = queue_packet_id_of(q->session, member);
    if (packet_id == 0) return false; /* no message of this session, whatever it is */
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ);
    if (message == NULL) return false;
    bool live = sv.KeyType(message) == SERVER_STRING;
    if (live) {
        size_t len;
        const char *value = sv.StringDMA(message, &len, SERVER_READ);
        live = !is_past(w, serial, value, len);
        if (live && has_room(w, serial, packet_id, len, walked)) {
            w->visit(w->context, serial, packet_id, value, len);
            w->bytes += len;
            walked->visited++;
            walked->last = serial;
        }
    }
    sv.CloseKey(message);
    return live;
}

/* References without a message, to be removed after the walk, because removing would end it. */
typedef struct gone_list {
    server_string **members;
    size_t count, room;
} gone_list;

static void gone_append(gone_list *gone, server_string *member) {
    gone->members = array_reserve(gone->members, &gone->room, gone->count, 1, 64, sizeof *gone->members);
    gone->members[gone->count++] = member;
}

static bool is_full(const queue_walked *walked, const queue_range *range, size_t bytes) {
    return walked->visited >= range->count || (walked->visited > 0 && bytes >= range->bytes);
}

queue_walked queue_walk(queue *q, queue_range range, queue_visit visit, void *context) {
    queue_walked walked = {0};
    gone_list gone = {0};
    if (queue_length(q) == 0 || range.up_to == 0) return walked;
    walk w = {.q = q, .range = &range, .visit = visit, .context = context, .now_ms = sv.Milliseconds()};
    double last = range.up_to == UINT64_MAX ? INFINITY : (double)range.up_to;
    sv.ZsetFirstInScoreRange(q->messages, (double)range.after, last, 1, 0);
    for (; !sv.ZsetRangeEndReached(q->messages) && !walked.more; sv.ZsetRangeNext(q->messages)) {
        double score;
        server_string *member = sv.ZsetRangeCurrentElement(q->messages, &score);
        bool live;
        if (!(score >= 1 && score <= (double)QUEUE_MAX_SERIAL)) {
            live = false; /* another program's entry, without a serial */
        } else if (is_full(&walked, &range, w.bytes)) {
            live = walked.more =
                gone.count == WALK_MAX_EXPIRED || queue_message_expiry(q, member, (uint64_t)score > range.sent) != 0;
        } else {
            live = visit_member(&w, member, (uint64_t)score, &walked);
        }
        if (live)
            sv.FreeString(NULL, member);
        else
            gone_append(&gone, member);
        if (gone.count == WALK_MAX_EXPIRED) walked.more = true;
    }
    sv.ZsetRangeStop(q->messages);
    if (gone.count > 0) queue_remove_members(q, gone.members, gone.count);
    queue_free_members(gone.members, gone.count);
    sv.Free(gone.members);
    walked.expired = (long long)gone.count;
    counters.session_expired += gone.count;
    return walked;
}

bool queue_any_between(const queue *q, uint64_t after, uint64_t up_to) {
    if (queue_length(q) == 0 || up_to <= after) return false;
    sv.ZsetFirstInScoreRange(q->messages, (double)after, up_to == UINT64_MAX ? INFINITY : (double)up_to, 1, 0);
    bool any = !sv.ZsetRangeEndReached(q->messages);
    sv.ZsetRangeStop(q->messages);
    return any;
}

/* Was the message stored after that time?  In doubt (it is gone, or has no time) it was not. */
static bool is_newer(queue *q, server_string *member, long long ms) {
    server_key *message = sv.OpenKey(q->ctx, member, SERVER_READ);
    bool newer = false;
    if (sv.KeyType(message) == SERVER_STRING) {
        size_t len;
        hmq_record record;
        const char *value = sv.StringDMA(message, &len, SERVER_READ);
        newer = hmq_record_decode((const uint8_t *)value, len, &record) == 0 && record.time_ms > ms;
    }
    if (message != NULL) sv.CloseKey(message);
    return newer;
}

/* The first reference from `serial` on, up to `last`; its serial, 0 if there is none. */
static uint64_t first_from(queue *q, uint64_t serial, uint64_t last, server_string **member) {
    double score = 0;
    sv.ZsetFirstInScoreRange(q->messages, (double)serial, (double)last, 0, 0);
    *member = sv.ZsetRangeEndReached(q->messages) ? NULL : sv.ZsetRangeCurrentElement(q->messages, &score);
    sv.ZsetRangeStop(q->messages);
    return *member == NULL ? 0 : (uint64_t)score;
}

uint64_t queue_serial_stored_by(queue *q, long long ms) {
    if (queue_length(q) == 0) return UINT64_MAX;
    const uint64_t end = queue_last_serial(q) + 1;
    uint64_t by = queue_first_serial(q) - 1,
             after = end; /* up to `by` they may be older, from `after` on they are newer */
    while (after - by > 1) {
        uint64_t middle = by + (after - by) / 2;
        server_string *member;
        uint64_t serial = first_from(q, middle, after - 1, &member);
        if (member == NULL || is_newer(q, member, ms))
            after = middle;
        else
            by = serial;
        if (member != NULL) sv.FreeString(NULL, member);
    }
    return after == end ? UINT64_MAX : by;
}

/* ---- replacing --------------------------------------------------------------------------------------------- */

bool queue_replace(queue *q, uint16_t packet_id, queue_rewrite rewrite, void *context) {
    double score;
    server_string *member = queue_message_name(q->session, packet_id);
    server_key *message = NULL;
    long long lifted_ms = 0;
    bool there = queue_length(q) > 0 && sv.ZsetScore(q->messages, member, &score) == SERVER_OK;
    if (there) {
        message = sv.OpenKey(q->ctx, member, SERVER_READ | SERVER_WRITE);
        there = sv.KeyType(message) == SERVER_STRING;
    }
    if (there) {
        size_t len;
        const char *value = sv.StringDMA(message, &len, SERVER_READ);
        int64_t own_ms = hmq_record_expires((const uint8_t *)value, len);
        server_string *replaced = rewrite(context, packet_id, value, len);
        long long expire_ms = sv.GetAbsExpire(message), end_ms = queue_in_flight_expiry_ms(own_ms, expire_ms);
        queue_note_resized(q, (uint64_t)score, len, slice_of(replaced).len);
        sv.StringSet(message, replaced);
        sv.SetAbsExpire(message, end_ms);
        if (end_ms == expire_ms)
            replicate_if(q->taken, q->ctx, "SET", "ssc", member, replaced, "KEEPTTL");
        else
            replicate_if(q->taken, q->ctx, "SET", "sscl", member, replaced, "PXAT", end_ms);
        index_notify(q->ctx, SERVER_NOTIFY_STRING, "set", member);
        if (end_ms != expire_ms) lifted_ms = end_ms;
        sv.FreeString(NULL, replaced);
    }
    if (message != NULL) sv.CloseKey(message);
    sv.FreeString(NULL, member);
    if (lifted_ms > 0) {
        session_facts facts = session_facts_read(q->ctx, q->session);
        queue_extend_expiry(q, &facts, lifted_ms);
    }
    return there;
}
