/* inbox.c - which connection an inbox belongs to: a table of slots by the inbox's name, with open addressing and
 * linear probing, at most half full, without tombstones.
 *
 * Invariant: each inbox is in the table once, for the connection that opened it last; the connection owns the name. */
#include "engine/internal.h"

#include "base/hash.h"

#define FIRST_INBOXES 64U

static uint32_t inbox_place(const hmq_engine *e, hmq_slice inbox) {
    const hmq_hash_seed seed = {e->settings.inbox_seed[0], e->settings.inbox_seed[1]};
    return (uint32_t)hmq_hash_text(&seed, (const char *)inbox.data, inbox.len) & (e->inbox_room - 1);
}

/* The place of the inbox, or the free place for it. */
static uint32_t *inbox_find(const hmq_engine *e, hmq_slice inbox) {
    uint32_t at = inbox_place(e, inbox);
    while (e->inboxes[at] != 0 && !hmq_slice_equal(hmq_conn_inbox(e->slots[e->inboxes[at] - 1]), inbox))
        at = (at + 1) & (e->inbox_room - 1);
    return &e->inboxes[at];
}

connection *hmq_engine_find_inbox(const hmq_engine *e, hmq_slice inbox) {
    if (e->inbox_count == 0) return NULL;
    uint32_t slot = *inbox_find(e, inbox);
    return slot == 0 ? NULL : e->slots[slot - 1];
}

bool hmq_inbox_make_room(hmq_engine *e) {
    if ((e->inbox_count + 1) * 2 <= e->inbox_room) return true;
    uint32_t old_room = e->inbox_room, *old = e->inboxes;
    uint32_t room = old_room == 0 ? FIRST_INBOXES : old_room * 2;
    uint32_t *fresh = e->allocator.alloc(room * sizeof *fresh);
    if (fresh == NULL) return false;
    memset(fresh, 0, room * sizeof *fresh);
    e->inboxes = fresh;
    e->inbox_room = room;
    for (uint32_t i = 0; i < old_room; i++) {
        if (old[i] != 0) *inbox_find(e, hmq_conn_inbox(e->slots[old[i] - 1])) = old[i];
    }
    if (old != NULL) e->allocator.release(old);
    return true;
}

void hmq_inbox_remove(hmq_engine *e, const connection *c) {
    uint32_t mask = e->inbox_room - 1, *place = inbox_find(e, hmq_conn_inbox(c));
    if (*place == 0 || e->slots[*place - 1] != c) return; /* another connection has it now */
    uint32_t hole = (uint32_t)(place - e->inboxes);
    e->inbox_count--;
    for (uint32_t at = (hole + 1) & mask; e->inboxes[at] != 0; at = (at + 1) & mask) {
        uint32_t home = inbox_place(e, hmq_conn_inbox(e->slots[e->inboxes[at] - 1]));
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        e->inboxes[hole] = e->inboxes[at];
        hole = at;
    }
    e->inboxes[hole] = 0;
}

connection *hmq_inbox_take(hmq_engine *e, connection *c) {
    uint32_t *place = inbox_find(e, hmq_conn_inbox(c));
    connection *former = *place == 0 ? NULL : e->slots[*place - 1];
    e->inbox_count += former == NULL;
    *place = (uint32_t)c->handle;
    return former;
}
