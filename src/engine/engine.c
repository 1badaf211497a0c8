/* engine.c - opens and closes the engine's connections, and flushes.  engine/engine.h has the contract, engine/internal.h the
 * map of the files.
 *
 * O(connections): hmq_engine_look, hmq_engine_free.  Everything else: O(its output), and a flush O(links). */
#include "engine/internal.h"
#include "engine/crossing.h"

#define UNKNOWN_REACH 32.0 /* of a client that has published nothing yet, or more if others reach more */

#define MOST_ALIASES 64U /* used for one client: the search is linear */

static bucket bucket_of(uint32_t rate, int64_t now_ms) {
    return (bucket){rate, rate, now_ms};
}

/* ---- life ---- */

static bool add_links(hmq_engine *e) {
    uint32_t count = e->settings.links == 0 ? 1 : e->settings.links;
    e->links = count > HMQ_MOST_LINKS ? NULL : e->allocator.alloc(count * sizeof *e->links);
    if (e->links == NULL) return false;
    e->link_count = count;
    for (uint32_t i = 0; i < count; i++)
        e->links[i] = (engine_link){.number = i, .fetch_limit = 1, .copies_most = HMQ_COPIES_FIRST};
    return true;
}

hmq_engine *hmq_engine_new(const hmq_engine_settings *settings, const hmq_allocator *allocator) {
    hmq_engine *e = allocator->alloc(sizeof *e);
    if (e == NULL) return NULL;
    *e = (hmq_engine){.allocator = *allocator, .settings = *settings};
    uint32_t *at_least_one[] = {&e->settings.max_fetches, &e->settings.max_ready, &e->settings.max_ready_bytes,
                                &e->settings.retry_first_ms};
    for (size_t i = 0; i < sizeof at_least_one / sizeof at_least_one[0]; i++) {
        if (*at_least_one[i] == 0) *at_least_one[i] = 1;
    }
    if (add_links(e)) return e;
    allocator->release(e);
    return NULL;
}

const hmq_engine_counters *hmq_engine_count(const hmq_engine *e) {
    return &e->count;
}

static void connection_free(hmq_engine *e, connection *c) {
    hmq_client_forget(e, c);
    hmq_outgoing_forget(e, c);
    e->connects_held -= c->connect_held;
    hmq_bytes_free(&e->allocator, &c->unread);
    hmq_bytes_free(&e->allocator, &c->again);
    hmq_bytes_free(&e->allocator, &c->later);
    hmq_confirm_forget(e, c);
    hmq_crossing_forget(e, c);
    if (c->traces != 0) hmq_trace_forget(e, c);
    hmq_engine_buffer_done(e, &c->output);
    hmq_members_forget(e, c);
    if (c->names != NULL) e->allocator.release(c->names);
    e->allocator.release(c);
}

static void link_free(hmq_engine *e, engine_link *l) {
    const hmq_allocator *allocator = &e->allocator;
    hmq_bytes *all[] = {&l->log,
                        &l->awaited,
                        &l->incoming,
                        &l->pages.waiting.bytes,
                        &l->large.waiting.bytes,
                        &l->ack_queue.bytes,
                        &l->unconfirmed.bytes,
                        &l->crossed.bytes,
                        &l->checks,
                        &l->asked};
    hmq_route_free(e, l);
    if (l->blocked != NULL) allocator->release(l->blocked);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) hmq_bytes_free(allocator, all[i]);
}

