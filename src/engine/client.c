/* client.c - turns packets of clients into commands for the server.
 *
 * Decoded packets point into the caller's bytes, or into the rest of earlier ones.  Commands are written directly into the
 * log: nothing is copied in between. */
#include "engine/internal.h"
#include "engine/crossing.h"

#define BATCH 64U
#define TURN_PACKETS 512U /* packets of a client that one call takes; a multiple of BATCH */
#define FOR_OWNER 1 /* outcomes of a packet */
#define DENIED 2
#define ARGUMENT_BYTES ((size_t)32) /* of one short argument on the wire, with its header */

const char *hmq_engine_error_text(int error) {
    switch (error) {
    case HMQ_ENGINE_NOT_CONNECTED: return "a packet came before the CONNECT; expected CONNECT first [MQTT-3.1.0-1]";
    case HMQ_ENGINE_SECOND_CONNECT: return "a second CONNECT; expected one per connection [MQTT-3.1.0-2]";
    case HMQ_ENGINE_UNEXPECTED: return "a packet that only a server sends; expected one of a client";
    case HMQ_ENGINE_RECEIVE_MAXIMUM:
        return "too many unacknowledged publishes; expected at most the receive maximum [MQTT-3.3.4-7]";
    case HMQ_ENGINE_TOPIC_ALIAS:
        return "a topic alias is too high; expected at most the topic alias maximum [MQTT-3.3.2-9]";
    case HMQ_ENGINE_UNKNOWN_ALIAS:
        return "a topic alias has no topic; expected a topic with its first use (section 3.3.4)";
    case HMQ_ENGINE_NO_MEMORY: return "out of memory";
    case HMQ_ENGINE_SUBSCRIPTION_ID:
        return "a client's PUBLISH has a subscription identifier; expected none [MQTT-3.3.4-6]";
    case HMQ_ENGINE_WRONG_ANSWER:
        return "an acknowledgement of the wrong type; expected that of the message's QoS (section 4.3)";
    case HMQ_ENGINE_CONNECTS_HELD: return "too many bytes of incomplete CONNECTs are held; try again";
    default: return hmq_mqtt_error_text((hmq_mqtt_error)error);
    }
}

static uint8_t reason_of(int error) {
    switch (error) {
    case HMQ_ENGINE_RECEIVE_MAXIMUM: return REASON_RECEIVE_MAXIMUM;
    case HMQ_ENGINE_TOPIC_ALIAS: return REASON_TOPIC_ALIAS;
    case HMQ_ENGINE_NO_MEMORY: return 0x97; /* quota exceeded */
    case HMQ_ENGINE_CONNECTS_HELD: return REASON_BUSY;
    case HMQ_ENGINE_NOT_CONNECTED:
    case HMQ_ENGINE_SECOND_CONNECT:
    case HMQ_ENGINE_UNEXPECTED:
    case HMQ_ENGINE_SUBSCRIPTION_ID:
    case HMQ_ENGINE_UNKNOWN_ALIAS:
    case HMQ_ENGINE_WRONG_ANSWER: return REASON_PROTOCOL;
    default: break;
    }
    /* The cases above are those of engine/engine.h.  NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange) */
    return hmq_mqtt_error_reason((hmq_mqtt_error)error);
}

/* ---- answers ---- */

/* ---- topic aliases ---- */

static void free_aliases(hmq_engine *e, alias **aliases, size_t count) {
    for (size_t i = 0; *aliases != NULL && i < count; i++) {
        if ((*aliases)[i].topic != NULL) e->allocator.release((*aliases)[i].topic);
    }
    if (*aliases != NULL) e->allocator.release(*aliases);
    *aliases = NULL;
}

void hmq_client_forget(hmq_engine *e, connection *c) {
    free_aliases(e, &c->aliases_in, c->alias_maximum_in);
    free_aliases(e, &c->aliases_out, c->aliases_out_count);
    hmq_rules_free(e, &c->publish_rules);
    hmq_rules_free(e, &c->receive_rules);
}

