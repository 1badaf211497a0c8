/* server.c - turns replies and pushes of the server into packets for clients, or events for the owner.
 *
 * Complete replies of a link are taken one after the other; an incomplete one waits in its `incoming`.  A reply belongs to
 * the oldest command of its link without one; a push belongs to no command. */
#include "engine/internal.h"
#include "engine/crossing_confirm.h"
#include "engine/crossing_replies.h"

/* ---- publishes ---- */

static bool is_qos0_publish(const awaited *entry) {
    return entry->kind == COMMAND_PUBLISH && entry->qos == 0;
}

/* Withholds the outcome of the command at the head, if replicas must confirm it or an earlier one of the connection. */
static inline bool is_held(hmq_engine *e, connection *c, const awaited *entry, int64_t reply, uint8_t refusal) {
    bool is_due = c->held.len > 0 || (refusal == 0 && hmq_confirm_needs(e, entry));
    if (is_qos0_publish(entry) || !is_due) return false;
    const hmq_slice command = hmq_log_head_command(c->link);
    held_answer answer = {.reached = reply, .entry = *entry, .refusal = refusal};
    answer.entry.batch = answer.entry.before = answer.entry.after = 0;
    answer.entry.alone = false;
    if (!hmq_confirm_hold(e, c, &command, &answer)) hmq_engine_no_memory(e, c);
    return true;
}

static void done(hmq_engine *e, connection *c, const awaited *entry, int64_t reply) {
    if (!c->publishes.waits) c->publishes.pause_ms = 0;
    if (!is_held(e, c, entry, reply, 0)) hmq_publish_settle(e, c, entry, reply);
}

static void refused_for_good(hmq_engine *e, connection *c, const awaited *entry, hmq_slice error) {
    e->count.publishes_refused += entry->kind == COMMAND_PUBLISH;
    if (c->version == 5 && entry->qos > 0 && entry->kind == COMMAND_PUBLISH) {
        const uint8_t reason = hmq_refusal_reason(error);
        if (is_held(e, c, entry, 0, reason)) return;
        hmq_publish_answer(e, c, entry, reason);
    } else {
        hmq_publish_failed(e, c, error);
    }
    if (TRACE_OF(entry->token) != 0) hmq_trace_answered(e, c, entry, HMQ_TRACE_REFUSED);
    hmq_publish_finish(e, c);
}

static void refused(hmq_engine *e, connection *c, const awaited *entry, hmq_slice error) {
    e->count.refusals[hmq_refusal_index(error)]++;
    bool is_answered_at_once =
        c->version == 5 && entry->kind == COMMAND_PUBLISH && hmq_refusal_is_answered_at_once(error);
    if (is_qos0_publish(entry) && hmq_refusal_is_temporary(e, error)) {
        e->count.publishes_dropped_qos0++;
        if (TRACE_OF(entry->token) != 0) hmq_trace_answered(e, c, entry, HMQ_TRACE_REFUSED);
        hmq_publish_finish(e, c);
    } else if (!hmq_refusal_is_temporary(e, error) || is_answered_at_once ||
               hmq_refusal_lasts_too_long(e, &c->publishes)) {
        refused_for_good(e, c, entry, error);
    } else if (hmq_log_keep_head(e, c, true)) {
        hmq_refusal_pause(e, c, &c->publishes, error);
    } else {
        hmq_engine_no_memory(e, c);
    }
}

/* A publish, the place of a denied one, or a completion. */
static void client_replied(hmq_engine *e, connection *c, const awaited *entry, const hmq_resp_item *reply) {
    bool refusal = reply->type == '-';
    hmq_assert(c->under_way > 0);
    c->under_way--;
    c->under_way_bytes -= entry->len;
    if (TRACE_OF(entry->token) != 0) hmq_trace_replied(e, entry, reply);
    if (refusal && hmq_session_is_gone(reply->text)) {
        hmq_publish_failed(e, c, reply->text);
    } else if (c->publishes.waits && !is_qos0_publish(entry)) {
        /* All after a refused one are sent again: the order of the messages and of the answers must not change. */
        if (!hmq_log_keep_head(e, c, true)) hmq_engine_no_memory(e, c);
    } else if (refusal) {
        refused(e, c, entry, reply->text);
    } else {
        done(e, c, entry, reply->number);
    }
}

/* ---- other commands ---- */

static void fetch_done(const hmq_engine *e, engine_link *l, const awaited *fetch) {
    fetch_line *line = fetch->qos > 0 ? &l->large : &l->pages;
    line->bytes -= fetch->token < line->bytes ? fetch->token : line->bytes;
    if (line->under_way > 0) line->under_way--;
    if (l->fetch_limit < e->settings.max_fetches) l->fetch_limit++;
}