void hmq_engine_free(hmq_engine *e) {
    if (e == NULL) return;
    const hmq_allocator allocator = e->allocator;
    for (uint32_t i = 0; i < e->slot_count; i++) {
        if (e->slots[i] != NULL) connection_free(e, e->slots[i]);
    }
    for (uint32_t i = 0; i < e->link_count; i++) link_free(e, &e->links[i]);
    allocator.release(e->links);
    hmq_bytes *all[] = {&e->free_slots, &e->outputs.bytes, &e->flushes.bytes, &e->waiting.bytes, &e->events,
                        &e->scratch,    &e->handed,        &e->wide.bytes,    &e->leaving,       &e->stores};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) hmq_bytes_free(&allocator, all[i]);
    if (e->traces != NULL) hmq_trace_free(e);
    while (e->spare_count > 0) hmq_bytes_free(&allocator, &e->spare[--e->spare_count]);
    if (e->slots != NULL) allocator.release(e->slots);
    if (e->generations != NULL) allocator.release(e->generations);
    if (e->inboxes != NULL) allocator.release(e->inboxes);
    if (e->slot_links != NULL) allocator.release(e->slot_links);
    allocator.release(e);
}

/* ---- connections ---- */

static bool more_slots(hmq_engine *e) {
    uint32_t room = e->slot_room == 0 ? 64 : e->slot_room * 2;
    connection **slots = e->allocator.resize(e->slots, room * sizeof *slots);
    if (slots == NULL) return false;
    e->slots = slots;
    uint32_t *generations = e->allocator.resize(e->generations, room * sizeof *generations);
    if (generations == NULL) return false;
    e->generations = generations;
    e->slot_room = room;
    return true;
}

/* Finds a free slot, without taking it. */
static bool free_slot(hmq_engine *e, uint32_t *slot) {
    if (e->free_slots.len > 0) {
        memcpy(slot, hmq_bytes_at(&e->free_slots), sizeof *slot);
        return true;
    }
    if (e->slot_count == e->slot_room && !more_slots(e)) return false;
    *slot = e->slot_count;
    return true;
}

hmq_conn hmq_engine_attach(hmq_engine *e) {
    uint32_t slot;
    if (!free_slot(e, &slot)) return 0;
    connection *c = e->allocator.alloc(sizeof *c);
    if (c == NULL) return 0;
    *c = (connection){.link = &e->links[0], .writable = true, .unclaimed = e->unclaimed};
    if (slot == e->slot_count) {
        e->slot_count++;
        e->generations[slot] = 0;
    } else {
        hmq_bytes_drop(&e->free_slots, sizeof slot);
    }
    c->handle = (hmq_conn)++e->generations[slot] << 32 | (slot + 1);
    e->slots[slot] = c;
    e->live++;
    return c->handle;
}

/* ---- opening and closing ---- */

static bool set_names(hmq_engine *e, connection *c, hmq_slice key, hmq_slice id) {
    static const char suffix[] = "_inbox";
    size_t inbox_len = key.len + sizeof suffix - 1;
    uint8_t *names = e->allocator.alloc(inbox_len + id.len + 1);
    if (names == NULL) return false;
    memcpy(names, key.data, key.len);
    memcpy(names + key.len, suffix, sizeof suffix - 1);
    if (id.len > 0) memcpy(names + inbox_len, id.data, id.len);
    c->names = names;
    c->key_len = key.len;
    c->inbox_len = inbox_len;
    c->id_len = id.len;
    return true;
}

hmq_conn hmq_engine_open(hmq_engine *e, hmq_conn conn, const hmq_engine_session *session, hmq_slice session_key,
                         int64_t now_ms, bool *ok) {
    connection *c = hmq_engine_find(e, conn);
    *ok = c != NULL && c->phase == PHASE_HELD && session->link < e->link_count && hmq_inbox_make_room(e) &&
          set_names(e, c, session_key, session->client_id);
    if (!*ok) return 0;
    c->phase = PHASE_OPEN;
    c->link = &e->links[session->link];
    c->reach = (float)(e->copies > UNKNOWN_REACH ? e->copies : UNKNOWN_REACH);
    c->reach_is_known = false;
    c->version = session->version;
    hmq_rules_deny_otherwise(&c->publish_rules, session->denied_otherwise);
    c->window = session->window;
    c->most_places = session->places > 0 ? session->places : UINT32_MAX;
    c->places = session->places > c->window ? c->window : c->most_places;
    c->receive_maximum = session->receive_maximum;
    c->alias_maximum_in = session->alias_maximum_in;
    c->alias_maximum_out = session->alias_maximum_out < MOST_ALIASES ? session->alias_maximum_out : MOST_ALIASES;
    c->max_packet_out = session->max_packet_out;
    c->epoch = session->epoch;
    c->replay = bucket_of(session->replay_rate, now_ms);
    c->publishing = bucket_of(session->publish_rate, now_ms);
    hmq_outgoing_set_behind(c, session->resumed || c->unclaimed != e->unclaimed);
    e->now_ms = now_ms;
    if (c->behind) hmq_engine_schedule_flush(e, c);
    connection *former = hmq_inbox_take(e, c);
    hmq_engine_resume_reading(e, c);
    if (former == NULL) return 0;
    former->phase = PHASE_ENDED;
    return former->handle;
}

