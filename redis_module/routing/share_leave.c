/* share_leave.c - a member of a group leaves. */
#include "routing/share_leave.h"

#include "topic/record.h"
#include "server/command_slot.h"
#include "server/session_keys.h"
#include "server/slots.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/session_hash.h"
#include "index/sessions.h"
#include "index/shares.h"
#include "queue/queue.h"
#include "routing/share.h"
#include "routing/share_crew.h"
#include "routing/share_taken.h"

#define SLICE 200      /* messages given back in the step of a command */
#define SHORT_SLICE 50 /* ... between two checks of the clock */
#define STEP_MS 1      /* of a step of the clock; then other work is done */

/* A member that gives messages back. */
typedef struct leaver {
    server_ctx *ctx;
    index_t *index;
    hmq_slice session;
    const indexed_session *member; /* NULL: it has no subscriptions */
    uint64_t sent;                 /* its client got messages up to this serial */
    bool connected, ended;
} leaver;

static leaver leaver_of(server_ctx *ctx, index_t *index, hmq_slice session, bool ended) {
    const session_entry *entry = session_index_find(index->opened, session);
    return (leaver){.ctx = ctx,
                    .index = index,
                    .session = session,
                    .member = sv.DictGetC(index->sessions, session.data, session.len, NULL),
                    .sent = session_facts_read(ctx, session).sent,
                    .connected = entry != NULL && entry->connected,
                    .ended = ended};
}

/* A session that ends also gives back messages in flight with QoS 1 (MQTT 5.0 section 4.8.2). */
static bool is_given_back(const void *leaves, uint64_t serial, const hmq_record *record) {
    const leaver *by = leaves;
    if (record->share.len == 0) return false;
    bool handed = serial <= by->sent;
    if (by->ended) return !handed || record->qos == 1;
    int has_left = by->member == NULL;
    if (!has_left)
        sv.DictGetC(by->member->filters, (void *)(uintptr_t)record->share.data, record->share.len, &has_left);
    return has_left || (!by->connected && !handed);
}

/* The group's policy would have refused it. */
static void drop_without_room(server_ctx *ctx, const share *s) {
    queue q;
    if (slots_state(slots_of_key(slice_of(s->key))) != SLOT_SERVED) return;
    if (queue_open(&q, ctx, slice_of(s->key), SERVER_READ | SERVER_WRITE)) queue_dropped(&q);
    queue_close(&q);
}

/* Delivers to another member, or to the group's queue.  False: there is no room.  `c` is the crew of the previous
 * message. */
static bool redistribute_one(server_ctx *ctx, index_t *index, share_crew *c, const server_string *bytes) {
    hmq_record record;
    message m;
    if (!share_message_again(&m, bytes, &record)) {
        counters.session_expired++;
        return true;
    }
    bool given = true;
    share *s = share_find(index->shares, record.share);
    if (s != NULL) { /* else the group has ended, with its messages */
        if (c->s != s) {
            share_crew_end(c);
            share_crew_begin(c, ctx, index, s);
        }
        given = share_redeliver(c, &m);
        counters.shared_redistributed += given;
    }
    message_end(&m);
    return given;
}

/* Returns how many were delivered, up to the first for which there is no room; with `drops` all.  `by`: the session
 * that will continue; len 0: none. */
static size_t redistribute_all(server_ctx *ctx, index_t *index, const share_takes *t, hmq_slice by, bool drops) {
    share_crew c = {0};
    size_t given = 0;
    index_pin(index, INDEX_SESSIONS);
    for (; given < t->count; given++) {
        bool has_room = redistribute_one(ctx, index, &c, t->list[given].record);
        if (by.len > 0 && c.s != NULL) share_note_leaver(c.s, by);
        if (has_room) continue;
        if (!drops) break;
        drop_without_room(ctx, c.s);
    }
    share_crew_end(&c);
    index_unpin(index, INDEX_SESSIONS);
    return given;
}