/* An acknowledgement, release or fetch was refused: temporarily, or because the session has another owner. */
static void queue_refused(hmq_engine *e, connection *c, hmq_slice error) {
    e->count.refusals[hmq_refusal_index(error)]++;
    if (hmq_refusal_is_temporary(e, error) && !hmq_refusal_lasts_too_long(e, &c->queue))
        hmq_refusal_pause(e, c, &c->queue, error);
    else
        hmq_publish_failed(e, c, error);
}

/* An older module does not know PACKED.  The page is requested again without it. */
static bool is_unknown_word(const awaited *entry, const hmq_resp_item *item) {
    return entry->kind == COMMAND_FETCH && entry->packet_id != 0 && item->type == '-' &&
           hmq_error_begins(item->text, "ERR");
}

/* False: the reply does not fit this command. */
static bool queue_replied(hmq_engine *e, connection *c, const awaited *entry, const hmq_resp_item *item,
                          hmq_slice reply) {
    bool is_done = item->type != '-';
    hmq_assert(c->asked > 0);
    c->asked--;
    if (is_unknown_word(entry, item))
        c->link->unpacked = true;
    else if (!is_done)
        queue_refused(e, c, item->text);
    if (c->phase != PHASE_OPEN) return true;
    if (is_done && !c->queue.waits) c->queue.pause_ms = 0;
    switch (entry->kind) {
    case COMMAND_ACK: hmq_outgoing_ack_answered(e, c, entry->packet_id, is_done); return true;
    case COMMAND_RELEASE: hmq_outgoing_release_answered(e, c, is_done); return true;
    case COMMAND_SENT:
        c->sent_due |= !is_done;
        hmq_places_announced(e, c, entry->packet_id, is_done);
        if (c->ready_count > 0) hmq_outgoing_send_ready(e, c);
        return true;
    default: break;
    }
    if (is_done) return hmq_outgoing_fetched(e, c, reply.data, reply.len);
    hmq_outgoing_fetch_failed(e, c);
    return true;
}

/* ---- pushes ---- */

/* The session was taken over or dropped, unless the notice is older than this connection. */
static void lost_session(connection *c, bool is_news, uint64_t epoch, hmq_engine_event *event) {
    if (!is_news) return;
    c->phase = PHASE_ENDED;
    *event = (hmq_engine_event){.kind = HMQ_EVENT_TAKEN_OVER, .conn = c->handle, .epoch = epoch};
}

static void delivered(hmq_engine *e, const engine_link *l, hmq_slice inbox, hmq_slice payload,
                      hmq_engine_event *event) {
    hmq_delivery delivery;
    connection *c = hmq_engine_find_inbox(e, inbox);
    bool is_readable = hmq_delivery_decode(payload.data, payload.len, &delivery) == 0;
    if (c == NULL) { /* perhaps between the subscription and the opening of the session: the queue has the message */
        e->unclaimed += is_readable && delivery.kind == HMQ_DELIVERY_QUEUED;
        return;
    }
    if (c->phase != PHASE_OPEN || c->link != l) return; /* another node had the session: its queue decides */
    e->count.deliveries_received++;
    if (!is_readable)
        e->count.messages_unreadable++;
    else if (delivery.kind == HMQ_DELIVERY_TAKEN_OVER)
        lost_session(c, delivery.serial > c->epoch, delivery.serial, event);
    else if (delivery.kind == HMQ_DELIVERY_DROPPED)
        lost_session(c, delivery.serial >= c->epoch, 0, event);
    else
        hmq_outgoing_pushed(e, c, &delivery);
}

static bool is_text(const hmq_resp_item *item) {
    return item->type == '$' && item->number >= 0;
}

static bool ends_with(hmq_slice text, const char *word) {
    size_t len = strlen(word);
    return text.len >= len && memcmp(text.data + text.len - len, word, len) == 0;
}

static void pushed(hmq_engine *e, engine_link *l, hmq_slice push, hmq_engine_event *event) {
    size_t at = 0;
    hmq_resp_item head, kind, channel, payload;
    bool is_named = hmq_resp_next(push.data, push.len, &at, &head) && hmq_resp_next(push.data, push.len, &at, &kind) &&
                    is_text(&kind);
    bool is_delivery = is_named && head.number == 3 && kind.text.len == 7 &&
                       memcmp(kind.text.data, "message", 7) == 0 && hmq_resp_next(push.data, push.len, &at, &channel) &&
                       is_text(&channel) && ends_with(channel.text, "_inbox") &&
                       hmq_resp_next(push.data, push.len, &at, &payload) && is_text(&payload);
    if (is_delivery) {
        delivered(e, l, channel.text, payload.text, event);
        return;
    }
    if (is_named && ends_with(kind.text, "subscribe")) hmq_log_confirmed(e, l);
    *event = (hmq_engine_event){.kind = HMQ_EVENT_PUSH, .link = l->number, .bytes = push};
}

