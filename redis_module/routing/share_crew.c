/* share_crew.c - the connected members of a group, in turn. */
#include "routing/share_crew.h"

#include "topic/record.h"
#include "server/slots.h"
#include "index/sessions.h"
#include "index/subscription.h"
#include "queue/allowance.h"
#include "queue/queue.h"

#define UNMEASURED (SIZE_MAX - 1)

size_t share_length_of(server_ctx *ctx, hmq_slice session) {
    queue q;
    size_t length = queue_open(&q, ctx, session, SERVER_READ) ? queue_length(&q) : SIZE_MAX; /* cannot be served */
    queue_close(&q);
    return length;
}

static uint32_t options_of(const indexed_session *member, hmq_slice filter) {
    uintptr_t stands = (uintptr_t)sv.DictGetC(member->filters, filter.data, filter.len, NULL);
    return stands == 0 ? 0 : (uint32_t)(stands - 1);
}

static bool deliver_to_member(server_ctx *ctx, share *s, const indexed_session *member, message *m) {
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
           index_session_is_valid(ctx, index, member);
}

void share_crew_begin(share_crew *c, server_ctx *ctx, index_t *index, share *s) {
    c->ctx = ctx, c->index = index, c->s = s;
    c->after = s->last == NULL ? NULL : sv.HoldString(NULL, s->last);
    c->count = c->looked = c->turn = 0;
}

void share_crew_end(share_crew *c) {
    if (c->after != NULL) sv.FreeString(NULL, c->after);
}

/* Finds one more; false: there are no more, or enough were looked at. */
static bool crew_grow(share_crew *c) {
    while (c->looked < sv.DictSize(c->s->members) && c->looked < SHARE_CREW_MOST) {
        size_t window;
        const indexed_session *member = share_next_member(c->s, c->after);
        if (c->after != NULL) sv.FreeString(NULL, c->after);
        c->after = sv.HoldString(NULL, member->key);
        c->looked++;
        if (!is_connected(c->ctx, c->index, member, &window)) continue;
        c->list[c->count++] = (share_candidate){member, window, UNMEASURED, SIZE_MAX};
        return true;
    }
    return false;
}

/* The n-th candidate from the one whose turn it is; NULL: all had their turn. */
static share_candidate *crew_at(share_crew *c, size_t n) {
    size_t at = c->turn + n;
    if (at < c->count || (at == c->count && crew_grow(c))) return &c->list[at];
    return n < c->count ? &c->list[at - c->count] : NULL;
}

/* A message for which a user has no room goes to a member of another user, or is pending for the group. */
static bool user_has_room(const share_crew *c, share_candidate *to, size_t bytes) {
    if (bytes >= to->refused) return false;
    if (queue_usage_allows(c->ctx, slice_of(to->member->key), bytes)) return true;
    to->refused = bytes;
    return false;
}

static bool deliver_to_candidate(share_crew *c, share_candidate *to, message *m, bool stored) {
    if (!deliver_to_member(c->ctx, c->s, to->member, m)) return false;
    to->length += stored;
    c->turn = (size_t)(to - c->list) + 1;
    return true;
}

bool share_crew_deliver(share_crew *c, message *m, size_t most) {
    share_candidate *least = NULL, *to;
    size_t limit = (size_t)settings.session_limit, least_length = most == SIZE_MAX ? limit : 0;
    size_t bytes = hmq_record_size(&m->record);
    for (size_t n = 0; (to = crew_at(c, n)) != NULL; n++) {
        bool stored = m->record.qos > 0 && (options_of(to->member, slice_of(c->s->filter)) & SUBSCRIPTION_QOS) > 0;
        if (stored && to->length == UNMEASURED) to->length = share_length_of(c->ctx, slice_of(to->member->key));
        size_t length = stored ? to->length : 0;
        bool has_room = length < to->window && length < most && length < limit;
        if ((!has_room && length >= least_length) || (stored && !user_has_room(c, to, bytes))) continue;
        if (!has_room)
            least = to, least_length = length;
        else if (deliver_to_candidate(c, to, m, stored))
            return true;
    }
    return least != NULL && deliver_to_candidate(c, least, m, true);
}

bool share_has_connected_member(server_ctx *ctx, index_t *index, const share *s) {
    const server_string *after = s->last;
    size_t members = sv.DictSize(s->members), window;
    for (size_t i = 0; i < members && i < SHARE_CREW_MOST; i++) {
        const indexed_session *member = share_next_member(s, after);
        if (is_connected(ctx, index, member, &window)) return true;
        after = member->key;
    }
    return false;
}