/* Stores a topic alias; or, if *topic is empty, looks it up and sets *topic. */
static int resolve_alias(hmq_engine *e, connection *c, uint16_t number, hmq_slice *topic) {
    if (number > c->alias_maximum_in) return HMQ_ENGINE_TOPIC_ALIAS;
    if (c->aliases_in == NULL) {
        size_t size = c->alias_maximum_in * sizeof(alias);
        c->aliases_in = e->allocator.alloc(size);
        if (c->aliases_in == NULL) return HMQ_ENGINE_NO_MEMORY;
        memset(c->aliases_in, 0, size);
    }
    alias *a = &c->aliases_in[number - 1];
    if (topic->len == 0) {
        if (a->topic == NULL) return HMQ_ENGINE_UNKNOWN_ALIAS;
        *topic = (hmq_slice){a->topic, a->len};
        return 0;
    }
    if (a->topic != NULL && a->len == topic->len && memcmp(a->topic, topic->data, topic->len) == 0) return 0;
    uint8_t *copy = e->allocator.alloc(topic->len);
    if (copy == NULL) return HMQ_ENGINE_NO_MEMORY;
    memcpy(copy, topic->data, topic->len);
    if (a->topic != NULL) e->allocator.release(a->topic);
    *a = (alias){0, copy, (uint16_t)topic->len};
    return 0;
}

/* ---- publishing ---- */

/* Takes a token of the publish rate; the client is not read while it owes any. */
static void spend(hmq_engine *e, connection *c) {
    if (c->publishing.rate != 0 && !hmq_bucket_spend(&c->publishing, e->now_ms)) hmq_engine_schedule_wake(e, c);
}

#define COMPLETE_BYTES (8 * ARGUMENT_BYTES) /* without the key */

/* SESSION.COMPLETE key EPOCH e id */
static uint8_t *put_complete(uint8_t *out, const connection *c, uint16_t packet_id) {
    hmq_slice key = hmq_conn_key(c);
    out = hmq_resp_put_header(out, '*', 5);
    out = hmq_resp_put_text(out, "SESSION.COMPLETE", 16);
    out = hmq_resp_put_text(out, key.data, key.len);
    out = hmq_resp_put_text(out, "EPOCH", 5);
    out = hmq_resp_put_number(out, c->epoch);
    return hmq_resp_put_number(out, packet_id);
}

/* Keeps the place of a denied publish in the order of the answers.
 *
 * A publish of QoS 2 may have been taken earlier, when it was allowed.  SESSION.COMPLETE frees its identifier: after a
 * PUBREC that refuses, the client may use the identifier for a new message [MQTT-4.3.3-9]. */
static int hold_place(hmq_engine *e, connection *c, const hmq_mqtt_packet *p) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n";
    e->count.publishes_denied++;
    if (p->qos == 0) return 0;
    if (e->settings.cluster != 0) { /* no identifier of it was noted */
        const awaited place = {.conn = c->handle, .packet_id = p->packet_id, .kind = COMMAND_DENIED, .qos = p->qos};
        return hmq_crossing_add(e, c, &place, NULL, p) ? 0 : HMQ_ENGINE_NO_MEMORY;
    }
    uint8_t *begin = hmq_log_room(e, c->link, COMPLETE_BYTES + hmq_conn_key(c).len), *end = begin;
    if (begin == NULL) return HMQ_ENGINE_NO_MEMORY;
    if (p->qos == 2) {
        end = put_complete(begin, c, p->packet_id);
    } else {
        memcpy(begin, ping, sizeof ping - 1);
        end += sizeof ping - 1;
    }
    const awaited entry = {.conn = c->handle,
                           .len = (uint32_t)(end - begin),
                           .packet_id = p->packet_id,
                           .kind = COMMAND_DENIED,
                           .qos = p->qos};
    return hmq_log_add_client(e, c, &entry) ? 0 : HMQ_ENGINE_NO_MEMORY;
}