/* ---- replies ---- */

/* The types of reply that each command may have.  Any other type shows that replies and commands do not match. */
static bool is_of_its_type(const awaited *entry, uint8_t type) {
    switch (entry->kind) {
    case COMMAND_OWNER: return true;
    case COMMAND_SILENT: return false;
    case COMMAND_DENIED: return type == (entry->qos == 2 ? ':' : '+') || type == '-';
    case COMMAND_SENT: return type == '+' || type == '-';
    case COMMAND_FETCH: return type == '*' || type == '-';
    default: return type == ':' || type == '-';
    }
}

/* Handles the reply to the command at the head.  False: the reply does not fit it. */
static bool head_replied(hmq_engine *e, engine_link *l, const hmq_resp_item *item, hmq_slice reply,
                         hmq_engine_event *event) {
    const awaited entry = *hmq_log_head(l);
    if (!is_of_its_type(&entry, item->type)) return false;
    connection *c = hmq_engine_find(e, entry.conn);
    bool is_open = c != NULL && c->phase == PHASE_OPEN;
    e->count.replies_received++;
    if (entry.kind == COMMAND_OWNER)
        *event = (hmq_engine_event){
            .kind = HMQ_EVENT_REPLY, .link = l->number, .conn = entry.conn, .token = entry.token, .bytes = reply};
    else if (is_open && entry.kind <= COMMAND_COMPLETE)
        client_replied(e, c, &entry, item);
    else if (is_open && !queue_replied(e, c, &entry, item, reply))
        return false;
    if (entry.kind == COMMAND_WAIT && hmq_confirm_replied(e, l, item)) hmq_crossing_confirmed(e, l);
    if (entry.kind == COMMAND_FETCH) fetch_done(e, l, &entry);
    if (entry.alone) hmq_log_suspect_done(l);
    if (is_open && c->under_way == 0 && (c->next != NULL || hmq_log_may_resend(c))) hmq_engine_schedule_wake(e, c);
    hmq_assert(entry.kind != COMMAND_ACK || entry.packet_id <= l->acking);
    if (entry.kind == COMMAND_ACK) l->acking -= entry.packet_id;
    hmq_log_drop_head(e, l);
    return true;
}

static bool next_item(hmq_slice reply, size_t *at, hmq_resp_item *item) {
    if (!hmq_resp_next(reply.data, reply.len, at, item)) return false;
    if (item->type == '!') item->type = '-';
    return true;
}

/* ---- replies to TOPIC.PIPELINE ---- */

/* An older module does not know TOPIC.PIPELINE, or the user may not call it. */
static bool is_unpipelined(hmq_slice error) {
    return hmq_error_begins(error, "ERR unknown command") || hmq_error_begins(error, "NOPERM");
}

/* The publish at the head was certainly not executed, so any QoS may be sent again: immediately, and by itself. */
static void take_back(hmq_engine *e, engine_link *l) {
    connection *c = hmq_engine_find(e, hmq_log_head(l)->conn);
    e->count.replies_received++;
    if (c != NULL && c->phase == PHASE_OPEN) {
        hmq_assert(c->under_way > 0);
        c->under_way--;
        c->under_way_bytes -= hmq_log_head(l)->len;
        if (!hmq_log_keep_head(e, c, false)) hmq_engine_no_memory(e, c);
        if (!c->publishes.waits) c->publishes.at_ms = e->now_ms;
        c->publishes.waits = true;
        hmq_engine_schedule_wake(e, c);
    }
    hmq_log_drop_head(e, l);
}

/* Of a publish for which its command had no time left: the beginning of the module's ERROR_PIPELINE_LONG. */
#define TOOK_TOO_LONG "TRYAGAIN the command has taken its share of the server's time"

/* Handles the reply to the publishes at the head: an array with one reply each, or one error for all.  False: as above. */
static bool batch_replied(hmq_engine *e, engine_link *l, hmq_resp_item item, size_t at, hmq_slice reply,
                          hmq_engine_event *event) {
    const uint16_t count = hmq_log_head(l)->batch;
    bool is_array = item.type == '*' && item.number == count;
    bool is_unknown = item.type == '-' && is_unpipelined(item.text);
    if (!is_array && item.type != '-') return false;
    l->unpipelined |= is_unknown;
    double copies = 0;
    bool is_refused = false;
    for (uint16_t i = 0; i < count; i++) {
        if (is_unknown)
            take_back(e, l);
        else if ((is_array && !next_item(reply, &at, &item)) || !head_replied(e, l, &item, reply, event))
            return false;
        if (item.type == ':' && item.number > 0) copies += (double)item.number;
        is_refused |= item.type == '-' && hmq_error_begins(item.text, TOOK_TOO_LONG);
    }
    if (is_array) hmq_log_learn_copies(l, copies, is_refused);
    return true;
}

