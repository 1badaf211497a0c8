/* engine_queue.c - which messages of a session's queue go to its client, and when.
 *
 *      server's queue   . . a b | c d e f | g h . . i j            one serial each, growing
 *                       sent      ready   ^
 *                                     position: up to here everything was sent, lies in `ready`, or needs no sending
 *
 * Pushes (a copy of each new message on the inbox channel) are a shortcut; SESSION.FETCH behind `position` is the truth.
 * A push that follows `position` without a gap is sent at once, or waits in `ready`, a short line behind a full window.
 * Otherwise the session is *behind*: pushes are ignored and the queue is fetched, page by page, until a page says that
 * nothing follows.  Fetches and pushes come over one connection in the order in which the server executed them: every
 * push before a page is in it, and every push behind it follows it.
 *
 * After the server was away the queue is walked again from its beginning, past what the client has, and each of these is
 * compared with what the server has: a server restored from an older state may have given an identifier and serial of
 * ours to another message.  Until then nothing of it is acknowledged, so that no such message can be removed unsent.  If
 * one comes while the client still has ours, the two cannot be told apart any more: CONFLICT.
 *
 * Everything is O(1) for a message but the server's loss, which visits what is in flight. */
#include "engine_internal.h"

#define MAX_PAGE 10000U /* what SESSION.FETCH takes as COUNT */

void outgoing_wants_fetch(hmq_engine *e, connection *c) {
    c->behind = true;
    engine_wants_flush(e, c);
}

/* While checking: is this message of the server's one that the client has, or that is about to be acknowledged? */
static bool passes(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value) {
    inflight_entry *entry = inflight_find(&c->inflight, m->packet_id);
    if (entry == NULL) return false;
    bool released = m->state == STATE_RELEASED && entry->state >= INFLIGHT_RELEASING;
    if (entry->serial != m->serial || (!released && entry->mark != engine_mark(value, m->len))) {
        c->conflict = true;
        engine_raise(e, &(hmq_engine_event){.kind = HMQ_EVENT_CONFLICT, .conn = c->handle});
        return false;
    }
    if (!entry->unchecked) return true;
    entry->unchecked = false;
    if (entry->state == INFLIGHT_ACK_DUE)
        outgoing_ack_due(e, c, entry);
    else if (entry->state == INFLIGHT_RELEASING && released)
        outgoing_release_answered(e, c, m->packet_id, true);
    else if (entry->state == INFLIGHT_RELEASING)
        outgoing_release(e, c, m->packet_id);
    return true;
}

/* The server has no other messages: what was not found is gone, and no acknowledgement of it may go out. */
static void check_ends(hmq_engine *e, connection *c) {
    if (!c->checking) return;
    c->checking = false;
    for (uint32_t i = 0; i < c->inflight.room;) {
        inflight_entry *entry = &c->inflight.entries[i];
        bool lost = entry->packet_id != 0 && entry->unchecked;
        if (lost && inflight_is_unacknowledged(entry->state)) {
            entry->unchecked = false;
            entry->gone = true;
            if (entry->state == INFLIGHT_RELEASING) outgoing_release_answered(e, c, entry->packet_id, true);
        } else if (lost) {
            uint32_t room = c->inflight.room;
            inflight_remove(&e->allocator, &c->inflight, entry);
            if (c->inflight.room != room) return; /* it was the last one */
            continue; /* another may have moved here */
        }
        i++;
    }
}

static bool next_entry(const uint8_t *reply, size_t len, size_t *at, outgoing_message *m, const uint8_t **value) {
    hmq_resp_item item;
    if (!hmq_resp_next(reply, len, at, &item) || item.type != '*' || item.number != 4) return false;
    if (!hmq_resp_next(reply, len, at, &item) || item.type != ':' || item.number <= 0) return false;
    m->serial = (uint64_t)item.number;
    if (!hmq_resp_next(reply, len, at, &item) || item.type != ':' || item.number <= 0 || item.number > 65535)
        return false;
    m->packet_id = (uint16_t)item.number;
    if (!hmq_resp_next(reply, len, at, &item) || item.type != ':') return false;
    m->state = (uint8_t)item.number;
    if (!hmq_resp_next(reply, len, at, &item) || item.type != '$' || item.number < 0) return false;
    m->len = (uint32_t)item.text.len;
    m->fresh = false;
    *value = item.text.data;
    return true;
}