/* Time to live of a publish, in seconds; -1: it does not expire. */
static int64_t time_to_live(const hmq_engine_settings *settings, const hmq_mqtt_publish_properties *properties) {
    bool expires = properties->has_message_expiry || settings->message_expiry_s > 0;
    uint32_t asked = properties->has_message_expiry ? properties->message_expiry_s : settings->message_expiry_s;
    uint32_t most = settings->max_message_expiry_s;
    if (most > 0 && (!expires || asked > most)) return most;
    return expires ? (int64_t)asked : -1;
}

/* TOPIC.PUBLISH topic payload [QOS q] [RETAIN] [TTL s] FROM client [EPOCH e [PACKET id]] [PROPERTIES bytes]
 *
 * A publish that crosses nodes has no PACKET: the nodes of its slots do not know its session.
 *
 * The epoch: publishes that were still unread when the connection was taken over must not follow those that the client
 * has since sent elsewhere.  (A publish of QoS 0 has no epoch, unless it is retained.) */
static uint8_t *put_publish(uint8_t *out, const connection *c, const hmq_mqtt_packet *p, int64_t ttl_s,
                            const hmq_mqtt_publish_properties *properties, bool crosses) {
    hmq_slice id = hmq_conn_client_id(c);
    bool expires = ttl_s >= 0, exact = p->qos == 2 && !crosses, more = properties->passed_len > 0;
    bool fenced = p->qos > 0 || p->retain;
    out = hmq_resp_put_header(out, '*',
                              5U + (p->qos ? 2U : 0) + p->retain + (expires ? 2U : 0) + (fenced ? 2U : 0) +
                                  (exact ? 2U : 0) + (more ? 2U : 0));
    out = hmq_resp_put_text(out, "TOPIC.PUBLISH", 13);
    out = hmq_resp_put_text(out, p->topic.data, p->topic.len);
    out = hmq_resp_put_text(out, p->payload.data, p->payload.len);
    if (p->qos) {
        out = hmq_resp_put_text(out, "QOS", 3);
        out = hmq_resp_put_number(out, p->qos);
    }
    if (p->retain) out = hmq_resp_put_text(out, "RETAIN", 6);
    if (expires) {
        out = hmq_resp_put_text(out, "TTL", 3);
        out = hmq_resp_put_number(out, (uint64_t)ttl_s);
    }
    out = hmq_resp_put_text(out, "FROM", 4);
    out = hmq_resp_put_text(out, id.data, id.len);
    if (fenced) {
        out = hmq_resp_put_text(out, "EPOCH", 5);
        out = hmq_resp_put_number(out, c->epoch);
    }
    if (exact) {
        out = hmq_resp_put_text(out, "PACKET", 6);
        out = hmq_resp_put_number(out, p->packet_id);
    }
    if (more) {
        out = hmq_resp_put_text(out, "PROPERTIES", 10);
        out = hmq_resp_put_header(out, '$', properties->passed_len);
        if (properties->contiguous)
            memcpy(out, properties->passed.data, properties->passed_len);
        else
            hmq_mqtt_copy_passed(p->properties, out, properties->passed_len);
        out += properties->passed_len;
        *out++ = '\r';
        *out++ = '\n';
    }
    return out;
}

static int send_publish(hmq_engine *e, connection *c, const hmq_mqtt_packet *p,
                        hmq_mqtt_publish_properties *properties) {
    const uint64_t trace = e->traces == NULL ? 0 : hmq_trace_publish(e, c, p, properties);
    size_t most = 16 * ARGUMENT_BYTES + p->topic.len + p->payload.len + c->id_len + properties->passed_len;
    uint8_t *begin = hmq_log_room(e, c->link, most);
    if (begin == NULL) return HMQ_ENGINE_NO_MEMORY;
    const bool crosses = e->settings.cluster != 0;
    const uint8_t *end = put_publish(begin, c, p, time_to_live(&e->settings, properties), properties, crosses);
    const awaited entry = {.conn = c->handle,
                           .token = trace,
                           .len = (uint32_t)(end - begin),
                           .packet_id = p->packet_id,
                           .kind = COMMAND_PUBLISH,
                           .qos = p->qos};
    if (p->qos > 0) hmq_latency_begin(e, c, p->packet_id);
    if (crosses) return hmq_crossing_add(e, c, &entry, begin, p) ? 0 : HMQ_ENGINE_NO_MEMORY;
    return hmq_log_add_client(e, c, &entry) ? 0 : HMQ_ENGINE_NO_MEMORY;
}