/* False: no command expects this reply. */
static bool replied(hmq_engine *e, engine_link *l, hmq_slice reply, hmq_engine_event *event) {
    const awaited *head = hmq_log_head(l);
    hmq_resp_item item;
    size_t at = 0;
    if (head == NULL || !next_item(reply, &at, &item)) return false;
    if (head->kind >= COMMAND_VISIT) {
        return head->batch > 0 ? hmq_crossing_batch_replied(e, l, reply) : hmq_crossing_replied(e, l, reply);
    }
    if (head->batch > 0) return batch_replied(e, l, item, at, reply, event);
    return head_replied(e, l, &item, reply, event);
}

/* The number of channels of an (UN)SUBSCRIBE. */
static uint64_t channels_of(const uint8_t *data, size_t len) {
    size_t at = 0;
    hmq_resp_item item;
    bool is_command = hmq_resp_next(data, len, &at, &item) && item.type == '*' && item.number > 1;
    return is_command ? (uint64_t)item.number - 1 : 1;
}

bool hmq_engine_command(hmq_engine *e, uint32_t link, hmq_conn conn, uint64_t token, bool replies, const uint8_t *data,
                        size_t len) {
    engine_link *l = hmq_engine_link(e, link);
    uint8_t *room = l == NULL || len > UINT32_MAX ? NULL : hmq_log_room(e, l, len);
    if (room == NULL) return false;
    memcpy(room, data, len);
    const awaited entry = {.conn = conn,
                           .token = replies ? token : channels_of(data, len),
                           .len = (uint32_t)len,
                           .kind = replies ? COMMAND_OWNER : COMMAND_SILENT};
    return hmq_log_add(e, l, &entry);
}

/* Takes complete replies until none is left or one raises an event.  Returns what hmq_engine_replies does. */
static int take(hmq_engine *e, engine_link *l, const uint8_t *data, size_t len, size_t *taken,
                hmq_engine_event *event) {
    *taken = 0;
    for (;;) {
        int64_t size = hmq_resp_measure_more(data + *taken, len - *taken, &l->measured);
        if (size <= 0) return (int)size;
        hmq_slice reply = {data + *taken, (size_t)size};
        *taken += (size_t)size;
        if (reply.data[0] == '>')
            pushed(e, l, reply, event);
        else if (!replied(e, l, reply, event))
            return -1;
        if (event->kind != HMQ_EVENT_NONE) return 1;
    }
}

/* Takes new bytes after those in `incoming`. */
static int take_new(hmq_engine *e, engine_link *l, const uint8_t *data, size_t len, hmq_engine_event *event) {
    size_t taken;
    if (l->incoming.len == 0 && len > 0) {
        int outcome = take(e, l, data, len, &taken, event);
        bool is_kept =
            outcome < 0 || taken == len || hmq_bytes_append(&e->allocator, &l->incoming, data + taken, len - taken);
        return is_kept ? outcome : -1;
    }
    if (len > 0 && !hmq_bytes_append(&e->allocator, &l->incoming, data, len)) return -1;
    if (l->incoming.len == 0) return 0;
    int outcome = take(e, l, hmq_bytes_at(&l->incoming), l->incoming.len, &taken, event);
    hmq_bytes_drop(&l->incoming, taken);
    return outcome;
}

int hmq_engine_replies(hmq_engine *e, uint32_t link, const uint8_t *data, size_t len, int64_t now_ms,
                       hmq_engine_event *event) {
    engine_link *l = hmq_engine_link(e, link);
    *event = (hmq_engine_event){0};
    if (l == NULL) return -1;
    e->now_ms = now_ms;
    if (l->broken) return -1;
    if (e->events.len > 0) { /* the owner handles these before later bytes are taken */
        l->broken = len > 0 && !hmq_bytes_append(&e->allocator, &l->incoming, data, len);
        return l->broken ? -1 : (int)hmq_engine_next_event(e, event);
    }
    int outcome = take_new(e, l, data, len, event);
    if (outcome < 0) l->broken = true;
    /* Events that were raised earlier come first (unless there is no memory to queue this one). */
    if (outcome > 0 && e->events.len > 0 && hmq_engine_raise(e, event)) hmq_engine_next_event(e, event);
    return outcome;
}
