/* engine.c - the engine's connections, the bytes for clients, and the server's going and coming; engine.h has the
 * contract, engine_internal.h the map of the files.
 *
 * O(connections): hmq_engine_server_lost and _restored, hmq_engine_free; everything else O(what it hands over). */
#include "engine_internal.h"

#include "hash.h"

#define SPARE_MAX_BYTES 65536U
#define FIRST_INBOXES 64U

/* ---- small tools ---- */

bool engine_list_add(hmq_engine *e, conn_list *list, hmq_conn conn) {
    return hmq_bytes_append(&e->allocator, &list->bytes, &conn, sizeof conn);
}

static bool list_pop(conn_list *list, hmq_conn *conn) {
    if (list->bytes.len == 0) return false;
    memcpy(conn, hmq_bytes_at(&list->bytes), sizeof *conn);
    hmq_bytes_drop(&list->bytes, sizeof *conn);
    return true;
}

bool bucket_take(bucket *b, int64_t now_ms) {
    if (now_ms > b->filled_ms) {
        b->tokens += (double)(now_ms - b->filled_ms) * b->rate / 1000;
        if (b->tokens > b->rate) b->tokens = b->rate;
        b->filled_ms = now_ms;
    }
    if (b->tokens < 1) return false;
    b->tokens -= 1;
    return true;
}

static bucket bucket_of(uint32_t rate, int64_t now_ms) {
    return (bucket){rate, rate, now_ms};
}

hmq_slice conn_key(const connection *c) {
    return (hmq_slice){c->names, c->key_len};
}

hmq_slice conn_inbox(const connection *c) {
    return (hmq_slice){c->names, c->inbox_len};
}

hmq_slice conn_client_id(const connection *c) {
    return (hmq_slice){c->names + c->inbox_len, c->id_len};
}

/* ---- buffers that are used again ---- */

static bool buffer_take(hmq_engine *e, hmq_bytes *buffer) {
    if (buffer->data != NULL || e->spare_count == 0) return true;
    *buffer = e->spare[--e->spare_count];
    return true;
}

void engine_buffer_done(hmq_engine *e, hmq_bytes *buffer) {
    size_t most = sizeof e->spare / sizeof e->spare[0];
    if (buffer->data == NULL) return;
    hmq_bytes_clear(buffer);
    if (buffer->capacity <= SPARE_MAX_BYTES && e->spare_count < most)
        e->spare[e->spare_count++] = *buffer;
    else
        e->allocator.release(buffer->data);
    *buffer = (hmq_bytes){0};
}

/* ---- events without bytes of a caller behind them ---- */

bool engine_raise(hmq_engine *e, const hmq_engine_event *event) {
    if (!hmq_bytes_append(&e->allocator, &e->events, event, sizeof *event)) return false;
    return event->bytes.len == 0 || hmq_bytes_append(&e->allocator, &e->events, event->bytes.data, event->bytes.len);
}

bool hmq_engine_next_event(hmq_engine *e, hmq_engine_event *event) {
    *event = (hmq_engine_event){0};
    if (e->events.len == 0) return false;
    memcpy(event, hmq_bytes_at(&e->events), sizeof *event);
    hmq_bytes_drop(&e->events, sizeof *event);
    if (event->bytes.len > 0) { /* they stand behind it; out of the way of what is raised until the next call */
        hmq_bytes_clear(&e->event_bytes);
        bool copied = hmq_bytes_append(&e->allocator, &e->event_bytes, hmq_bytes_at(&e->events), event->bytes.len);
        hmq_bytes_drop(&e->events, event->bytes.len);
        event->bytes = copied ? (hmq_slice){hmq_bytes_at(&e->event_bytes), event->bytes.len} : (hmq_slice){NULL, 0};
    }
    return true;
}

/* ---- life ---- */

hmq_engine *hmq_engine_new(const hmq_engine_settings *settings, const hmq_allocator *allocator) {
    hmq_engine *e = allocator->alloc(sizeof *e);
    if (e == NULL) return NULL;
    *e = (hmq_engine){.allocator = *allocator, .settings = *settings, .fetch_limit = 1};
    if (e->settings.max_fetches == 0) e->settings.max_fetches = 1;
    return e;
}

const hmq_engine_counters *hmq_engine_count(const hmq_engine *e) {
    return &e->count;
}

