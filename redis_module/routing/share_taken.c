/* share_taken.c - messages of groups that are taken out of a queue. */
#include "routing/share_taken.h"

#include "server/memory.h"
#include "index/subscription.h"

void share_take(void *takes, uint64_t serial, uint16_t packet_id, const char *value, size_t len) {
    share_takes *t = takes;
    hmq_record record;
    if (hmq_record_decode((const uint8_t *)value, len, &record) != 0 || record.type != HMQ_RECORD_PUBLISH) return;
    if (t->selects != NULL && !t->selects(t->selector_context, serial, &record)) return;
    t->list = array_reserve(t->list, &t->room, t->count, 1, 64, sizeof *t->list);
    t->list[t->count++] = (share_taken){packet_id, sv.CreateString(NULL, value, len)};
}

void share_takes_free(share_takes *t) {
    for (size_t i = 0; i < t->count; i++) sv.FreeString(NULL, t->list[i].record);
    sv.Free(t->list);
}

void share_takes_remove(queue *q, const share_takes *t, size_t count) {
    uint16_t *ids = sv.Alloc((count + 1) * sizeof *ids);
    for (size_t i = 0; i < count; i++) ids[i] = t->list[i].packet_id;
    if (count > 0) queue_remove(q, ids, count);
    sv.Free(ids);
}

bool share_message_again(message *m, const server_string *bytes, hmq_record *record) {
    hmq_slice text = slice_of(bytes);
    hmq_record_decode(text.data, text.len, record);
    long long now_ms = sv.Milliseconds();
    size_t own = subscription_property_bytes(record->properties);
    record->properties = (hmq_slice){record->properties.data + own, record->properties.len - own};
    if (record->expires_ms > 0 && record->expires_ms <= now_ms) return false;
    message_begin(m, record, now_ms);
    long long end_ms = record->time_ms + settings.session_ttl_s * 1000; /* moving it does not extend its life */
    if (m->expire_ms > end_ms) m->expire_ms = end_ms;
    if (m->expire_ms > now_ms) return true;
    message_end(m);
    return false;
}
