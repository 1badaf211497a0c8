/* engine_server.c - replies and pushes of the server become packets for clients, or events for the owner.
 *
 * Whole replies are taken one after the other; what is cut off waits in `incoming`.  The reply belongs to the oldest
 * command without one; a push belongs to nobody. */
#include "engine_internal.h"

enum {
    REASON_UNHEARD = 0x10,     /* no matching subscribers */
    REASON_UNSPECIFIED = 0x80, /* what 5.0 is told when the server refuses a publish for good */
    REASON_NOT_AUTHORIZED = 0x87,
    REASON_QUOTA = 0x97
};

static bool begins_with(hmq_slice text, const char *word) {
    size_t len = strlen(word);
    return text.len >= len && memcmp(text.data, word, len) == 0 && (text.len == len || text.data[len] == ' ');
}

/* Is it worth sending the same command again a little later? */
static bool is_passing(hmq_slice error) {
    static const char *const codes[] = {"OOM",        "READONLY",    "LOADING",  "MISCONF", "NOREPLICAS",
                                        "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "BUSY"};
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
        if (begins_with(error, codes[i])) return true;
    }
    return false;
}

static bool is_gone(hmq_slice error) {
    return begins_with(error, "FENCED") || begins_with(error, "NOSESSION");
}

/* ---- publishes ---- */

static void finish(hmq_engine *e, connection *c) {
    c->outstanding--;
    if (c->outstanding == 0) c->retry_pause_ms = 0;
    engine_relieve(e, c);
}

static void quota_back(connection *c) {
    if (c->quota_used > 0) c->quota_used--;
}

static void answer_publish(hmq_engine *e, connection *c, const awaited *entry, uint8_t reason) {
    if (entry->qos == 0) return;
    client_answer(e, c, entry->qos == 1 ? HMQ_MQTT_PUBACK : HMQ_MQTT_PUBREC, entry->packet_id, reason);
    if (entry->qos == 1 || reason >= 0x80) quota_back(c);
}

static void published(hmq_engine *e, connection *c, const awaited *entry, int64_t reached) {
    if (reached < 0) { /* QoS 2, and the server had it already */
        e->count.publishes_repeated++;
        quota_back(c); /* it was counted twice */
    }
    e->count.publishes_unheard += reached == 0;
    e->count.publishes_acknowledged += entry->qos > 0;
    answer_publish(e, c, entry, reached == 0 ? REASON_UNHEARD : 0);
    finish(e, c);
}

/* A refusal that passes: waits, then sends this and what follows again. */
static void stall(hmq_engine *e, connection *c, hmq_slice error) {
    const hmq_engine_settings *s = &e->settings;
    if (!c->stalled) {
        if (c->retry_pause_ms == 0) c->stalled_since_ms = e->now_ms;
        c->retry_pause_ms = c->retry_pause_ms == 0 ? s->retry_first_ms : c->retry_pause_ms * 2;
        if (c->retry_pause_ms > s->retry_most_ms) c->retry_pause_ms = s->retry_most_ms;
        c->retry_at_ms = e->now_ms + c->retry_pause_ms;
        c->stalled = true;
        engine_wants_time(e, c);
        engine_raise(e, &(hmq_engine_event){.kind = HMQ_EVENT_REFUSED, .conn = c->handle, .bytes = error});
    }
}

static void failed(hmq_engine *e, const connection *c, hmq_slice error) {
    engine_raise(e, &(hmq_engine_event){.kind = is_gone(error) ? HMQ_EVENT_TAKEN_OVER : HMQ_EVENT_FAILED,
                                        .conn = c->handle,
                                        .bytes = error});
}

static bool gives_up(const hmq_engine *e, const connection *c) {
    return c->retry_pause_ms != 0 && e->now_ms - c->stalled_since_ms > e->settings.retry_total_ms;
}