static void connection_free(hmq_engine *e, connection *c) {
    client_forget(e, c);
    outgoing_forget(e, c);
    hmq_bytes_free(&e->allocator, &c->unread);
    hmq_bytes_free(&e->allocator, &c->again);
    engine_buffer_done(e, &c->output);
    if (c->names != NULL) e->allocator.release(c->names);
    e->allocator.release(c);
}

void hmq_engine_free(hmq_engine *e) {
    if (e == NULL) return;
    const hmq_allocator allocator = e->allocator;
    for (uint32_t i = 0; i < e->slot_count; i++) {
        if (e->slots[i] != NULL) connection_free(e, e->slots[i]);
    }
    hmq_bytes *all[] = {&e->free_slots,    &e->log,           &e->awaited,       &e->incoming,
                        &e->outputs.bytes, &e->flushes.bytes, &e->waiting.bytes, &e->fetch_queue.bytes,
                        &e->events,        &e->handed,        &e->event_bytes};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) hmq_bytes_free(&allocator, all[i]);
    while (e->spare_count > 0) hmq_bytes_free(&allocator, &e->spare[--e->spare_count]);
    if (e->slots != NULL) allocator.release(e->slots);
    if (e->generations != NULL) allocator.release(e->generations);
    if (e->inboxes != NULL) allocator.release(e->inboxes);
    allocator.release(e);
}

/* ---- connections ---- */

connection *engine_find(const hmq_engine *e, hmq_conn handle) {
    uint32_t slot = (uint32_t)handle - 1;
    if (slot >= e->slot_count || e->slots[slot] == NULL || e->slots[slot]->handle != handle) return NULL;
    return e->slots[slot];
}

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

/* A slot that is free, without taking it. */
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
    *c = (connection){.writable = true};
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

/* ---- inboxes: an open-addressing table of slots, at most half full ---- */

static uint32_t inbox_place(const hmq_engine *e, hmq_slice inbox) {
    static const hmq_hash_seed seed = {0x696e626f78, 0x6d617073};
    return (uint32_t)hmq_hash_text(&seed, (const char *)inbox.data, inbox.len) & (e->inbox_room - 1);
}

static bool same(hmq_slice a, hmq_slice b) {
    return a.len == b.len && memcmp(a.data, b.data, a.len) == 0;
}

/* Where the inbox stands, or would. */
static uint32_t *inbox_find(const hmq_engine *e, hmq_slice inbox) {
    uint32_t at = inbox_place(e, inbox);
    while (e->inboxes[at] != 0 && !same(conn_inbox(e->slots[e->inboxes[at] - 1]), inbox))
        at = (at + 1) & (e->inbox_room - 1);
    return &e->inboxes[at];
}

connection *engine_find_inbox(const hmq_engine *e, hmq_slice inbox) {
    if (e->inbox_count == 0) return NULL;
    uint32_t slot = *inbox_find(e, inbox);
    return slot == 0 ? NULL : e->slots[slot - 1];
}

static bool inboxes_grow(hmq_engine *e) {
    uint32_t old_room = e->inbox_room, *old = e->inboxes;
    uint32_t room = old_room == 0 ? FIRST_INBOXES : old_room * 2;
    uint32_t *fresh = e->allocator.alloc(room * sizeof *fresh);
    if (fresh == NULL) return false;
    memset(fresh, 0, room * sizeof *fresh);
    e->inboxes = fresh;
    e->inbox_room = room;
    for (uint32_t i = 0; i < old_room; i++) {
        if (old[i] != 0) *inbox_find(e, conn_inbox(e->slots[old[i] - 1])) = old[i];
    }
    if (old != NULL) e->allocator.release(old);
    return true;
}

static void inbox_remove(hmq_engine *e, const connection *c) {
    uint32_t mask = e->inbox_room - 1, *place = inbox_find(e, conn_inbox(c));
    if (*place == 0 || e->slots[*place - 1] != c) return; /* somebody else has it now */
    uint32_t hole = (uint32_t)(place - e->inboxes);
    e->inbox_count--;
    for (uint32_t at = (hole + 1) & mask; e->inboxes[at] != 0; at = (at + 1) & mask) {
        uint32_t home = inbox_place(e, conn_inbox(e->slots[e->inboxes[at] - 1]));
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        e->inboxes[hole] = e->inboxes[at];
        hole = at;
    }
    e->inboxes[hole] = 0;
}

