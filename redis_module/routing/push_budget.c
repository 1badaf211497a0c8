/* push_budget.c - how many bytes may be pushed to the inboxes of sessions now. */
#include "routing/push_budget.h"

#include "server/push.h"
#include "server/turns.h"
#include "index/filters.h"
#include "index/sessions.h"

enum { LARGE_SHARE = 4 }; /* of the room, a quarter: for records above PUSH_SMALL_BYTES */

static struct {
    size_t turn_room;    /* bytes that may be pushed in this turn to inboxes without a known link */
    size_t unlooked;     /* bytes pushed since the last look at the links */
    size_t unattributed; /* ... of which the link was not looked up */
    bool is_near_limit;     /* at that look, a link held more than half of what large records may fill */
} budget = {.turn_room = PUSH_TURN_BYTES};

/* Bytes that were pushed and not written.  The server counts its buffer, but not always strings that it has not
 * copied there. */
static void settle(owner_entry *owner, size_t held, unsigned long long written) {
    size_t gone = written > owner->written ? (size_t)(written - owner->written) : 0;
    owner->unwritten += budget.unattributed; /* all of them may have gone to it */
    owner->unwritten = held == 0 || written == 0 || gone >= owner->unwritten ? 0 : owner->unwritten - gone;
    owner->written = written > 0 ? written : owner->written;
    if (held > owner->unwritten) owner->unwritten = held;
}

static void look_at(session_index *sessions, owner_entry *owner, void *data) {
    (void)sessions, (void)data;
    size_t held;
    unsigned long long written;
    owner->has_link = owner->link != 0 && push_output(owner->link, &held, &written);
    if (!owner->has_link) return;
    settle(owner, held, written);
    owner->room = owner->unwritten < PUSH_LINK_BYTES ? PUSH_LINK_BYTES - owner->unwritten : 0;
    if (owner->room < PUSH_LINK_BYTES - PUSH_LINK_BYTES / LARGE_SHARE / 2) budget.is_near_limit = true;
}

static void look(void) {
    budget.is_near_limit = false;
    for (int db = 0; db < index_databases(); db++) {
        session_index *sessions = index_exists(db) ? index_peek(db)->opened : NULL;
        if (sessions != NULL) session_index_each_owner(sessions, look_at, NULL);
    }
    budget.unlooked = budget.unattributed = 0;
}

/* NULL: the session has no owner that uses SESSION.OWNER. */
static owner_entry *owner_of(server_ctx *ctx, const indexed_session *session) {
    const session_entry *entry = index_opened(ctx, slice_of(session->key));
    owner_entry *owner = entry == NULL ? NULL : entry->owner;
    return owner != NULL && owner->has_link ? owner : NULL;
}

/* `most`: the room if nothing is pushed. */
static bool take(size_t *room, size_t most, size_t bytes) {
    size_t kept = bytes > PUSH_SMALL_BYTES ? most - most / LARGE_SHARE : 0; /* for small records */
    if (bytes + kept > *room) return false;
    *room -= bytes;
    return true;
}

bool push_budget_allows(server_ctx *ctx, const indexed_session *session, size_t bytes) {
    turns_request();
    if (budget.unlooked + bytes > PUSH_LOOK_BYTES) look();
    if (!budget.is_near_limit && budget.unlooked + bytes <= PUSH_LOOK_BYTES) {
        budget.unlooked += bytes;
        budget.unattributed += bytes;
        return true;
    }
    owner_entry *owner = owner_of(ctx, session);
    bool is_allowed =
        owner != NULL ? take(&owner->room, PUSH_LINK_BYTES, bytes) : take(&budget.turn_room, PUSH_TURN_BYTES, bytes);
    if (is_allowed) budget.unlooked += bytes;
    if (is_allowed && owner != NULL) owner->unwritten += bytes;
    return is_allowed;
}

void push_budget_before_sleep(bool continues) {
    if (!continues) budget.turn_room = PUSH_TURN_BYTES;
    if (budget.is_near_limit)
        budget.unlooked = PUSH_LOOK_BYTES; /* a part of it may be written now: the next push looks */
}