/* Raises an event for the first one. */
static int deny(hmq_engine *e, connection *c, const hmq_mqtt_packet *p) {
    int error = hold_place(e, c, p);
    if (error != 0 || c->denial_is_reported) return error;
    c->denial_is_reported = true;
    return DENIED;
}

/* Replaces an alias by its topic. */
static int on_publish(hmq_engine *e, connection *c, hmq_mqtt_packet *p) {
    hmq_mqtt_publish_properties properties = {0};
    e->count.publishes_received[p->qos]++;
    c->traffic.received++;
    c->traffic.bytes_received += p->payload.len;
    if (c->version == 5 && p->properties.len > 0) {
        int error = hmq_mqtt_split_publish_properties(p->properties, &properties);
        if (error != HMQ_MQTT_OK) return error;
        if (properties.subscription_ids > 0) return HMQ_ENGINE_SUBSCRIPTION_ID;
        if (properties.topic_alias != 0) error = resolve_alias(e, c, properties.topic_alias, &p->topic);
        if (error != 0) return error;
    }
    if (p->topic.len == 0) return HMQ_ENGINE_UNKNOWN_ALIAS;
    if (p->qos > 0 && c->version == 5 && c->receive_maximum > 0 && ++c->quota_used > c->receive_maximum)
        return HMQ_ENGINE_RECEIVE_MAXIMUM;
    spend(e, c);
    if (!hmq_rules_allow(&c->publish_rules, p->topic)) return deny(e, c, p);
    return send_publish(e, c, p, &properties);
}

static int on_pubrel(hmq_engine *e, connection *c, uint16_t packet_id) {
    uint8_t *begin = hmq_log_room(e, c->link, COMPLETE_BYTES + hmq_conn_key(c).len);
    if (begin == NULL) return HMQ_ENGINE_NO_MEMORY;
    const uint8_t *end = put_complete(begin, c, packet_id);
    const awaited entry = {
        .conn = c->handle, .len = (uint32_t)(end - begin), .packet_id = packet_id, .kind = COMMAND_COMPLETE, .qos = 2};
    return hmq_log_add_client(e, c, &entry) ? 0 : HMQ_ENGINE_NO_MEMORY;
}

/* ---- one packet ---- */

/* 0: handled; FOR_OWNER; DENIED: handled, and an event is due; < 0: an error. */
static int on_packet(hmq_engine *e, connection *c, hmq_mqtt_packet *p) {
    static const uint8_t pong[] = {HMQ_MQTT_PINGRESP << 4, 0};
    if (c->phase == PHASE_NEW) return p->type == HMQ_MQTT_CONNECT ? FOR_OWNER : HMQ_ENGINE_NOT_CONNECTED;
    switch (p->type) {
    case HMQ_MQTT_PUBLISH: return on_publish(e, c, p);
    case HMQ_MQTT_PUBACK: return hmq_outgoing_acknowledged(e, c, p->packet_id);
    case HMQ_MQTT_PUBREC: return hmq_outgoing_received(e, c, p->packet_id, p->code);
    case HMQ_MQTT_PUBREL: return on_pubrel(e, c, p->packet_id);
    case HMQ_MQTT_PUBCOMP: return hmq_outgoing_completed(e, c, p->packet_id);
    case HMQ_MQTT_PINGREQ: return hmq_engine_send(e, c->handle, pong, sizeof pong) ? 0 : HMQ_ENGINE_NO_MEMORY;
    case HMQ_MQTT_CONNECT: return HMQ_ENGINE_SECOND_CONNECT;
    case HMQ_MQTT_SUBSCRIBE:
    case HMQ_MQTT_UNSUBSCRIBE:
    case HMQ_MQTT_DISCONNECT:
    case HMQ_MQTT_AUTH: return FOR_OWNER;
    default: return HMQ_ENGINE_UNEXPECTED;
    }
}

