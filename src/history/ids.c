/* ids.c - ids, and the marks that lead from a time to a sequence number.  Pure arithmetic. */
#include "history/ids.h"

#include "base/assert.h"
#include "base/little_endian.h"

#define ID_MAX ((uint64_t)HMQ_ID_MAX)

bool hmq_message_id_next(hmq_message_id last, uint64_t now_us, hmq_message_id *next) {
    uint64_t time_us = now_us > last.time_us ? now_us : last.time_us + 1;
    if (time_us > ID_MAX || last.time_us >= ID_MAX || last.sequence >= ID_MAX) return false;
    *next = (hmq_message_id){time_us, last.sequence + 1};
    hmq_assert(next->time_us > last.time_us && next->sequence > last.sequence); /* invariant 1 */
    return true;
}

bool hmq_mark_due(uint64_t first, uint64_t sequence) {
    return (sequence - first) % HMQ_MARKS_EVERY == 0;
}

void hmq_mark_encode(hmq_message_id id, uint8_t out[HMQ_MARK_BYTES]) {
    hmq_store64(id.time_us, out);
    hmq_store64(id.sequence, out + 8);
}

uint32_t hmq_marks_find(const uint8_t *marks, size_t len, uint64_t time_us, uint64_t *from, uint64_t *to) {
    size_t low = 0, count = len / HMQ_MARK_BYTES; /* marks below `low` are earlier, from `high` on they are not */
    uint32_t looked_at = 0;
    for (size_t high = count; low < high; looked_at++) {
        size_t middle = low + (high - low) / 2;
        if (hmq_load64(marks + middle * HMQ_MARK_BYTES) < time_us)
            low = middle + 1;
        else
            high = middle;
    }
    *from = low ? hmq_load64(marks + (low - 1) * HMQ_MARK_BYTES + 8) + 1 : 1;
    *to = low < count ? hmq_load64(marks + low * HMQ_MARK_BYTES + 8) : UINT64_MAX;
    if (low == 0 && count) *from = *to;
    return looked_at;
}