/* Gives back messages among the next `count` after `after`.  False: there are no more, or there is no room. */
static bool give_back_some(const leaver *by, uint64_t *after, size_t count) {
    queue q;
    share_takes t = {.selects = is_given_back, .selector_context = by};
    queue_walked walked = {0};
    size_t given = 0;
    if (queue_open(&q, by->ctx, by->session, SERVER_READ | SERVER_WRITE)) {
        queue_range range = {.after = *after, .up_to = UINT64_MAX, .sent = by->sent, .count = count, .bytes = SIZE_MAX};
        walked = queue_walk(&q, range, share_take, &t);
        given = redistribute_all(by->ctx, by->index, &t, walked.more ? by->session : (hmq_slice){0}, by->ended);
        share_takes_remove(&q, &t, given);
    }
    queue_close(&q);
    bool has_more = walked.more && given == t.count;
    share_takes_free(&t);
    if (walked.visited > 0) *after = walked.last;
    return has_more;
}

static void release_string(void *string) {
    sv.FreeString(NULL, string);
}

static void member_left(server_ctx *ctx, void *key) {
    hmq_slice session = slice_of(key);
    session_facts facts = session_facts_read(ctx, session);
    leaver by = leaver_of(ctx, index_of(ctx), session, false);
    uint64_t from = facts.gives_back_from > 0 ? facts.gives_back_from - 1 : facts.sent, after = from;
    long long begun_ms = sv.Milliseconds();
    bool more = give_back_some(&by, &after, SLICE);
    slow_step("holdmq-share-leave", begun_ms);
    if (!more || facts.gives_back_from > 0) return;
    if (session_index_find(index_of(ctx)->opened, session) == NULL) return; /* nothing would continue it */
    session_fact_write(ctx, session, "gives", from + 1, SERVER_NO_EXPIRE);
    session_index_refresh(ctx, index_of(ctx)->opened, session);
}

void share_member_left(server_ctx *ctx, hmq_slice session) {
    server_string *key = sv.CreateString(NULL, (const char *)session.data, session.len);
    command_slot_after(ctx, member_left, key, release_string);
}

bool share_leave_continue(server_ctx *ctx, hmq_slice session, bool ended, long long until_ms) {
    index_t *index = index_of(ctx);
    session_entry *entry = session_index_find(index->opened, session);
    if (entry == NULL) return false;
    leaver by = leaver_of(ctx, index, session, ended);
    long long begun_ms = sv.Milliseconds();
    uint64_t gives_back_from = session_facts_read(ctx, session).gives_back_from, after = entry->gave_up_to;
    if (gives_back_from > 0 && after < gives_back_from - 1) after = gives_back_from - 1;
    if (until_ms > begun_ms + STEP_MS) until_ms = begun_ms + STEP_MS;
    bool more = give_back_some(&by, &after, SHORT_SLICE);
    while (more && sv.Milliseconds() < until_ms) more = give_back_some(&by, &after, SHORT_SLICE);
    slow_step("holdmq-share-leave", begun_ms);
    entry = session_index_find(index_of(ctx)->opened, session);
    if (entry != NULL) entry->gave_up_to = more ? after : 0;
    return more;
}

static void redistribute_list(server_ctx *ctx, void *list) {
    redistribute_all(ctx, index_of(ctx), list, (hmq_slice){0}, true);
}

static void release_list(void *list) {
    share_takes_free(list);
    sv.Free(list);
}

bool share_ends_at_once(server_ctx *ctx, hmq_slice session) {
    queue q;
    bool is_short = !queue_open(&q, ctx, session, SERVER_READ) || queue_length(&q) <= SLICE;
    queue_close(&q);
    return is_short;
}

void share_give_back(server_ctx *ctx, hmq_slice session) {
    queue q;
    leaver by = leaver_of(ctx, index_of(ctx), session, true);
    share_takes *t = sv.Calloc(1, sizeof *t);
    t->selects = is_given_back;
    t->selector_context = &by;
    if (queue_open(&q, ctx, session, SERVER_READ | SERVER_WRITE)) {
        queue_range range = {.up_to = UINT64_MAX, .sent = by.sent, .count = SLICE, .bytes = SIZE_MAX};
        queue_walk(&q, range, share_take, t);
        share_takes_remove(&q, t, t->count);
    }
    queue_close(&q);
    command_slot_after(ctx, redistribute_list, t, release_list);
}
