/* qos0.c - messages of QoS 0 that are pending in the queue of their session. */
#include "routing/qos0.h"

#include "topic/session_key.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "index/filters.h"
#include "index/overflow.h"
#include "index/session_hash.h"
#include "index/sessions.h"
#include "queue/allowance.h"
#include "queue/bytes.h"
#include "routing/push_budget.h"

#define AHEAD 255 /* serials that qos0_until runs ahead */

static const char field[] = "qos0_until";

static void begin(server_ctx *ctx, session_index *sessions, session_entry *entry, uint64_t serial) {
    uint64_t until = serial + AHEAD <= QUEUE_MAX_SERIAL ? serial + AHEAD : QUEUE_MAX_SERIAL;
    session_fact_write(ctx, slice_of(entry->key), field, until, SERVER_NO_EXPIRE);
    session_index_set_qos0(sessions, entry, until);
}

static void end(server_ctx *ctx, session_index *sessions, session_entry *entry) {
    server_string *name = session_key_name(slice_of(entry->key), HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    session_index_set_qos0(sessions, entry, 0);
    if (sv.KeyType(key) == SERVER_HASH) {
        sv.HashSet(key, SERVER_HASH_CFIELDS, field, SERVER_HASH_DELETE, NULL);
        replicate(ctx, "HDEL", "sc", name, field);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
    }
    sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

static bool is_over(const queue *q, const session_entry *entry) {
    return queue_length(q) == 0 || queue_first_serial(q) > entry->qos0_until;
}

/* Is one still pending?  If not, updates the session's hash. */
static bool has_pending(server_ctx *ctx, session_index *sessions, session_entry *entry) {
    queue q;
    bool over = queue_open(&q, ctx, slice_of(entry->key), SERVER_READ) && is_over(&q, entry);
    queue_close(&q);
    if (over) end(ctx, sessions, entry);
    return !over;
}

bool qos0_must_wait(server_ctx *ctx, const indexed_session *session, size_t bytes) {
    session_index *sessions = index_of(ctx)->opened;
    session_entry *entry = session_index_with_qos0(sessions, slice_of(session->key));
    if (entry != NULL && has_pending(ctx, sessions, entry)) return true;
    return !push_budget_allows(ctx, session, bytes);
}

void qos0_note(server_ctx *ctx, hmq_slice session, uint64_t serial) {
    session_index *sessions = index_of(ctx)->opened;
    session_entry *entry = session_index_find(sessions, session);
    if (entry != NULL && serial > entry->qos0_until) begin(ctx, sessions, entry, serial);
}

/* Is there room without dropping another message? */
static bool has_room(queue *q, const queue_item *item) {
    session_facts facts = session_facts_read(q->ctx, q->session);
    size_t bound = overflow_bytes_of(&facts), len = slice_of(item->value).len;
    queue_allowance shared = queue_usage_allowance(q);
    if (shared.counts && shared.most < bound) bound = shared.most;
    size_t bytes = shared.counts ? shared.has : queue_bytes_before(q, 1, len, bound);
    return queue_length(q) < (size_t)settings.session_limit && bytes <= bound && len <= bound - bytes;
}

bool qos0_store(server_ctx *ctx, hmq_slice session, queue_item *item) {
    queue q;
    queue_result result;
    const session_entry *entry = session_index_find(index_of(ctx)->opened, session);
    size_t limit = (size_t)settings.session_limit;
    bool is_stored = false;
    if (entry != NULL && entry->connected) {
        if (queue_open(&q, ctx, session, SERVER_READ | SERVER_WRITE) && has_room(&q, item))
            is_stored = queue_add(&q, item, 1, limit, &result) == QUEUE_OK && item->packet_id != 0;
        queue_close(&q);
    }
    if (is_stored) qos0_note(ctx, session, item->serial);
    counters.qos0_queued += is_stored;
    counters.qos0_dropped += !is_stored;
    return is_stored;
}

void qos0_removed(queue *q) {
    session_index *sessions = index_of(q->ctx)->opened;
    session_entry *entry = session_index_with_qos0(sessions, q->session);
    if (entry != NULL && is_over(q, entry)) end(q->ctx, sessions, entry);
}
