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
#include "routing/share_replay_keys.h"

#define MOST_CANDIDATES 64 /* members looked at for one message */
#define SLICE 200          /* messages handed out, or back, at once */

/* ---- one message ------------------------------------------------------------------------------------------- */

static size_t length_of(server_ctx *ctx, hmq_slice session) {
    queue q;
    size_t length = queue_open(&q, ctx, session, SERVER_READ) ? queue_length(&q) : SIZE_MAX; /* cannot be served */
    queue_close(&q);
    return length;
}

static uint32_t options_of(const indexed_session *member, hmq_slice filter) {
    uintptr_t stands = (uintptr_t)sv.DictGetC(member->filters, filter.data, filter.len, NULL);
    return stands == 0 ? 0 : (uint32_t)(stands - 1);
}

static bool give(server_ctx *ctx, share *s, const indexed_session *member, message *m) {
    uint32_t options = options_of(member, slice_of(s->filter)), identifier = subscription_identifier(options);
    uint8_t most = options & SUBSCRIPTION_QOS;
    delivery_how how = {.qos = most < m->record.qos ? most : m->record.qos,
                        .retain = (options & SUBSCRIPTION_RETAIN_AS_PUBLISHED) != 0 && m->record.retain,
                        .identifiers = &identifier,
                        .identifier_count = identifier != 0,
                        .share = slice_of(s->filter)};
    if (!deliver(ctx, member, m, &how)) return false;
    if (s->last != NULL) sv.FreeString(NULL, s->last);
    s->last = sv.HoldString(NULL, member->key);
    counters.shared_delivered++;
    return true;
}

static bool is_connected(server_ctx *ctx, index_t *index, const indexed_session *member, size_t *window) {
    const session_entry *entry = session_index_find(index->opened, slice_of(member->key));
    *window = entry == NULL || entry->window == 0 ? SIZE_MAX : entry->window;
    return entry != NULL && entry->connected && slots_state(member->slot) == SLOT_SERVED &&
           index_session_lives(ctx, index, member);
}

/* To the member whose turn it is and who has room: less than its window, and than `most`.  If all have more, to the one
 * that has least, unless there is a `most`.  False: to nobody. */
static bool give_in_turn(server_ctx *ctx, index_t *index, share *s, message *m, size_t most) {
    const indexed_session *least = NULL;
    size_t least_length = most == SIZE_MAX ? (size_t)settings.session_limit : 0, members = sv.DictSize(s->members);
    server_string *after = s->last == NULL ? NULL : sv.HoldString(NULL, s->last);
    bool given = false;
    for (size_t i = 0; !given && i < members && i < MOST_CANDIDATES; i++) {
        size_t window;
        const indexed_session *member = share_next_member(s, after);
        if (after != NULL) sv.FreeString(NULL, after);
        after = sv.HoldString(NULL, member->key);
        if (!is_connected(ctx, index, member, &window)) continue;
        bool stored = m->record.qos > 0 && (options_of(member, slice_of(s->filter)) & SUBSCRIPTION_QOS) > 0;
        size_t length = stored ? length_of(ctx, slice_of(member->key)) : 0;
        /* What a user has no room for goes to a member of another user, or waits for the group. */
        if (stored && !queue_usage_allows(ctx, slice_of(member->key), hmq_record_size(&m->record))) continue;
        if (length < window && length < most && length < (size_t)settings.session_limit)
            given = give(ctx, s, member, m);
        else if (length < least_length)
            least = member, least_length = length;
    }
    if (after != NULL) sv.FreeString(NULL, after);
    return given || (least != NULL && give(ctx, s, least, m));
}

/* Behind all that waits for the group. */
static bool append(server_ctx *ctx, server_string *key, hmq_slice filter, message *m) {
    if (hmq_record_is_for_now(&m->record)) return false;
    if (slots_state(slots_of_key(slice_of(key))) != SLOT_SERVED) return false; /* another node's: nobody is here */
    indexed_session group = {.key = key};
    delivery_how how = {.qos = m->record.qos, .retain = m->record.retain, .share = filter, .quietly = true};
    if (!deliver(ctx, &group, m, &how)) return false;
    counters.shared_queued++;
    return true;
}

/* Does something wait in the group's queue?  Forgets that something may, if not. */
bool share_something_waits(server_ctx *ctx, share *s) {
    if (!s->waits) return false;
    size_t length = length_of(ctx, slice_of(s->key));
    s->waits = length > 0 && length != SIZE_MAX;
    return s->waits;
}