static void refused(hmq_engine *e, connection *c, const awaited *entry, hmq_slice error) {
    bool is_five = c->version == 5 && entry->qos > 0 && entry->kind == COMMAND_PUBLISH;
    if (is_passing(error) && !(is_five && begins_with(error, "OOM")) && !gives_up(e, c)) {
        if (entry->kind == COMMAND_PUBLISH && entry->qos == 0) {
            e->count.publishes_dropped_qos0++;
            finish(e, c);
        } else if (log_keep_head(e, c)) {
            stall(e, c, error);
        } else {
            finish(e, c);
            failed(e, c, error);
        }
        return;
    }
    e->count.publishes_refused += entry->kind == COMMAND_PUBLISH;
    if (is_five && !is_gone(error)) {
        uint8_t reason = begins_with(error, "OOM")      ? REASON_QUOTA
                         : begins_with(error, "NOPERM") ? REASON_NOT_AUTHORIZED
                                                        : REASON_UNSPECIFIED;
        answer_publish(e, c, entry, reason);
    } else {
        failed(e, c, error);
    }
    finish(e, c);
}

/* A publish, the place of a denied one, or a completion. */
static void client_replied(hmq_engine *e, connection *c, const awaited *entry, const hmq_resp_item *reply) {
    c->under_way--;
    if (reply->type == '-') {
        refused(e, c, entry, reply->text);
    } else if (c->stalled && entry->qos == 1 && entry->kind == COMMAND_PUBLISH && log_keep_head(e, c)) {
        /* Behind a refused one: the last word on a topic has to stay the last.  It is answered the next time. */
    } else if (entry->kind == COMMAND_PUBLISH) {
        published(e, c, entry, reply->number);
    } else if (entry->kind == COMMAND_DENIED) {
        answer_publish(e, c, entry, c->version == 5 ? REASON_NOT_AUTHORIZED : 0);
        finish(e, c);
    } else {
        client_answer(e, c, HMQ_MQTT_PUBCOMP, entry->packet_id, 0);
        quota_back(c);
        finish(e, c);
    }
}

/* ---- other commands ---- */

static void fetch_done(hmq_engine *e) {
    if (e->fetches > 0) e->fetches--;
    if (e->fetch_limit < e->settings.max_fetches) e->fetch_limit++;
}

/* Acknowledgements, releases and fetches that were refused: for now, or because the session is somebody else's. */
static void queue_refused(hmq_engine *e, connection *c, hmq_slice error) {
    if (is_passing(error) && !gives_up(e, c))
        stall(e, c, error);
    else
        failed(e, c, error);
}

static void queue_replied(hmq_engine *e, connection *c, const awaited *entry, const hmq_resp_item *item,
                          hmq_slice reply) {
    bool done = item->type != '-';
    if (!done) queue_refused(e, c, item->text);
    switch (entry->kind) {
    case COMMAND_ACK: outgoing_ack_answered(e, c, entry->packet_id, done); break;
    case COMMAND_RELEASE: outgoing_release_answered(e, c, entry->packet_id, done); break;
    case COMMAND_FETCH:
        if (done)
            outgoing_fetched(e, c, reply.data, reply.len);
        else
            outgoing_fetch_failed(e, c);
        break;
    default: break; /* SESSION.SENT */
    }
}

/* ---- pushes ---- */

static void delivered(hmq_engine *e, hmq_slice inbox, hmq_slice payload, hmq_engine_event *event) {
    hmq_delivery delivery;
    connection *c = engine_find_inbox(e, inbox);
    if (c == NULL) return; /* between the subscription and the session's opening: the queue has it */
    e->count.deliveries_received++;
    if (hmq_delivery_decode(payload.data, payload.len, &delivery) != 0)
        e->count.messages_unreadable++;
    else if (delivery.kind != HMQ_DELIVERY_TAKEN_OVER)
        outgoing_pushed(e, c, &delivery);
    else if (delivery.serial > c->epoch)
        *event = (hmq_engine_event){.kind = HMQ_EVENT_TAKEN_OVER, .conn = c->handle, .epoch = delivery.serial};
}

static bool is_text(const hmq_resp_item *item) {
    return item->type == '$' && item->number >= 0;
}

static bool ends_like_inbox(hmq_slice channel) {
    return channel.len > 6 && memcmp(channel.data + channel.len - 6, "_inbox", 6) == 0;
}

