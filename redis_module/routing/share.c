/* share.c - shared subscriptions: one member of a group gets each message. */
#include "routing/share.h"

#include <string.h>

#include "topic/record.h"
#include "topic/session_key.h"
#include "server/command_slot.h"
#include "server/session_keys.h"
#include "server/slots.h"
#include "index/filters.h"
#include "index/session_hash.h"
#include "index/sessions.h"
#include "index/shares.h"
#include "index/subscription.h"
#include "queue/allowance.h"
#include "queue/queue.h"
#include "routing/share_crew.h"
#include "routing/share_replay_keys.h"
#include "routing/share_taken.h"

#define SLICE 200 /* messages handed out to a new member */

/* ---- one message ------------------------------------------------------------------------------------------- */

/* Appends it to the queue of the group, or of a member that leaves, after all pending messages. */
static bool append(server_ctx *ctx, server_string *key, hmq_slice filter, message *m) {
    if (hmq_record_has_zero_ttl(&m->record)) return false;
    if (slots_state(slots_of_key(slice_of(key))) != SLOT_SERVED)
        return false; /* the slot is on another node: the group has no members here */
    indexed_session group = {.key = key};
    delivery_how how = {.qos = m->record.qos, .retain = m->record.retain, .share = filter, .quietly = true};
    if (!deliver(ctx, &group, m, &how)) return false;
    counters.shared_queued++;
    return true;
}

/* Is a member giving messages back?  Then all published messages go after these. */
static bool is_left(const index_t *index, share *s) {
    if (s->leaver == NULL) return false;
    const session_entry *entry = session_index_find(index->opened, slice_of(s->leaver));
    if (entry != NULL && (entry->gives_back || entry->ending)) return true;
    sv.FreeString(NULL, s->leaver);
    s->leaver = NULL;
    return false;
}

static bool is_name(const server_string *name, hmq_slice of) {
    hmq_slice text = slice_of(name);
    return hmq_slice_equal(text, of);
}

void share_note_leaver(share *s, hmq_slice session) {
    if (s->leaver != NULL && is_name(s->leaver, session)) return;
    if (s->leaver != NULL) sv.FreeString(NULL, s->leaver);
    s->leaver = sv.CreateString(NULL, (const char *)session.data, session.len);
}

/* Is a message pending in the group's queue?  If not, notes that. */
bool share_has_pending(server_ctx *ctx, share *s) {
    if (!s->waits) return false;
    size_t length = share_length_of(ctx, slice_of(s->key));
    s->waits = length > 0 && length != SIZE_MAX;
    return s->waits;
}

static void mark_waiting(index_t *index, share *s) {
    hmq_slice filter = slice_of(s->filter);
    s->waits = true;
    sv.DictSetC(index->waiting, filter.data, filter.len, index);
}

bool share_deliver_if_room(server_ctx *ctx, index_t *index, share *s, message *m) {
    share_crew c;
    share_crew_begin(&c, ctx, index, s);
    bool given = share_crew_deliver(&c, m, SHARE_ROOM);
    share_crew_end(&c);
    return given;
}

bool share_redeliver(share_crew *c, message *m) {
    share *s = c->s;
    if (m->record.qos == 0) return share_crew_deliver(c, m, SIZE_MAX);
    if (!share_has_pending(c->ctx, s) && share_crew_deliver(c, m, SIZE_MAX)) return true;
    if (!append(c->ctx, s->key, slice_of(s->filter), m)) return false;
    mark_waiting(c->index, s);
    return true;
}

bool share_deliver(server_ctx *ctx, index_t *index, share *s, message *m) {
    share_crew c;
    if (m->record.qos > 0 && is_left(index, s) && append(ctx, s->leaver, slice_of(s->filter), m)) return true;
    share_crew_begin(&c, ctx, index, s);
    bool delivered = share_redeliver(&c, m);
    share_crew_end(&c);
    return delivered;
}

static void release_string(void *string) {
    sv.FreeString(NULL, string);
}

/* ---- the end of a group ------------------------------------------------------------------------------------ */

share_names share_names_of(server_ctx *ctx, hmq_slice session) {
    share_names names = {0};
    index_t *index = index_of(ctx);
    const indexed_session *member = sv.DictGetC(index->sessions, session.data, session.len, NULL);
    if (member == NULL) return names;
    server_dict_iter *iter = sv.DictIteratorStartC(member->filters, "^", NULL, 0);
    hmq_slice filter;
    while ((filter.data = sv.DictNextC(iter, &filter.len, NULL)) != NULL) {
        if (share_find(index->shares, filter) == NULL) continue;
        if (names.list == NULL) names.list = sv.Alloc((size_t)sv.DictSize(member->filters) * sizeof *names.list);
        names.list[names.count++] = sv.CreateString(NULL, (const char *)filter.data, filter.len);
    }
    sv.DictIteratorStop(iter);
    return names;
}