void hmq_engine_close(hmq_engine *e, hmq_conn conn) {
    connection *c = hmq_engine_find(e, conn);
    if (c == NULL) return;
    if (c->names != NULL) {
        hmq_outgoing_close(e, c);
        hmq_inbox_remove(e, c);
    }
    e->count.publishes_dropped_qos0 += hmq_log_kept_qos0(c);
    hmq_outgoing_set_behind(c, false);
    uint32_t slot = (uint32_t)conn - 1;
    e->slots[slot] = NULL;
    e->live--;
    hmq_bytes_append(&e->allocator, &e->free_slots, &slot, sizeof slot); /* without memory the slot is never reused */
    connection_free(e, c);
}

hmq_conn hmq_engine_join(hmq_engine *e, hmq_conn conn, const hmq_engine_member *member, hmq_slice session_key,
                         int64_t now_ms, hmq_conn *former) {
    connection *client = hmq_engine_find(e, conn);
    *former = 0;
    if (e->settings.cluster == 0 || client == NULL || !hmq_members_may_join(client, member->block)) return 0;
    hmq_conn handle = hmq_engine_attach(e);
    connection *c = hmq_engine_find(e, handle);
    if (c == NULL) return 0;
    const hmq_engine_session session = {.version = client->version,
                                        .resumed = true,
                                        .window = member->window < HMQ_MEMBER_IDS ? member->window : HMQ_MEMBER_IDS,
                                        .places = member->places,
                                        .link = member->link,
                                        .epoch = member->epoch,
                                        .client_id = hmq_conn_client_id(client)};
    bool ok = false;
    c->phase = PHASE_HELD;
    if (hmq_members_prepare(e, c)) *former = hmq_engine_open(e, handle, &session, session_key, now_ms, &ok);
    if (!ok) {
        hmq_engine_close(e, handle);
        return 0;
    }
    hmq_members_add(client, c, member->block);
    return handle;
}

/* ---- bytes for clients ---- */

static void session_handed_out(hmq_engine *e, connection *c) {
    if (c->traces != 0) hmq_trace_handed_out(e, c);
    if (id_count(&c->in_output) > 0) hmq_outgoing_handed_out(e, c);
    if (c->ready_count > 0 || c->wants_room) hmq_engine_schedule_flush(e, c); /* there may be room again */
}

bool hmq_engine_next_output(hmq_engine *e, hmq_conn *conn, hmq_slice *bytes) {
    hmq_engine_buffer_done(e, &e->handed);
    while (hmq_engine_list_pop(&e->outputs, conn)) {
        connection *c = hmq_engine_find(e, *conn);
        if (c == NULL) continue;
        c->in_outputs = false;
        e->handed = c->output;
        c->output = (hmq_bytes){0};
        if (e->handed.len > 0) {
            *bytes = (hmq_slice){hmq_bytes_at(&e->handed), e->handed.len};
            session_handed_out(e, c);
            for (connection *m = c->members; m != NULL; m = m->next_member) session_handed_out(e, m);
            return true;
        }
        hmq_engine_buffer_done(e, &e->handed);
    }
    return false;
}

