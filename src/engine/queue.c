/* queue.c - which messages of a session's queue go to its client, and when.
 *
 *      server's queue   . . a b | c d e f | g h . . i j            one serial each, increasing
 *                       sent      ready   ^
 *                                     position: all up to here was sent, is in `ready`, or need not be sent
 *
 * Pushes (a copy of each new message on the inbox channel) are a shortcut; SESSION.FETCH after `position` is
 * authoritative.  A push that follows `position` without a gap is sent at once, or waits in `ready`, a short line for
 * a full window.  Otherwise the session is *behind*: pushes are ignored and the queue is fetched, page by page, until
 * a page says that nothing follows.  Fetches and pushes come over one connection in the order in which the server
 * executed them: every push before a page is in it, and every push after it follows it.
 *
 * After a loss of the server the queue is walked again from its beginning, past the messages that the client has, and
 * each of these is compared with the server's (*checking*).  A server restored from an older state may have given the
 * identifier and serial of a sent message to another one.  A message is not acknowledged before its comparison, so that
 * no other message can be removed unsent.  If another message has the identifier of one in flight, the two cannot be
 * distinguished: CONFLICT.  The walk ends after the last serial that was sent, or with the queue.  Messages found on the
 * walk that the client does not have are fetched afterwards, so that the walk needs no memory.
 *
 * Everything is O(1) per message, except the server's loss and the end of a walk, which visit all messages in flight.
 */
#include "engine/internal.h"

#include "topic/packed_page.h"

#define MAX_PAGE 10000U /* the maximum COUNT of SESSION.FETCH */
/* This leaves room for pushes within the server's limit for unread output (client-output-buffer-limit pubsub 32mb).
 * No packet of a client becomes a message of this size. */
#define MOST_MESSAGE_BYTES (20 << 20)

static void mark_found(hmq_engine *e, connection *c, inflight_entry *entry, bool is_released) {
    entry->unchecked = false;
    entry->released = is_released;
    if (entry->state == INFLIGHT_ACK_DUE) hmq_outgoing_ack_due(e, c, entry);
}

/* Is this message of the server in flight at the client, or about to be acknowledged?  May end the connection. */
static bool is_in_flight(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    inflight_entry *entry = hmq_inflight_find(&c->inflight, m->packet_id);
    if (entry == NULL || entry->gone) return false;
    if (!entry->unchecked) return entry->serial == m->serial;
    bool is_released = m->state == STATE_RELEASED && entry->state >= INFLIGHT_RELEASING;
    if (entry->serial == m->serial && (is_released || entry->mark == engine_mark(value, m->len))) {
        if (m->serial > c->highest) c->highest = m->serial;
        if (m->state == STATE_QUEUED && hmq_record_expires(value, m->len) != 0) c->sent_due = true; /* it was lost */
        mark_found(e, c, entry, is_released);
        return true;
    }
    hmq_engine_end(e, c, HMQ_EVENT_CONFLICT, (hmq_slice){NULL, 0});
    return false;
}

/* Messages in flight that were not found are gone from the server: their acknowledgements must not be sent. */
static void forget_lost(hmq_engine *e, connection *c) {
    for (uint32_t i = 0; i < c->inflight.room;) {
        inflight_entry *entry = &c->inflight.entries[i];
        if (entry->packet_id == 0 || !entry->unchecked) {
            i++;
        } else if (inflight_is_unacknowledged(entry->state)) {
            entry->unchecked = false;
            entry->gone = true;
        } else {
            hmq_inflight_remove(&e->allocator, &c->inflight,
                                entry); /* another entry may move here, or the table may be freed */
        }
    }
}

/* Ends the walk.  False: messages that it skipped are fetched next. */
static bool check_ends(hmq_engine *e, connection *c) {
    bool goes_back = c->missed;
    c->checking = c->missed = false;
    forget_lost(e, c);
    if (goes_back) c->position = c->missed_after;
    return !goes_back;
}

/* One message of a page, in the order of the serials.  False: the rest of the page is not needed now. */
static bool take_fetched(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    if (m->serial <= c->position) return true;
    if (c->checking && m->serial > c->check_until && !check_ends(e, c)) return false;
    if (is_in_flight(e, c, m, value)) {
        c->position = m->serial;
    } else if (c->phase == PHASE_OPEN && c->checking) {
        if (!c->missed) c->missed_after = c->position;
        c->missed = true;
        c->position = m->serial;
    } else if (c->phase == PHASE_OPEN) {
        hmq_outgoing_take(e, c, m, value);
    }
    return c->phase == PHASE_OPEN;
}