void outgoing_fetched(hmq_engine *e, connection *c, const uint8_t *reply, size_t len) {
    size_t at = 0;
    hmq_resp_item item, more = {0};
    c->fetching = false;
    e->count.pages_fetched++;
    bool readable = hmq_resp_next(reply, len, &at, &item) && item.type == '*' && item.number == 3 &&
                    hmq_resp_next(reply, len, &at, &item) && item.type == '*';
    for (int64_t left = readable ? item.number : 0; left > 0; left--) {
        outgoing_message m;
        const uint8_t *value;
        if (!next_entry(reply, len, &at, &m, &value)) return; /* cannot be: the reply was measured */
        if (c->checking && passes(e, c, &m, value))
            c->position = m.serial;
        else if (c->conflict)
            return;
        else
            outgoing_take(e, c, &m, value);
    }
    readable = readable && hmq_resp_next(reply, len, &at, &more) && more.type == ':';
    c->behind = !readable || more.number != 0;
    if (!c->behind) check_ends(e, c);
    engine_wants_flush(e, c);
}

void outgoing_fetch_failed(hmq_engine *e, connection *c) {
    c->fetching = false;
    engine_wants_flush(e, c);
}

static void send_fetch(hmq_engine *e, connection *c) {
    uint32_t room = e->settings.max_ready - c->ready_count;
    if (c->checking) room += c->inflight.count; /* these are passed, not taken */
    uint8_t *begin = log_room(e, outgoing_session_bytes(c) + 160);
    if (begin == NULL) return;
    uint8_t *out = outgoing_put_session(begin, c, "SESSION.FETCH", 13, 6);
    out = hmq_resp_put_text(out, "AFTER", 5);
    out = hmq_resp_put_number(out, c->position);
    out = hmq_resp_put_text(out, "COUNT", 5);
    out = hmq_resp_put_number(out, room < MAX_PAGE ? room : MAX_PAGE);
    out = hmq_resp_put_text(out, "BYTES", 5);
    out = hmq_resp_put_number(out, e->settings.max_ready_bytes - c->ready.len);
    if (!outgoing_add(e, c, COMMAND_FETCH, 0, begin, out)) return;
    c->fetching = true;
    e->fetches++;
}

static bool fetch_is_due(const hmq_engine *e, const connection *c) {
    /* One larger page a little later, not a page for each acknowledgement. */
    return c->behind && !c->fetching && !c->conflict && c->writable && c->ready_count * 2 <= e->settings.max_ready &&
           c->ready.len * 2 <= e->settings.max_ready_bytes;
}

/* SESSION.SENT: up to the last serial that was sent, messages with an expiry must not expire any more. */
static void send_sent(hmq_engine *e, connection *c) {
    uint8_t *begin = log_room(e, outgoing_session_bytes(c) + 32);
    if (begin == NULL) return;
    uint8_t *out = outgoing_put_session(begin, c, "SESSION.SENT", 12, 1);
    out = hmq_resp_put_number(out, c->highest);
    c->sent_due = !outgoing_add(e, c, COMMAND_SENT, 0, begin, out);
}

void outgoing_flush(hmq_engine *e, connection *c) {
    if (!e->up || c->phase != PHASE_OPEN || c->stalled) return;
    if (c->ready_count > 0) outgoing_send_ready(e, c);
    if (c->sent_due) send_sent(e, c);
    if (id_count(&c->releases_due) > 0) outgoing_send_releases(e, c);
    if (id_count(&c->acks_due) > 0) outgoing_send_acks(e, c);
    if (!fetch_is_due(e, c) || c->in_fetch_queue) return;
    if (e->fetches < e->fetch_limit)
        send_fetch(e, c);
    else
        c->in_fetch_queue = engine_list_add(e, &e->fetch_queue, c->handle);
}

void outgoing_server_lost(hmq_engine *e, connection *c) {
    c->fetching = c->in_fetch_queue = false;
    c->behind = true;
    c->checking = true;
    c->position = 0;
    hmq_bytes_free(&e->allocator, &c->acks_due.bytes);
    hmq_bytes_free(&e->allocator, &c->acking.bytes);
    hmq_bytes_free(&e->allocator, &c->releases_due.bytes);
    hmq_bytes_free(&e->allocator, &c->ready);
    c->ready_count = 0;
    for (uint32_t i = 0; i < c->inflight.room; i++) {
        inflight_entry *entry = &c->inflight.entries[i];
        if (entry->packet_id == 0) continue;
        entry->unchecked = !entry->gone;
        if (entry->state == INFLIGHT_ACKING) entry->state = INFLIGHT_ACK_DUE;
    }
}

void outgoing_forget(hmq_engine *e, connection *c) {
    inflight_free(&e->allocator, &c->inflight);
    hmq_bytes_free(&e->allocator, &c->acks_due.bytes);
    hmq_bytes_free(&e->allocator, &c->acking.bytes);
    hmq_bytes_free(&e->allocator, &c->releases_due.bytes);
    hmq_bytes_free(&e->allocator, &c->ready);
}