static void mark_waiting(index_t *index, share *s) {
    hmq_slice filter = slice_of(s->filter);
    s->waits = true;
    sv.DictSetC(index->waiting, filter.data, filter.len, index);
}

bool share_give_if_room(server_ctx *ctx, index_t *index, share *s, message *m) {
    return give_in_turn(ctx, index, s, m, SHARE_ROOM);
}

bool share_deliver(server_ctx *ctx, index_t *index, share *s, message *m) {
    if (m->record.qos == 0) return give_in_turn(ctx, index, s, m, SIZE_MAX);
    if (!share_something_waits(ctx, s) && give_in_turn(ctx, index, s, m, SIZE_MAX)) return true;
    if (!append(ctx, s->key, slice_of(s->filter), m)) return false;
    mark_waiting(index, s);
    return true;
}

static void release_string(void *string) {
    sv.FreeString(NULL, string);
}

/* ---- messages taken out of queues -------------------------------------------------------------------------- */

typedef struct taken {
    uint16_t packet_id;
    server_string *record;
} taken;

typedef struct take_list {
    hmq_slice only; /* len 0: through any share */
    bool all;       /* whatever it is */
    uint64_t sent;  /* up to here only QoS 1 */
    size_t count, room;
    taken *list;
} take_list;

static void take(void *context, uint64_t serial, uint16_t packet_id, const char *value, size_t len) {
    take_list *t = context;
    hmq_record record;
    if (hmq_record_decode((const uint8_t *)value, len, &record) != 0 || record.type != HMQ_RECORD_PUBLISH) return;
    if (!t->all) {
        if (record.share.len == 0 || (serial <= t->sent && record.qos != 1)) return;
        bool other = record.share.len != t->only.len || memcmp(record.share.data, t->only.data, t->only.len) != 0;
        if (t->only.len > 0 && other) return;
    }
    if (t->count == t->room) {
        t->room = t->room == 0 ? 64 : t->room * 2;
        t->list = sv.Realloc(t->list, t->room * sizeof *t->list);
    }
    t->list[t->count++] = (taken){packet_id, sv.CreateString(NULL, value, len)};
}

static void release(take_list *t) {
    for (size_t i = 0; i < t->count; i++) sv.FreeString(NULL, t->list[i].record);
    sv.Free(t->list);
}

/* The message of a record that comes out of a queue: what its last member had of its own is taken off.  False: expired. */
static bool message_again(message *m, const server_string *bytes, hmq_record *record) {
    hmq_slice text = slice_of(bytes);
    hmq_record_decode(text.data, text.len, record);
    long long now_ms = sv.Milliseconds();
    size_t own = subscription_property_bytes(record->properties);
    record->properties = (hmq_slice){record->properties.data + own, record->properties.len - own};
    if (record->expires_ms > 0 && record->expires_ms <= now_ms) return false;
    message_begin(m, record, now_ms);
    long long end_ms = record->time_ms + settings.session_ttl_s * 1000; /* moving does not make it live longer */
    if (m->expire_ms > end_ms) m->expire_ms = end_ms;
    if (m->expire_ms > now_ms) return true;
    message_end(m);
    return false;
}

/* To another member, or to the group's queue. */
static void give_again(server_ctx *ctx, void *bytes) {
    index_t *index = index_of(ctx);
    hmq_record record;
    message m;
    if (!message_again(&m, bytes, &record)) {
        counters.session_expired++;
        return;
    }
    index_pin(index, INDEX_SESSIONS);
    share *s = share_find(index->shares, record.share);
    if (s != NULL) { /* else the group is over, and so are its messages */
        share_deliver(ctx, index, s, &m);
        counters.shared_redistributed++;
    }
    index_unpin(index, INDEX_SESSIONS);
    message_end(&m);
}

static void remove_taken(queue *q, const take_list *t, size_t count) {
    uint16_t *ids = sv.Alloc((count + 1) * sizeof *ids);
    for (size_t i = 0; i < count; i++) ids[i] = t->list[i].packet_id;
    if (count > 0) queue_remove(q, ids, count);
    sv.Free(ids);
}