static bool is_over_limit(int error) {
    return error == HMQ_MQTT_TOO_LARGE || error == HMQ_MQTT_CONNECT_TOO_LARGE || error == HMQ_MQTT_TOO_MANY_FILTERS ||
           error == HMQ_MQTT_TOO_MANY_USER_PROPERTIES || error == HMQ_ENGINE_CONNECTS_HELD;
}

static bool fault(hmq_engine *e, connection *c, int error, hmq_slice bytes, hmq_engine_event *event) {
    if (is_over_limit(error))
        e->count.packets_over_limits++;
    else if (error > HMQ_ENGINE_NOT_CONNECTED)
        e->count.packets_malformed++;
    else if (error != HMQ_ENGINE_NO_MEMORY)
        e->count.protocol_errors++;
    c->phase = PHASE_ENDED;
    hmq_bytes_clear(&c->unread);
    *event = (hmq_engine_event){
        .kind = HMQ_EVENT_ERROR, .conn = c->handle, .error = error, .code = reason_of(error), .bytes = bytes};
    return true;
}

static bool hand_over(connection *c, const hmq_mqtt_packet *p, hmq_slice packet, hmq_engine_event *event) {
    c->paused = true;
    if (c->phase == PHASE_NEW) c->phase = PHASE_HELD;
    bool in_use = p->packet_id != 0 && (hmq_log_uses(c, p->packet_id) || hmq_crossing_uses(c, p->packet_id));
    *event = (hmq_engine_event){
        .kind = HMQ_EVENT_PACKET, .conn = c->handle, .code = in_use ? REASON_IN_USE : 0, .bytes = packet};
    return true;
}

static bool report_denial(connection *c, hmq_slice topic, hmq_engine_event *event) {
    c->paused = true;
    *event = (hmq_engine_event){.kind = HMQ_EVENT_DENIED, .conn = c->handle, .bytes = topic};
    return true;
}

/* ---- bytes ---- */

static hmq_mqtt_limits limits_of(const hmq_engine_settings *settings) {
    return (hmq_mqtt_limits){.max_packet_bytes = settings->max_packet_bytes,
                             .max_connect_bytes = settings->max_connect_bytes,
                             .max_filters = settings->max_filters,
                             .max_user_properties = settings->max_user_properties,
                             .max_user_property_bytes = settings->max_user_property_bytes};
}

/* Takes packets until no complete one is left, TURN_PACKETS were taken, one is for the owner, or one is invalid.
 * *taken: bytes that were consumed.  True: *event is set. */
static bool take(hmq_engine *e, connection *c, const uint8_t *data, size_t len, size_t *taken,
                 hmq_engine_event *event) {
    hmq_mqtt_packet packets[BATCH];
    const hmq_mqtt_limits limits = limits_of(&e->settings);
    *taken = 0;
    c->has_more = false;
    for (size_t most = TURN_PACKETS; most > 0; most -= BATCH) {
        size_t consumed, count;
        hmq_mqtt_error bad;
        /* Version 0: before CONNECT, any protocol level.  Only one packet then: later ones wait for it. */
        count = hmq_mqtt_decode_within(data + *taken, len - *taken, c->version, &limits, packets,
                                       c->phase == PHASE_NEW ? 1 : BATCH, &consumed, &bad);
        e->count.packets_received += count;
        e->completed_packet |= count > 0;
        for (size_t i = 0; i < count; i++) {
            hmq_slice bytes = {data + *taken, packets[i].bytes};
            int outcome = on_packet(e, c, &packets[i]);
            *taken += packets[i].bytes;
            if (outcome == 0 && c->phase != PHASE_ENDED) continue;
            e->count.packets_received -= count - i - 1; /* the others are decoded again later, or never */
            if (outcome < 0) return fault(e, c, outcome, bytes, event);
            if (outcome == DENIED) return report_denial(c, packets[i].topic, event);
            return outcome == FOR_OWNER && hand_over(c, &packets[i], bytes, event);
        }
        if (bad != HMQ_MQTT_OK) return fault(e, c, bad, (hmq_slice){data + *taken, len - *taken}, event);
        if (count < BATCH) return false;
    }
    c->has_more = *taken < len;
    return false;
}