static void end_if_left(server_ctx *ctx, void *data) {
    hmq_slice filter = slice_of(data);
    if (share_find(index_of(ctx)->shares, filter) != NULL) return;
    share_replay_end(ctx, index_of(ctx), filter);
    server_string *key = session_key_of(filter);
    queue q;
    if (slots_state(slots_of_key(slice_of(key))) == SLOT_SERVED) {
        bool usable = queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE);
        if (usable) queue_drop(&q);
        queue_close(&q);
        if (usable) session_delete_key(ctx, slice_of(key), HMQ_SUFFIX_SESSION); /* what the queue counted */
    }
    sv.FreeString(NULL, key);
}

void share_end_if_left(server_ctx *ctx, hmq_slice filter) {
    server_string *name = sv.CreateString(NULL, (const char *)filter.data, filter.len);
    command_slot_after(ctx, end_if_left, name, release_string);
}

void share_names_end(server_ctx *ctx, share_names *names) {
    for (size_t i = 0; i < names->count; i++) {
        share_end_if_left(ctx, slice_of(names->list[i]));
        sv.FreeString(NULL, names->list[i]);
    }
    sv.Free(names->list);
}

/* ---- what waits -------------------------------------------------------------------------------------------- */

bool share_deliver_pending(server_ctx *ctx, index_t *index, share *s, size_t count) {
    queue q;
    share_crew c;
    share_takes t = {0};
    queue_walked walked = {0};
    size_t given = 0;
    bool blocked = false;
    if (slots_state(slots_of_key(slice_of(s->key))) != SLOT_SERVED) return false;
    share_crew_begin(&c, ctx, index, s);
    if (queue_open(&q, ctx, slice_of(s->key), SERVER_READ | SERVER_WRITE)) {
        queue_range range = {.up_to = UINT64_MAX, .count = count, .bytes = SIZE_MAX};
        walked = queue_walk(&q, range, share_take, &t);
        for (; given < t.count && !blocked; given += !blocked) {
            hmq_record record;
            message m;
            if (!share_message_again(&m, t.list[given].record, &record)) continue;
            blocked = !share_crew_deliver(&c, &m, SIZE_MAX);
            message_end(&m);
        }
        share_takes_remove(&q, &t, given);
    }
    queue_close(&q);
    share_crew_end(&c);
    share_takes_free(&t);
    if (!walked.more && !blocked) s->waits = false;
    return walked.more && !blocked;
}

/* A new member, and the only share to look at; NULL: all. */
typedef struct newcomer {
    server_string *session, *only;
} newcomer;

static void free_new_member(void *data) {
    newcomer *n = data;
    sv.FreeString(NULL, n->session);
    if (n->only != NULL) sv.FreeString(NULL, n->only);
    sv.Free(n);
}

/* Hands out the pending messages of one of the member's groups.  In one step, only the first group gets more than a
 * look. */
static void serve_member(server_ctx *ctx, index_t *index, hmq_slice filter, size_t *served) {
    share *s = share_find(index->shares, filter);
    if (s == NULL) return;
    s->waits = true;
    bool waits = share_has_pending(ctx, s);
    if ((waits && ((*served)++ > 0 || share_deliver_pending(ctx, index, s, SLICE))) || share_replays(index, filter))
        mark_waiting(index, s); /* the module's clock continues */
}

static void serve_new_member(server_ctx *ctx, void *data) {
    const newcomer *n = data;
    hmq_slice session = slice_of(n->session), only = n->only == NULL ? (hmq_slice){0} : slice_of(n->only);
    index_t *index = index_of(ctx);
    const indexed_session *member = sv.DictGetC(index->sessions, session.data, session.len, NULL);
    size_t served = 0;
    if (member == NULL) return;
    index_pin(index, INDEX_SESSIONS);
    if (only.len > 0) { /* looked up, not searched: a SUBSCRIBE calls this once for each of its many filters */
        if (sv.DictGetC(member->filters, only.data, only.len, NULL) != NULL) serve_member(ctx, index, only, &served);
    } else {
        server_dict_iter *iter = sv.DictIteratorStartC(member->filters, "^", NULL, 0);
        hmq_slice filter;
        while ((filter.data = sv.DictNextC(iter, &filter.len, NULL)) != NULL) serve_member(ctx, index, filter, &served);
        sv.DictIteratorStop(iter);
    }
    index_unpin(index, INDEX_SESSIONS);
}

void share_member_joined(server_ctx *ctx, hmq_slice session, hmq_slice only) {
    newcomer *n = sv.Calloc(1, sizeof *n);
    n->session = sv.CreateString(NULL, (const char *)session.data, session.len);
    if (only.len > 0) n->only = sv.CreateString(NULL, (const char *)only.data, only.len);
    command_slot_after(ctx, serve_new_member, n, free_new_member);
}

void share_note_window(server_ctx *ctx, hmq_slice session, size_t window) {
    index_t *index = index_of(ctx);
    const session_entry *entry = session_index_find(index->opened, session);
    if (entry == NULL || !entry->shares || entry->window == window) return;
    session_fact_write(ctx, session, "window", window, SERVER_NO_EXPIRE);
    session_index_refresh(ctx, index->opened, session);
}