/* Gives the inbox to c; returns whose it was. */
static connection *inbox_take(hmq_engine *e, connection *c) {
    uint32_t *place = inbox_find(e, conn_inbox(c));
    connection *former = *place == 0 ? NULL : e->slots[*place - 1];
    e->inbox_count += former == NULL;
    *place = (uint32_t)c->handle;
    return former;
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
    connection *c = engine_find(e, conn);
    *ok = c != NULL && c->phase == PHASE_HELD && ((e->inbox_count + 1) * 2 <= e->inbox_room || inboxes_grow(e)) &&
          set_names(e, c, session_key, session->client_id);
    if (!*ok) return 0;
    c->phase = PHASE_OPEN;
    c->version = session->version;
    c->denied_otherwise = session->denied_otherwise;
    c->window = session->window;
    c->receive_maximum = session->receive_maximum;
    c->alias_maximum_in = session->alias_maximum_in;
    c->alias_maximum_out = session->alias_maximum_out;
    c->max_packet_out = session->max_packet_out;
    c->epoch = session->epoch;
    c->replay = bucket_of(session->replay_rate, now_ms);
    c->publishing = bucket_of(session->publish_rate, now_ms);
    c->behind = session->resumed;
    e->now_ms = now_ms;
    if (c->behind) engine_wants_flush(e, c);
    connection *former = inbox_take(e, c);
    engine_relieve(e, c);
    return former == NULL ? 0 : former->handle;
}

void hmq_engine_close(hmq_engine *e, hmq_conn conn) {
    connection *c = engine_find(e, conn);
    if (c == NULL) return;
    c->writable = false; /* nothing more is sent */
    outgoing_flush(e, c);
    if (c->names != NULL) inbox_remove(e, c);
    uint32_t slot = (uint32_t)conn - 1;
    e->slots[slot] = NULL;
    e->live--;
    hmq_bytes_append(&e->allocator, &e->free_slots, &slot, sizeof slot); /* if not, the slot is never used again */
    connection_free(e, c);
}

/* ---- bytes for clients ---- */

uint8_t *engine_output(hmq_engine *e, connection *c, size_t bytes) {
    if (!c->in_outputs) {
        buffer_take(e, &c->output);
        if (!engine_list_add(e, &e->outputs, c->handle)) return NULL;
        c->in_outputs = true;
    }
    return hmq_bytes_room(&e->allocator, &c->output, bytes);
}

void engine_put(connection *c, size_t bytes) {
    hmq_bytes_wrote(&c->output, bytes);
}

bool hmq_engine_send(hmq_engine *e, hmq_conn conn, const uint8_t *data, size_t len) {
    connection *c = engine_find(e, conn);
    if (c == NULL) return true;
    uint8_t *room = engine_output(e, c, len);
    if (room == NULL) return false;
    memcpy(room, data, len);
    engine_put(c, len);
    return true;
}

bool hmq_engine_next_output(hmq_engine *e, hmq_conn *conn, hmq_slice *bytes) {
    engine_buffer_done(e, &e->handed);
    while (list_pop(&e->outputs, conn)) {
        connection *c = engine_find(e, *conn);
        if (c == NULL) continue;
        c->in_outputs = false;
        e->handed = c->output;
        c->output = (hmq_bytes){0};
        if (e->handed.len > 0) {
            *bytes = (hmq_slice){hmq_bytes_at(&e->handed), e->handed.len};
            if (c->ready_count > 0) engine_wants_flush(e, c); /* there may be room again */
            return true;
        }
        engine_buffer_done(e, &e->handed);
    }
    return false;
}

void hmq_engine_writable(hmq_engine *e, hmq_conn conn, bool writable) {
    connection *c = engine_find(e, conn);
    if (c == NULL) return;
    c->writable = writable;
    if (writable && (c->ready_count > 0 || c->behind)) engine_wants_flush(e, c);
}

uint64_t hmq_engine_sent_serial(const hmq_engine *e, hmq_conn conn) {
    const connection *c = engine_find(e, conn);
    return c == NULL ? 0 : c->highest;
}

/* ---- rest and relief ---- */

bool engine_rests_now(const hmq_engine *e, const connection *c) {
    uint32_t most = c->told_to_rest ? e->settings.max_client_outstanding / 2 : e->settings.max_client_outstanding;
    bool limited = c->publishing.rate != 0 && c->publishing.tokens < 0;
    return c->phase == PHASE_HELD || (c->paused && c->unread.len > 0) || c->outstanding > most || c->stalled ||
           limited || (!e->up && c->outstanding > 0);
}

