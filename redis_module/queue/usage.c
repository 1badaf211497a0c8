/* usage.c - counts the bytes of queues for their users. */
#include "queue/usage.h"

#include <string.h>

#include "topic/session_key.h"
#include "server/memory.h"
#include "index/sessions.h"
#include "index/shares.h"
#include "index/usage.h"

#define NAME_ON_STACK 512  /* longer names take the heap */

/* ---- finding ----------------------------------------------------------------------------------------------- */

static share *share_of_queue(const index_t *index, hmq_slice session) {
    static const char begin[] = "{$share/";
    char small[NAME_ON_STACK], *filter;
    share *found = NULL;
    if (session.len < sizeof begin || memcmp(session.data, begin, sizeof begin - 1) != 0) return NULL;
    filter = scratch_alloc(small, sizeof small, session.len);
    int64_t len = hmq_session_key_decode((const char *)session.data, session.len, filter, session.len);
    if (len > 0) found = share_find(index->shares, (hmq_slice){(const uint8_t *)filter, (size_t)len});
    scratch_free(filter, small);
    return found;
}

static queue_account find(int db, hmq_slice session) {
    queue_account found = {0};
    const index_t *index = usage_era() == 0 ? NULL : index_peek(db);
    if (index == NULL) return found;
    session_entry *entry = session_index_find(index->opened, session);
    share *s = entry == NULL ? share_of_queue(index, session) : NULL;
    if (entry == NULL && s == NULL) return found;
    return (queue_account){.all = index->usage,
                           .queue = entry != NULL ? &entry->queued : &s->queued,
                           .user = entry != NULL ? entry->user : NULL,
                           .entry = entry};
}

queue_account queue_account_of(const queue *q) {
    return usage_era() == 0 ? (queue_account){0} : find(sv.GetSelectedDb(q->ctx), q->session);
}

bool queue_account_is_current(const queue_account *s, const queue *q) {
    return usage_is_counted(s->queue) && s->queue->length == queue_length(q);
}

/* ---- counting ---------------------------------------------------------------------------------------------- */

/* The set has already changed by this many references. */
void queue_usage_added(const queue *q, size_t count, size_t bytes) {
    queue_account s = queue_account_of(q);
    if (s.queue == NULL || !usage_is_counted(s.queue)) return;
    s.queue->length += count;
    usage_set(s.all, s.user, s.queue, s.queue->bytes + bytes);
}

void queue_usage_removed(const queue *q, size_t count, size_t bytes) {
    queue_account s = queue_account_of(q);
    if (s.queue == NULL || !usage_is_counted(s.queue)) return;
    if (s.queue->length < count || s.queue->bytes < bytes) { /* another program changed it */
        usage_forget(s.all, s.user, s.queue);
        return;
    }
    s.queue->length -= count;
    usage_set(s.all, s.user, s.queue, s.queue->length == 0 ? 0 : s.queue->bytes - bytes);
}

void queue_usage_resized(const queue *q, size_t before, size_t now) {
    queue_account s = queue_account_of(q);
    if (s.queue == NULL || !usage_is_counted(s.queue)) return;
    if (s.queue->bytes < before)
        usage_forget(s.all, s.user, s.queue);
    else
        usage_set(s.all, s.user, s.queue, s.queue->bytes - before + now);
}

void queue_usage_set(const queue_account *s, const queue *q, size_t bytes) {
    s->queue->length = queue_length(q);
    usage_set(s->all, s->user, s->queue, bytes);
}

/* Messages that expired during the count may be in it: a doubt stays until the next count has begun after it. */
void queue_usage_counted(const queue *q, size_t bytes) {
    queue_account s = queue_account_of(q);
    if (s.queue != NULL) queue_usage_set(&s, q, bytes);
}

void queue_usage_mark_stale(int db, hmq_slice session) {
    queue_account s = find(db, session);
    if (s.queue != NULL) s.queue->doubted = true;
}