static bool no_memory(hmq_engine *e, connection *c, hmq_engine_event *event) {
    return fault(e, c, HMQ_ENGINE_NO_MEMORY, (hmq_slice){NULL, 0}, event);
}

/* Takes packets from `unread`, unless the owner handles an earlier one. */
static bool take_unread(hmq_engine *e, connection *c, hmq_engine_event *event) {
    size_t taken;
    if (c->paused || c->phase == PHASE_ENDED) return false;
    if (c->unread.len == 0) {
        hmq_bytes_free(&e->allocator, &c->unread);
        return false;
    }
    bool raised = take(e, c, hmq_bytes_at(&c->unread), c->unread.len, &taken, event);
    if (c->phase != PHASE_ENDED) hmq_bytes_drop(&c->unread, taken);
    if (!raised && c->unread.len == 0) hmq_bytes_free(&e->allocator, &c->unread);
    return raised;
}

#define CONNECT_ALWAYS_HELD 1024 /* bytes: clients that exhaust the shared bound must not keep small CONNECTs out */

/* Are too many bytes held for clients whose CONNECT is incomplete? */
static bool holds_too_much(hmq_engine *e, connection *c) {
    size_t held = c->phase == PHASE_NEW ? c->unread.capacity : 0;
    e->connects_held = e->connects_held - c->connect_held + held;
    c->connect_held = held;
    return e->settings.max_unread_connects > 0 && held > CONNECT_ALWAYS_HELD &&
           e->connects_held > e->settings.max_unread_connects;
}

static bool receive(hmq_engine *e, connection *c, const uint8_t *data, size_t len, hmq_engine_event *event) {
    if (c->paused || c->unread.len > 0) {
        if (len > 0 && !hmq_bytes_append(&e->allocator, &c->unread, data, len)) return no_memory(e, c, event);
        return take_unread(e, c, event);
    }
    size_t taken;
    bool raised = take(e, c, data, len, &taken, event);
    if (c->phase != PHASE_ENDED && taken < len &&
        !hmq_bytes_append(&e->allocator, &c->unread, data + taken, len - taken))
        return no_memory(e, c, event);
    return raised;
}

bool hmq_engine_receive(hmq_engine *e, hmq_conn conn, const uint8_t *data, size_t len, int64_t now_ms,
                        hmq_engine_event *event) {
    connection *c = hmq_engine_find(e, conn);
    *event = (hmq_engine_event){0};
    if (c == NULL || c->phase == PHASE_ENDED) return false;
    e->now_ms = now_ms;
    e->count.bytes_received += len;
    e->completed_packet = c->paused;
    bool raised = receive(e, c, data, len, event);
    if (c->phase == PHASE_OPEN || !holds_too_much(e, c)) return raised;
    hmq_slice begun = {hmq_bytes_at(&c->unread), c->unread.len};
    return fault(e, c, HMQ_ENGINE_CONNECTS_HELD, begun, event);
}

bool hmq_engine_has_more(const hmq_engine *e, hmq_conn conn) {
    const connection *c = hmq_engine_find(e, conn);
    return c != NULL && c->has_more && !c->paused && c->phase != PHASE_ENDED;
}

size_t hmq_engine_unread(const hmq_engine *e, hmq_conn conn) {
    const connection *c = hmq_engine_find(e, conn);
    return c == NULL ? 0 : c->unread.len;
}

bool hmq_engine_completed_packet(const hmq_engine *e) {
    return e->completed_packet;
}

bool hmq_engine_continue(hmq_engine *e, hmq_conn conn, int64_t now_ms, hmq_engine_event *event) {
    connection *c = hmq_engine_find(e, conn);
    *event = (hmq_engine_event){0};
    if (c == NULL || c->phase == PHASE_HELD) return false;
    e->now_ms = now_ms;
    c->paused = false;
    bool raised = take_unread(e, c, event);
    hmq_engine_resume_reading(e, c);
    return raised;
}