bool hmq_engine_rests(hmq_engine *e, hmq_conn conn) {
    connection *c = engine_find(e, conn);
    if (c == NULL || c->phase == PHASE_ENDED) return false;
    bool rests = engine_rests_now(e, c);
    if (rests) c->told_to_rest = true;
    return rests;
}

void engine_relieve(hmq_engine *e, connection *c) {
    if (!c->told_to_rest || engine_rests_now(e, c)) return;
    if (engine_raise(e, &(hmq_engine_event){.kind = HMQ_EVENT_RELIEF, .conn = c->handle})) c->told_to_rest = false;
}

/* ---- flush ---- */

void engine_wants_flush(hmq_engine *e, connection *c) {
    if (!c->in_flush) c->in_flush = engine_list_add(e, &e->flushes, c->handle);
}

void engine_wants_time(hmq_engine *e, connection *c) {
    if (!c->in_waiting) c->in_waiting = engine_list_add(e, &e->waiting, c->handle);
}

bool hmq_engine_waits(const hmq_engine *e) {
    return e->waiting.bytes.len > 0;
}

/* The pause of a stalled connection is over, tokens have come in: goes on, or waits again. */
static void wake(hmq_engine *e, connection *c) {
    if (c->stalled && (e->now_ms < c->retry_at_ms || c->under_way > 0)) {
        engine_wants_time(e, c);
    } else if (c->stalled) {
        log_send_again(e, c);
    }
    if (c->publishing.tokens < 0) {
        double before = c->publishing.tokens; /* a debt: it is paid by the time that passes */
        c->publishing.tokens = before + (double)(e->now_ms - c->publishing.filled_ms) * c->publishing.rate / 1000;
        c->publishing.filled_ms = e->now_ms;
        if (c->publishing.tokens < 0) engine_wants_time(e, c);
    }
    engine_relieve(e, c);
    outgoing_flush(e, c);
}

void hmq_engine_flush(hmq_engine *e, int64_t now_ms) {
    hmq_conn conn;
    e->now_ms = now_ms;
    for (size_t left = e->waiting.bytes.len / sizeof conn; left > 0 && list_pop(&e->waiting, &conn); left--) {
        connection *c = engine_find(e, conn);
        if (c == NULL) continue;
        c->in_waiting = false;
        wake(e, c);
    }
    for (size_t left = e->flushes.bytes.len / sizeof conn; left > 0 && list_pop(&e->flushes, &conn); left--) {
        connection *c = engine_find(e, conn);
        if (c == NULL) continue;
        c->in_flush = false;
        outgoing_flush(e, c);
    }
    while (e->up && e->fetches < e->fetch_limit && list_pop(&e->fetch_queue, &conn)) {
        connection *c = engine_find(e, conn);
        if (c == NULL) continue;
        c->in_fetch_queue = false;
        outgoing_flush(e, c);
    }
}

bool hmq_engine_congested(const hmq_engine *e) {
    return log_count(e) > e->settings.max_outstanding || e->log.len > e->settings.max_outstanding_bytes;
}

size_t hmq_engine_outstanding(const hmq_engine *e) {
    return log_count(e);
}

/* ---- the server goes and comes ---- */

void hmq_engine_server_lost(hmq_engine *e) {
    e->up = false;
    log_lost(e);
    hmq_bytes_free(&e->allocator, &e->incoming);
    hmq_bytes_clear(&e->fetch_queue.bytes);
    e->fetches = 0;
    e->fetch_limit = 1; /* in case the pages were the reason: the server's bound on what a client may have unread */
    for (uint32_t i = 0; i < e->slot_count; i++) {
        connection *c = e->slots[i];
        if (c == NULL || c->phase != PHASE_OPEN) continue;
        c->under_way = 0;
        c->stalled = false;
        outgoing_server_lost(e, c);
    }
}

void hmq_engine_server_restored(hmq_engine *e, int64_t now_ms) {
    e->up = true;
    e->now_ms = now_ms;
    for (uint32_t i = 0; i < e->slot_count; i++) {
        connection *c = e->slots[i];
        if (c == NULL || c->phase != PHASE_OPEN) continue;
        c->retry_pause_ms = 0;
        log_send_again(e, c);
        engine_wants_flush(e, c);
        engine_relieve(e, c);
    }
}
