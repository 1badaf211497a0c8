/* delivery.c - delivers one message to one session. */
#include "routing/delivery_parts.h"

#include <string.h>

#include "server/memory.h"
#include "server/push.h"
#include "index/filters.h"
#include "index/sessions.h"
#include "index/subscription.h"
#include "queue/expiry.h"
#include "routing/push_budget.h"
#include "routing/qos0.h"

#define LARGE_BYTES 65536U
#define RECORD_ON_STACK 1024 /* longer ones take the heap */

void message_begin(message *m, const hmq_record *record, long long now_ms) {
    m->record = *record;
    memset(m->encoded, 0, sizeof m->encoded);
    m->special = m->special_mark = NULL;
    long long default_ms = now_ms + settings.session_ttl_s * 1000;
    bool own = record->expires_ms > 0 && record->expires_ms < default_ms;
    m->expire_ms = own ? record->expires_ms + QUEUE_EXPIRY_GRACE_MS : default_ms;
}

static void forget_special(message *m) {
    if (m->special != NULL) sv.FreeString(NULL, m->special);
    if (m->special_mark != NULL) sv.FreeString(NULL, m->special_mark);
    m->special = m->special_mark = NULL;
}

void message_end(message *m) {
    forget_special(m);
    for (int qos = 0; qos < 3; qos++) {
        for (int retain = 0; retain < 2; retain++) {
            if (m->encoded[qos][retain] != NULL) sv.FreeString(NULL, m->encoded[qos][retain]);
        }
    }
}

static server_string *encode(const hmq_record *record) {
    uint8_t small[RECORD_ON_STACK];
    size_t size = hmq_record_size(record);
    uint8_t *bytes = scratch_alloc(small, sizeof small, size);
    hmq_record_encode(record, bytes, size);
    server_string *text = sv.CreateString(NULL, (const char *)bytes, size);
    scratch_free(bytes, small);
    return text;
}

/* The identifiers as properties, then the share: these distinguish the delivery from the plain ones. */
static server_string *mark_of(const delivery_how *how, size_t *property_bytes) {
    size_t capacity = how->identifier_count * SUBSCRIPTION_MOST_IDENTIFIER_BYTES + how->share.len, len = 0;
    uint8_t *bytes = sv.Alloc(capacity + 1);
    for (size_t i = 0; i < how->identifier_count; i++)
        len += subscription_write_property(how->identifiers[i], bytes + len);
    *property_bytes = len;
    if (how->share.len > 0) memcpy(bytes + len, how->share.data, how->share.len);
    server_string *mark = sv.CreateString(NULL, (const char *)bytes, len + how->share.len);
    sv.Free(bytes);
    return mark;
}

static server_string *encoded_special(message *m, const delivery_how *how) {
    size_t property_bytes;
    server_string *mark = mark_of(how, &property_bytes);
    if (m->special != NULL && m->special_qos == how->qos && m->special_retain == how->retain &&
        hmq_slice_equal(slice_of(m->special_mark), slice_of(mark))) {
        sv.FreeString(NULL, mark);
        return m->special;
    }
    hmq_record record = m->record;
    size_t len = property_bytes + record.properties.len;
    uint8_t *properties = sv.Alloc(len + 1);
    memcpy(properties, slice_of(mark).data, property_bytes);
    if (record.properties.len > 0) memcpy(properties + property_bytes, record.properties.data, record.properties.len);
    record.qos = how->qos;
    record.retain = how->retain;
    record.properties = (hmq_slice){properties, len};
    record.share = how->share;
    forget_special(m);
    m->special = encode(&record);
    m->special_mark = mark;
    m->special_qos = how->qos;
    m->special_retain = how->retain;
    sv.Free(properties);
    return m->special;
}

server_string *delivery_encoded(message *m, const delivery_how *how) {
    if (how->identifier_count > 0 || how->share.len > 0) return encoded_special(m, how);
    server_string **known = &m->encoded[how->qos][how->retain];
    if (*known != NULL) return *known;
    hmq_record record = m->record;
    record.qos = how->qos;
    record.retain = how->retain;
    return *known = encode(&record);
}

/* The header without the record.  It says that the entry follows itself, which no listener's position matches: so the
 * listener fetches the queue. */
static server_string *header_of(const hmq_delivery *delivery) {
    hmq_delivery alone = *delivery;
    uint8_t bytes[HMQ_DELIVERY_HEADER_BYTES];
    alone.previous = alone.serial;
    return sv.CreateString(NULL, (const char *)bytes, hmq_delivery_encode_header(&alone, bytes, sizeof bytes));
}

static server_string *whole_of(const hmq_delivery *delivery, hmq_slice record) {
    uint8_t small[RECORD_ON_STACK];
    size_t total = HMQ_DELIVERY_HEADER_BYTES + record.len;
    uint8_t *bytes = scratch_alloc(small, sizeof small, total);
    hmq_delivery_encode_header(delivery, bytes, HMQ_DELIVERY_HEADER_BYTES);
    memcpy(bytes + HMQ_DELIVERY_HEADER_BYTES, record.data, record.len);
    server_string *text = sv.CreateString(NULL, (const char *)bytes, total);
    scratch_free(bytes, small);
    return text;
}