void share_give_back(server_ctx *ctx, hmq_slice session, share_back what, hmq_slice only) {
    uint64_t sent = session_facts_read(ctx, session).sent, after = what == SHARE_ENDED ? 0 : sent;
    for (bool more = true; more;) {
        queue q;
        take_list t = {.only = only, .sent = sent};
        queue_walked walked = {0};
        if (queue_open(&q, ctx, session, SERVER_READ | SERVER_WRITE)) {
            queue_range range = {.after = after, .up_to = UINT64_MAX, .sent = sent, .count = SLICE, .bytes = SIZE_MAX};
            walked = queue_walk(&q, range, take, &t);
            remove_taken(&q, &t, t.count);
        }
        queue_close(&q);
        for (size_t i = 0; i < t.count; i++)
            command_slot_after(ctx, give_again, sv.HoldString(NULL, t.list[i].record), release_string);
        release(&t);
        more = walked.more;
        if (walked.visited > 0) after = walked.last;
    }
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
    server_string *key = share_key_of(filter);
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

/* Hands out a slice of the group's queue.  True if there is more, and members took all of this. */
bool share_hand_out(server_ctx *ctx, index_t *index, share *s) {
    queue q;
    take_list t = {.all = true};
    queue_walked walked = {0};
    size_t given = 0;
    bool blocked = false;
    if (slots_state(slots_of_key(slice_of(s->key))) != SLOT_SERVED) return false;
    if (queue_open(&q, ctx, slice_of(s->key), SERVER_READ | SERVER_WRITE)) {
        queue_range range = {.up_to = UINT64_MAX, .count = SLICE, .bytes = SIZE_MAX};
        walked = queue_walk(&q, range, take, &t);
        for (; given < t.count && !blocked; given += !blocked) {
            hmq_record record;
            message m;
            if (!message_again(&m, t.list[given].record, &record)) continue;
            blocked = !give_in_turn(ctx, index, s, &m, SIZE_MAX);
            message_end(&m);
        }
        remove_taken(&q, &t, given);
    }
    queue_close(&q);
    release(&t);
    if (!walked.more && !blocked) s->waits = false;
    return walked.more && !blocked;
}

/* Who came, and the share alone that is looked at; NULL: all. */
typedef struct newcomer {
    server_string *session, *only;
} newcomer;

static void release_newcomer(void *data) {
    newcomer *n = data;
    sv.FreeString(NULL, n->session);
    if (n->only != NULL) sv.FreeString(NULL, n->only);
    sv.Free(n);
}

/* What waits for one of the groups of the member. */
static void serve_member(server_ctx *ctx, index_t *index, hmq_slice filter) {
    share *s = share_find(index->shares, filter);
    if (s == NULL) return;
    s->waits = true;
    if ((share_something_waits(ctx, s) && share_hand_out(ctx, index, s)) || share_replays(index, filter))
        mark_waiting(index, s); /* the next turn of the clock goes on */
}

static void serve_newcomer(server_ctx *ctx, void *data) {
    const newcomer *n = data;
    hmq_slice session = slice_of(n->session), only = n->only == NULL ? (hmq_slice){0} : slice_of(n->only);
    index_t *index = index_of(ctx);
    const indexed_session *member = sv.DictGetC(index->sessions, session.data, session.len, NULL);
    if (member == NULL) return;
    index_pin(index, INDEX_SESSIONS);
    if (only.len > 0) { /* not looked for: a SUBSCRIBE comes here once for each of its many filters */
        if (sv.DictGetC(member->filters, only.data, only.len, NULL) != NULL) serve_member(ctx, index, only);
    } else {
        server_dict_iter *iter = sv.DictIteratorStartC(member->filters, "^", NULL, 0);
        hmq_slice filter;
        while ((filter.data = sv.DictNextC(iter, &filter.len, NULL)) != NULL) serve_member(ctx, index, filter);
        sv.DictIteratorStop(iter);
    }
    index_unpin(index, INDEX_SESSIONS);
}

void share_member_came(server_ctx *ctx, hmq_slice session, hmq_slice only) {
    newcomer *n = sv.Calloc(1, sizeof *n);
    n->session = sv.CreateString(NULL, (const char *)session.data, session.len);
    if (only.len > 0) n->only = sv.CreateString(NULL, (const char *)only.data, only.len);
    command_slot_after(ctx, serve_newcomer, n, release_newcomer);
}

bool share_has_connected(server_ctx *ctx, index_t *index, const share *s) {
    const server_string *after = s->last;
    size_t members = sv.DictSize(s->members), window;
    for (size_t i = 0; i < members && i < MOST_CANDIDATES; i++) {
        const indexed_session *member = share_next_member(s, after);
        if (is_connected(ctx, index, member, &window)) return true;
        after = member->key;
    }
    return false;
}

void share_note_window(server_ctx *ctx, hmq_slice session, size_t window) {
    index_t *index = index_of(ctx);
    const session_entry *entry = session_index_find(index->opened, session);
    if (entry == NULL || !entry->shares || entry->window == window) return;
    session_fact_write(ctx, session, "window", window, SERVER_NO_EXPIRE);
    session_index_refresh(ctx, index->opened, session);
}