static void pushed(hmq_engine *e, hmq_slice push, hmq_engine_event *event) {
    size_t at = 0;
    hmq_resp_item head, kind, channel, payload;
    bool is_message = hmq_resp_next(push.data, push.len, &at, &head) && head.number == 3 &&
                      hmq_resp_next(push.data, push.len, &at, &kind) && is_text(&kind) && kind.text.len == 7 &&
                      memcmp(kind.text.data, "message", 7) == 0 && hmq_resp_next(push.data, push.len, &at, &channel) &&
                      is_text(&channel) && hmq_resp_next(push.data, push.len, &at, &payload) && is_text(&payload);
    if (is_message && ends_like_inbox(channel.text))
        delivered(e, channel.text, payload.text, event);
    else
        *event = (hmq_engine_event){.kind = HMQ_EVENT_PUSH, .bytes = push};
}

/* ---- replies ---- */

/* False: nobody asked for it. */
static bool replied(hmq_engine *e, hmq_slice reply, hmq_engine_event *event) {
    const awaited *head = log_head(e);
    if (head == NULL || head->kind == COMMAND_SILENT) return false;
    const awaited entry = *head;
    connection *c = engine_find(e, entry.conn);
    hmq_resp_item item;
    size_t at = 0;
    if (!hmq_resp_next(reply.data, reply.len, &at, &item)) return false;
    if (item.type == '!') item.type = '-';
    e->count.replies_received++;
    if (entry.kind == COMMAND_OWNER)
        *event = (hmq_engine_event){.kind = HMQ_EVENT_REPLY, .conn = entry.conn, .token = entry.token, .bytes = reply};
    else if (c != NULL && entry.kind <= COMMAND_COMPLETE)
        client_replied(e, c, &entry, &item);
    if (entry.kind == COMMAND_FETCH) fetch_done(e);
    if (c != NULL && entry.kind > COMMAND_COMPLETE && entry.kind < COMMAND_OWNER)
        queue_replied(e, c, &entry, &item, reply);
    log_drop_head(e);
    hmq_engine_server_written(e, 0); /* commands without replies that stand at the head now are done with */
    return true;
}

bool hmq_engine_command(hmq_engine *e, hmq_conn conn, uint64_t token, bool replies, const uint8_t *data, size_t len) {
    uint8_t *room = log_room(e, len);
    if (room == NULL || len > UINT32_MAX) return false;
    memcpy(room, data, len);
    const awaited entry = {
        .conn = conn, .token = token, .len = (uint32_t)len, .kind = replies ? COMMAND_OWNER : COMMAND_SILENT};
    return log_add(e, &entry);
}

/* Takes whole replies until there are none or one raises an event.  As hmq_engine_replies. */
static int take(hmq_engine *e, const uint8_t *data, size_t len, size_t *taken, hmq_engine_event *event) {
    *taken = 0;
    for (;;) {
        int64_t size = hmq_resp_measure(data + *taken, len - *taken);
        if (size <= 0) return (int)size;
        hmq_slice reply = {data + *taken, (size_t)size};
        *taken += (size_t)size;
        if (reply.data[0] == '>')
            pushed(e, reply, event);
        else if (!replied(e, reply, event))
            return -1;
        if (event->kind != HMQ_EVENT_NONE) return 1;
    }
}

int hmq_engine_replies(hmq_engine *e, const uint8_t *data, size_t len, int64_t now_ms, hmq_engine_event *event) {
    size_t taken;
    *event = (hmq_engine_event){0};
    e->now_ms = now_ms;
    if (e->incoming.len == 0 && len > 0) {
        int outcome = take(e, data, len, &taken, event);
        if (taken < len && outcome >= 0 && !hmq_bytes_append(&e->allocator, &e->incoming, data + taken, len - taken))
            return -1;
        return outcome;
    }
    if (len > 0 && !hmq_bytes_append(&e->allocator, &e->incoming, data, len)) return -1;
    if (e->incoming.len == 0) return 0;
    int outcome = take(e, hmq_bytes_at(&e->incoming), e->incoming.len, &taken, event);
    hmq_bytes_drop(&e->incoming, taken);
    return outcome;
}
