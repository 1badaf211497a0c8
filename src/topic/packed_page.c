/* packed_page.c - topic/packed_page.h has the layout. */
#include "topic/packed_page.h"

#include "base/little_endian.h"

#define SERIAL_MAX (1ULL << 53)
#define STATE_MAX 2

void hmq_packed_entry_put(const hmq_packed_entry *entry, uint8_t *out) {
    hmq_store64(entry->serial, out);
    out[8] = (uint8_t)entry->packet_id;
    out[9] = (uint8_t)(entry->packet_id >> 8);
    out[10] = entry->state;
    for (unsigned i = 0; i < 4; i++) out[11 + i] = (uint8_t)(entry->value.len >> (8 * i));
}

int hmq_packed_entry_next(const uint8_t *page, size_t len, size_t *at, hmq_packed_entry *entry) {
    size_t left = len - *at;
    if (left == 0) return 0;
    if (left < HMQ_PACKED_ENTRY_BYTES) return -1;
    const uint8_t *in = page + *at;
    size_t size = (size_t)in[11] | (size_t)in[12] << 8 | (size_t)in[13] << 16 | (size_t)in[14] << 24;
    *entry = (hmq_packed_entry){.serial = hmq_load64(in),
                                .packet_id = (uint16_t)(in[8] | in[9] << 8),
                                .state = in[10],
                                .value = {in + HMQ_PACKED_ENTRY_BYTES, size}};
    bool is_entry = entry->serial >= 1 && entry->serial <= SERIAL_MAX && entry->packet_id != 0 &&
                    entry->state <= STATE_MAX && size <= left - HMQ_PACKED_ENTRY_BYTES;
    if (!is_entry) return -1;
    *at += HMQ_PACKED_ENTRY_BYTES + size;
    return 1;
}