void hmq_engine_writable(hmq_engine *e, hmq_conn conn, bool writable) {
    connection *c = hmq_engine_find(e, conn);
    if (c == NULL) return;
    c->writable = writable;
    if (writable) hmq_members_flush(e, c);
    if (writable && (c->ready_count > 0 || c->behind || c->wants_room)) hmq_engine_schedule_flush(e, c);
}

void hmq_engine_replays(hmq_engine *e, hmq_conn conn, bool replays, bool wants_room) {
    connection *c = hmq_engine_find(e, conn);
    if (c == NULL) return;
    c->replays = replays;
    c->wants_room = wants_room;
    if (wants_room) hmq_engine_schedule_flush(e, c);
}

uint64_t hmq_engine_sent_serial(const hmq_engine *e, hmq_conn conn) {
    const connection *c = hmq_engine_find(e, conn);
    if (c == NULL) return 0;
    return c->checking && c->check_until > c->highest ? c->check_until : c->highest;
}

/* ---- pausing and resuming reading ---- */

static bool backlog_grows(const hmq_engine *e, const connection *c) {
    if (c->behind) return c->overflowed || hmq_conn_queue_is_long(c);
    return c->ready_count * 2 >= e->settings.max_ready || c->ready.len * 2 >= e->settings.max_ready_bytes;
}

static uint8_t backlog_of(const hmq_engine *e, const connection *c) {
    bool is_full = c->inflight.unacknowledged > 0 && c->inflight.unacknowledged >= c->window;
    if (c->ready_count == 0 && !c->behind) return is_full ? HMQ_BACKLOG_WAITS : HMQ_BACKLOG_NONE;
    return backlog_grows(e, c) ? HMQ_BACKLOG_GROWS : HMQ_BACKLOG_WAITS;
}

uint8_t hmq_engine_backlog_of(const hmq_engine *e, hmq_conn conn) {
    const connection *c = hmq_engine_find(e, conn);
    if (c == NULL || c->phase != PHASE_OPEN) return HMQ_BACKLOG_NONE;
    uint8_t most = backlog_of(e, c);
    for (const connection *m = c->members; m != NULL; m = m->next_member) {
        uint8_t backlog = backlog_of(e, m);
        if (backlog > most) most = backlog;
    }
    return most;
}

bool hmq_engine_pauses_reading(hmq_engine *e, hmq_conn conn) {
    connection *c = hmq_engine_find(e, conn);
    if (c == NULL || c->phase == PHASE_ENDED) return false;
    bool is_paused = hmq_engine_may_not_read(e, c);
    if (is_paused) c->reading_is_paused = true;
    return is_paused;
}

/* ---- flush ---- */

bool hmq_engine_flush_is_due(const hmq_engine *e) {
    return e->flushes.bytes.len > 0;
}

static bool some_link_has_work(const hmq_engine *e) {
    for (uint32_t i = 0; i < e->link_count; i++)
        if (e->links[i].ack_queue.bytes.len > 0 || hmq_confirm_is_due(&e->links[i])) return true;
    return false;
}

bool hmq_engine_waits_for_time(const hmq_engine *e) {
    return e->waiting.bytes.len > 0 || e->flushes.bytes.len > 0 || e->sweep || e->routes_due || some_link_has_work(e);
}

static bool is_due(const retry *r, int64_t now_ms) {
    return now_ms >= r->at_ms || r->at_ms - now_ms > r->pause_ms; /* or the clock was set back */
}