static bool next_number(const uint8_t *reply, size_t len, size_t *at, int64_t least, int64_t most, int64_t *number) {
    hmq_resp_item item;
    if (!hmq_resp_next(reply, len, at, &item) || item.type != ':') return false;
    *number = item.number;
    return item.number >= least && item.number <= most;
}

static bool next_array(const uint8_t *reply, size_t len, size_t *at, int64_t *count) {
    hmq_resp_item item;
    if (!hmq_resp_next(reply, len, at, &item) || item.type != '*') return false;
    *count = item.number;
    return item.number >= 0;
}

static bool next_entry(const uint8_t *reply, size_t len, size_t *at, outgoing_message *m, const uint8_t **value) {
    int64_t count, serial, packet_id, state;
    hmq_resp_item item;
    bool is_entry = next_array(reply, len, at, &count) && count == 4 &&
                    next_number(reply, len, at, 1, INT64_MAX, &serial) &&
                    next_number(reply, len, at, 1, UINT16_MAX, &packet_id) &&
                    next_number(reply, len, at, STATE_QUEUED, STATE_RELEASED, &state) &&
                    hmq_resp_next(reply, len, at, &item) && item.type == '$' && item.number >= 0;
    if (!is_entry) return false;
    *m = (outgoing_message){(uint64_t)serial, (uint32_t)item.text.len, (uint16_t)packet_id, (uint8_t)state, false};
    *value = item.text.data;
    return true;
}

/* Reads an array of entries.  False: it is not one. */
static bool take_listed(hmq_engine *e, connection *c, int64_t count, const uint8_t *reply, size_t len, size_t *at,
                        bool *continues) {
    for (; count > 0; count--) {
        outgoing_message m;
        const uint8_t *value;
        if (!next_entry(reply, len, at, &m, &value)) return false;
        *continues = *continues && take_fetched(e, c, &m, value);
    }
    return true;
}

/* A packed page. */
static bool take_packed(hmq_engine *e, connection *c, hmq_slice page, bool *continues) {
    hmq_packed_entry entry;
    size_t at = 0;
    int read;
    while ((read = hmq_packed_entry_next(page.data, page.len, &at, &entry)) == 1) {
        const outgoing_message m = {entry.serial, (uint32_t)entry.value.len, entry.packet_id, entry.state, false};
        *continues = *continues && take_fetched(e, c, &m, entry.value.data);
    }
    return read == 0;
}

/* Either form of entries. */
static bool take_entries(hmq_engine *e, connection *c, const uint8_t *reply, size_t len, size_t *at, bool *continues) {
    hmq_resp_item item;
    if (!hmq_resp_next(reply, len, at, &item) || item.number < 0) return false;
    if (item.type == '$') return take_packed(e, c, item.text, continues);
    return item.type == '*' && take_listed(e, c, item.number, reply, len, at, continues);
}

/* A bounded page had no room for a message: the next page is for it alone, or it is skipped. */
static bool take_too_large(hmq_engine *e, connection *c, const uint8_t *reply, size_t len, size_t *at) {
    int64_t count, bytes, serial, packet_id;
    if (!next_array(reply, len, at, &count)) return false;
    if (count == 0) return true;
    bool is_message = count == 3 && next_number(reply, len, at, 1, INT64_MAX, &bytes) &&
                      next_number(reply, len, at, 1, INT64_MAX, &serial) &&
                      next_number(reply, len, at, 1, UINT16_MAX, &packet_id);
    if (!is_message) return false;
    if (bytes > MOST_MESSAGE_BYTES)
        hmq_outgoing_skip_oversized(e, c, (uint64_t)serial, (uint16_t)packet_id);
    else
        c->needs = (uint32_t)bytes;
    return true;
}

bool hmq_outgoing_fetched(hmq_engine *e, connection *c, const uint8_t *reply, size_t len) {
    size_t at = 0;
    int64_t parts, follow, expired;
    bool continues = true;
    if (!next_array(reply, len, &at, &parts) || parts < 3 || parts > 4) return false;
    if (!take_entries(e, c, reply, len, &at, &continues)) return false;
    if (!next_number(reply, len, &at, 0, 1, &follow) || !next_number(reply, len, &at, 0, INT64_MAX, &expired))
        return false;
    c->needs = 0;
    if (parts == 4 && !take_too_large(e, c, reply, len, &at)) return false;
    c->fetching = false;
    e->count.pages_fetched++;
    if (follow == 0 && continues && c->checking) continues = check_ends(e, c);
    hmq_outgoing_finish_releases(e, c);
    hmq_outgoing_set_behind(c, follow == 1 || !continues);
    c->overflowed &= c->behind;
    c->outgrew &= c->behind;
    hmq_engine_schedule_flush(e, c);
    return true;
}