static bool is_connected(server_ctx *ctx, const indexed_session *session) {
    const session_entry *entry = session_index_find(index_of(ctx)->opened, slice_of(session->key));
    return entry != NULL && entry->connected;
}

/* On a cluster's bus a push would cost each node something.  It takes that way only if the owner of the session does not listen
 * here: its slot has come from another node, and the bridge has not followed yet. */
static int push_to_inbox(server_ctx *ctx, const indexed_session *session, server_string *text) {
    int heard = push_to_node(ctx, session->inbox, text);
    if (heard == 0 && can.cluster && is_connected(ctx, session)) sv.PublishMessage(ctx, session->inbox, text);
    return heard;
}

bool delivery_push(server_ctx *ctx, const indexed_session *session, const server_string *value,
                   const hmq_delivery *delivery) {
    hmq_slice record = slice_of(value);
    bool is_whole = delivery->kind != HMQ_DELIVERY_QUEUED || push_budget_allows(ctx, session, record.len);
    server_string *text = is_whole ? whole_of(delivery, record) : header_of(delivery);
    int heard = push_to_inbox(ctx, session, text);
    sv.FreeString(NULL, text);
    if (heard > 0) counters.topic_pushed++;
    if (heard > 0 && !is_whole) counters.pushed_headers++;
    return heard > 0;
}

hmq_delivery delivery_of(const queue_item *item, uint8_t qos, bool retain) {
    return (hmq_delivery){.kind = HMQ_DELIVERY_QUEUED,
                          .qos = qos,
                          .retain = retain,
                          .packet_id = item->packet_id,
                          .serial = item->serial,
                          .previous = item->previous};
}

bool delivery_count(const queue_item *item) {
    bool stored = item->packet_id != 0;
    counters.topic_stored += stored;
    counters.topic_refused += !stored;
    return stored;
}

bool delivery_store(server_ctx *ctx, const indexed_session *session, queue_item *item, bool may_go_elsewhere) {
    queue q;
    queue_result result;
    queue_status status = QUEUE_BAD_SESSION;
    item->packet_id = 0;
    if (queue_open(&q, ctx, slice_of(session->key), SERVER_READ | SERVER_WRITE))
        status = queue_add(&q, item, 1, (size_t)settings.session_limit, &result);
    if (!may_go_elsewhere && (status == QUEUE_REFUSED || status == QUEUE_WAITS)) queue_dropped(&q);
    queue_close(&q);
    return delivery_count(item);
}

bool delivery_is_stored(server_ctx *ctx, const indexed_session *session, const message *m, const delivery_how *how,
                        bool *nobody) {
    *nobody = how->qos > 0 && hmq_record_has_zero_ttl(&m->record) && !is_connected(ctx, session);
    return how->qos > 0 && !*nobody;
}

static bool queue_qos0(server_ctx *ctx, const indexed_session *session, server_string *value, bool retain,
                       long long expire_ms) {
    queue_item item = {.value = value, .expire_ms = expire_ms};
    if (!qos0_store(ctx, slice_of(session->key), &item)) return false;
    hmq_delivery delivery = delivery_of(&item, 0, retain);
    delivery_push(ctx, session, value, &delivery);
    return true;
}

bool delivery_qos0(server_ctx *ctx, const indexed_session *session, server_string *value, bool retain,
                   long long expire_ms) {
    hmq_delivery delivery = {.kind = HMQ_DELIVERY_TRANSIENT, .retain = retain};
    if (!qos0_must_wait(ctx, session, slice_of(value).len)) return delivery_push(ctx, session, value, &delivery);
    return queue_qos0(ctx, session, value, retain, expire_ms);
}

/* A large message of a publish in steps is not pushed: each step leaves room on the link, but the sockets of clients that do
 * not read may have none.  The bridge fetches it from the queue at the client's pace. */
static bool waits_for_its_client(server_ctx *ctx, const indexed_session *session, const delivery_how *how,
                                 const server_string *value) {
    return how->in_steps && slice_of(value).len >= LARGE_BYTES && is_connected(ctx, session);
}

bool deliver(server_ctx *ctx, const indexed_session *session, message *m, const delivery_how *how) {
    bool nobody, stored = delivery_is_stored(ctx, session, m, how, &nobody);
    if (nobody) return false;
    queue_item item = {.value = delivery_encoded(m, how), .expire_ms = m->expire_ms};
    if (!stored && waits_for_its_client(ctx, session, how, item.value))
        return queue_qos0(ctx, session, item.value, how->retain, item.expire_ms);
    if (!stored) return delivery_qos0(ctx, session, item.value, how->retain, item.expire_ms);
    if (!delivery_store(ctx, session, &item, how->share.len > 0)) return false;
    hmq_delivery delivery = delivery_of(&item, how->qos, how->retain);
    if (!how->quietly) delivery_push(ctx, session, item.value, &delivery);
    return true;
}