/* Continues a connection that waited for a pause to end or for tokens; or lets it wait again. */
static void wake(hmq_engine *e, connection *c) {
    if (c->phase == PHASE_ENDED || (c->next != NULL && !hmq_link_switch(e, c))) return;
    if (!c->publishes.waits || (c->under_way == 0 && is_due(&c->publishes, e->now_ms)))
        hmq_log_send_again(e, c);
    else
        hmq_engine_schedule_wake(e, c);
    hmq_crossing_wake(e, c);
    if (c->queue.waits && is_due(&c->queue, e->now_ms)) c->queue.waits = false;
    if (c->queue.waits) hmq_engine_schedule_wake(e, c);
    if (c->publishing.tokens < 0) {
        hmq_bucket_fill(&c->publishing, e->now_ms);
        if (c->publishing.tokens < 0) hmq_engine_schedule_wake(e, c);
    }
    hmq_engine_resume_reading(e, c);
    hmq_outgoing_flush(e, c);
}

/* Visits all connections, after memory was lacking. */
static void sweep(hmq_engine *e) {
    e->sweep = false;
    for (uint32_t i = 0; i < e->slot_count; i++) {
        connection *c = e->slots[i];
        if (c == NULL) continue;
        wake(e, c);
        if (c->owed == 0) continue;
        if (hmq_engine_raise(e, &(hmq_engine_event){.kind = c->owed, .conn = c->handle}))
            c->owed = 0;
        else
            e->sweep = true;
    }
}

void hmq_engine_flush(hmq_engine *e, int64_t now_ms) {
    hmq_conn conn;
    e->now_ms = now_ms;
    if (e->sweep) sweep(e);
    if (e->routes_due) hmq_crossing_wake_all(e);
    hmq_places_narrow_idle(e);
    for (size_t left = e->waiting.bytes.len / sizeof conn; left > 0 && hmq_engine_list_pop(&e->waiting, &conn);
         left--) {
        connection *c = hmq_engine_find(e, conn);
        if (c == NULL) continue;
        c->in_waiting = false;
        wake(e, c);
    }
    while (hmq_engine_list_pop(&e->flushes, &conn)) {
        connection *c = hmq_engine_find(e, conn);
        if (c == NULL) continue;
        hmq_outgoing_flush(e, c);
        c->in_flush = false; /* what it requested in the meantime is done, too */
    }
    for (uint32_t i = 0; i < e->link_count; i++) {
        hmq_outgoing_fetch_waiting(e, &e->links[i]);
        hmq_outgoing_flush_acks(e, &e->links[i]);
    }
}

bool hmq_engine_congested(const hmq_engine *e) {
    return e->log_commands + e->held + e->crossings > e->settings.max_outstanding ||
           e->log_bytes + e->held_bytes + e->crossing_bytes > e->settings.max_outstanding_bytes;
}

uint32_t hmq_engine_unanswered(const hmq_engine *e, hmq_conn conn) {
    const connection *c = hmq_engine_find(e, conn);
    return c == NULL ? 0 : c->outstanding;
}

size_t hmq_engine_outstanding(const hmq_engine *e) {
    return e->log_commands + e->held + e->crossings;
}

#define OWED_BYTES ((size_t)1024)
#define OWED_COPIES 8

size_t hmq_engine_owed(const hmq_engine *e) {
    size_t owed = e->log_commands + e->log_bytes / OWED_BYTES;
    return e->copies > OWED_COPIES ? (size_t)((double)owed * e->copies / OWED_COPIES) : owed;
}

uint32_t hmq_engine_reach_of(const hmq_engine *e, hmq_conn conn) {
    const connection *c = hmq_engine_find(e, conn);
    return c == NULL || !c->reach_is_known ? 0 : (uint32_t)c->reach;
}

void hmq_engine_look(const hmq_engine *e, hmq_engine_levels *levels) {
    *levels = (hmq_engine_levels){.acknowledgements_withheld = e->held};
    for (uint32_t i = 0; i < e->link_count; i++) levels->clients_behind += e->links[i].behind;
    for (uint32_t i = 0; i < e->slot_count; i++) {
        const connection *c = e->slots[i];
        if (c == NULL) continue;
        levels->messages_inflight += c->inflight.unacknowledged;
        levels->messages_ready += c->ready_count;
        levels->bytes_unsent += c->output.len;
    }
}