void hmq_outgoing_fetch_failed(hmq_engine *e, connection *c) {
    c->fetching = false;
    hmq_engine_schedule_flush(e, c);
}

/* The maximum bytes of the next page: a message larger than a page is fetched by itself. */
static uint32_t page_bytes(const hmq_engine *e, const connection *c) {
    return c->needs > 0 ? c->needs : e->settings.max_ready_bytes - (uint32_t)c->ready.len;
}

static uint32_t page_count(const hmq_engine *e, const connection *c) {
    uint32_t room = e->settings.max_ready - c->ready_count;
    if (c->checking) room += c->inflight.count; /* these are skipped, not taken */
    if (c->needs > 0) room = 1;
    return room < MAX_PAGE ? room : MAX_PAGE;
}

static fetch_line *line_of(const connection *c) {
    return c->needs > 0 ? &c->link->large : &c->link->pages;
}

/* False: no memory now. */
static bool send_fetch(hmq_engine *e, connection *c) {
    uint32_t bytes = page_bytes(e, c);
    uint8_t *begin = hmq_log_room(e, c->link, hmq_outgoing_session_bytes(c) + 160);
    if (begin == NULL) return false;
    uint8_t *out = hmq_outgoing_put_session(begin, c, "SESSION.FETCH", 13, c->link->unpacked ? 6 : 8);
    out = hmq_resp_put_text(out, "AFTER", 5);
    out = hmq_resp_put_number(out, c->position);
    out = hmq_resp_put_text(out, "COUNT", 5);
    out = hmq_resp_put_number(out, page_count(e, c));
    out = hmq_resp_put_text(out, "BYTES", 5);
    out = hmq_resp_put_number(out, bytes);
    if (!c->link->unpacked) {
        out = hmq_resp_put_text(out, "PACKED", 6);
        out = hmq_resp_put_text(out, "BOUNDED", 7);
    }
    const awaited entry = {.conn = c->handle,
                           .token = bytes,
                           .len = (uint32_t)(out - begin),
                           .packet_id = !c->link->unpacked,
                           .qos = c->needs > 0,
                           .kind = COMMAND_FETCH};
    if (!hmq_log_add(e, c->link, &entry)) return false;
    c->fetching = true;
    c->asked++;
    line_of(c)->under_way++;
    line_of(c)->bytes += bytes;
    return true;
}

static bool half_is_free(const hmq_engine *e, connection *c) {
    return hmq_client_of(c)->writable && c->ready_count * 2 <= e->settings.max_ready &&
           c->ready.len * 2 <= e->settings.max_ready_bytes;
}

static bool fetch_is_due(const hmq_engine *e, connection *c) {
    /* One larger page later, instead of one page per acknowledgement. */
    return c->behind && !c->fetching && half_is_free(e, c);
}

static bool may_fetch(const hmq_engine *e, const connection *c) {
    const fetch_line *line = line_of(c);
    bool fits = line->under_way == 0 || line->bytes + page_bytes(e, c) <= e->settings.max_fetch_bytes;
    return fits && line->under_way < c->link->fetch_limit;
}

static void fetch_or_wait(hmq_engine *e, connection *c, bool is_first) {
    bool is_next = is_first || line_of(c)->waiting.bytes.len == 0;
    if (!is_next || !may_fetch(e, c))
        hmq_engine_list_add(e, &line_of(c)->waiting, c->handle, &c->in_fetch_queue);
    else if (!send_fetch(e, c))
        hmq_engine_schedule_wake(e, c);
}

/* Fetches the page that the first connection in the line waits for; false: none may be fetched now. */
static bool next_fetch(hmq_engine *e, engine_link *l, fetch_line *line) {
    hmq_conn conn;
    if (line->waiting.bytes.len == 0) return false;
    memcpy(&conn, hmq_bytes_at(&line->waiting.bytes), sizeof conn);
    connection *c = hmq_engine_find(e, conn);
    if (c != NULL && c->link != l) c = NULL;
    bool is_due = c != NULL && hmq_outgoing_may_send_commands(c) && fetch_is_due(e, c);
    if (is_due && !may_fetch(e, c)) return false;
    hmq_engine_list_pop(&line->waiting, &conn);
    if (c != NULL) c->in_fetch_queue = false;
    if (is_due) fetch_or_wait(e, c, true);
    return true;
}

void hmq_outgoing_fetch_waiting(hmq_engine *e, engine_link *l) {
    fetch_line *lines[] = {&l->pages, &l->large};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        while (l->up && next_fetch(e, l, lines[i])) continue;
}

static void report_room(hmq_engine *e, connection *c) {
    if (c->behind || !half_is_free(e, c) || c->output.len > e->settings.max_output_bytes) return;
    c->wants_room = !hmq_engine_raise(e, &(hmq_engine_event){.kind = HMQ_EVENT_ROOM, .conn = c->handle});
    if (c->wants_room) hmq_engine_schedule_wake(e, c);
}

/* SESSION.SENT: messages up to the last sent serial must no longer expire, or the bound of invariant 3 has changed. */
static void send_sent(hmq_engine *e, connection *c) {
    uint16_t places = c->window_due ? (uint16_t)hmq_places_next(c) : 0;
    uint8_t *begin = hmq_log_room(e, c->link, hmq_outgoing_session_bytes(c) + 96);
    uint8_t *out = begin;
    if (begin != NULL) {
        out = hmq_outgoing_put_session(begin, c, "SESSION.SENT", 12, places > 0 ? 3 : 1);
        if (places > 0) {
            out = hmq_resp_put_text(out, "WINDOW", 6);
            out = hmq_resp_put_number(out, places);
        }
        out = hmq_resp_put_number(out, c->highest);
    }
    if (begin != NULL && hmq_outgoing_add(e, c, COMMAND_SENT, places, begin, out))
        c->sent_due = c->window_due = false;
    else
        hmq_engine_schedule_wake(e, c);
}

static void send_to_server(hmq_engine *e, connection *c) {
    if (c->sent_due || c->window_due) send_sent(e, c);
    hmq_outgoing_send_releases(e, c);
}

void hmq_outgoing_flush(hmq_engine *e, connection *c) {
    if (!hmq_outgoing_may_send_commands(c)) return;
    if (c->ready_count > 0) hmq_outgoing_send_ready(e, c);
    send_to_server(e, c);
    if (hmq_outgoing_acks_are_due(c)) hmq_outgoing_schedule_acks(e, c);
    if (c->wants_room) report_room(e, c);
    if (fetch_is_due(e, c) && !c->in_fetch_queue) fetch_or_wait(e, c, false);
}

void hmq_outgoing_close(hmq_engine *e, connection *c) {
    if (!c->link->up) return;
    send_to_server(e, c);
    hmq_outgoing_send_all_acks(e, c);
}

static void free_lines(hmq_engine *e, connection *c) {
    hmq_bytes_free(&e->allocator, &c->acks_due.bytes);
    hmq_bytes_free(&e->allocator, &c->acking.bytes);
    hmq_bytes_free(&e->allocator, &c->ready);
}

void hmq_outgoing_server_lost(hmq_engine *e, connection *c) {
    c->fetching = c->in_fetch_queue = c->in_ack_queue = false;
    hmq_outgoing_set_behind(c, true);
    hmq_places_lost(c);
    if (!c->checking || c->highest > c->check_until) c->check_until = c->highest;
    c->checking = c->inflight.count > 0;
    c->missed = c->sent_due = false;
    c->needs = 0;
    c->position = c->highest = c->newest = 0;
    c->overflowed = c->outgrew = false;
    free_lines(e, c);
    c->releases_under_way = 0;
    c->releases_held = false;
    c->ready_count = 0;
    for (uint32_t i = 0; i < c->inflight.room; i++) {
        inflight_entry *entry = &c->inflight.entries[i];
        if (entry->packet_id == 0) continue;
        entry->unchecked = !entry->gone;
        entry->released = false;
        if (entry->state == INFLIGHT_ACKING) entry->state = INFLIGHT_ACK_DUE;
    }
}

void hmq_outgoing_forget(hmq_engine *e, connection *c) {
    hmq_inflight_free(&e->allocator, &c->inflight);
    hmq_bytes_free(&e->allocator, &c->releases.bytes);
    hmq_bytes_free(&e->allocator, &c->in_output.bytes);
    free_lines(e, c);
}
