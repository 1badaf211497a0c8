/* inflight.c - the table of engine/inflight.h. */
#include "engine/inflight.h"

#include "base/assert.h"

#include <string.h>

#define FIRST_ROOM 8U

/* The upper bits of a multiple of the golden ratio: consecutive identifiers, as a queue has them, are far apart. */
static uint32_t place_of(const hmq_inflight *table, uint16_t packet_id) {
    return packet_id * 2654435769U >> (__builtin_clz(table->room) + 1);
}

inflight_entry *hmq_inflight_find(const hmq_inflight *table, uint16_t packet_id) {
    if (table->count == 0) return NULL;
    for (uint32_t at = place_of(table, packet_id);; at = (at + 1) & (table->room - 1)) {
        if (table->entries[at].packet_id == packet_id) return &table->entries[at];
        if (table->entries[at].packet_id == 0) return NULL;
    }
}

static inflight_entry *free_place(const hmq_inflight *table, uint16_t packet_id) {
    uint32_t at = place_of(table, packet_id);
    while (table->entries[at].packet_id != 0) at = (at + 1) & (table->room - 1);
    return &table->entries[at];
}

static bool grow(const hmq_allocator *allocator, hmq_inflight *table) {
    hmq_inflight larger = *table;
    larger.room = table->room == 0 ? FIRST_ROOM : table->room * 2;
    larger.entries = allocator->alloc(larger.room * sizeof *larger.entries);
    if (larger.entries == NULL) return false;
    memset(larger.entries, 0, larger.room * sizeof *larger.entries);
    for (uint32_t i = 0; i < table->room; i++) {
        const inflight_entry *entry = &table->entries[i];
        if (entry->packet_id != 0) *free_place(&larger, entry->packet_id) = *entry;
    }
    if (table->entries != NULL) allocator->release(table->entries);
    *table = larger;
    return true;
}

inflight_entry *hmq_inflight_add(const hmq_allocator *allocator, hmq_inflight *table, uint16_t packet_id,
                                 uint8_t state) {
    if ((table->count + 1) * 2 > table->room && !grow(allocator, table)) return NULL;
    hmq_assert(packet_id != 0 && hmq_inflight_find(table, packet_id) == NULL);
    inflight_entry *entry = free_place(table, packet_id);
    *entry = (inflight_entry){.packet_id = packet_id, .state = state};
    table->count++;
    table->unacknowledged += inflight_is_unacknowledged(state);
    return entry;
}

void hmq_inflight_set_state(hmq_inflight *table, inflight_entry *entry, uint8_t state) {
    table->unacknowledged -= inflight_is_unacknowledged(entry->state);
    table->unacknowledged += inflight_is_unacknowledged(state);
    entry->state = state;
}

void hmq_inflight_remove(const hmq_allocator *allocator, hmq_inflight *table, inflight_entry *entry) {
    uint32_t mask = table->room - 1, hole = (uint32_t)(entry - table->entries);
    table->unacknowledged -= inflight_is_unacknowledged(entry->state);
    hmq_assert(table->count > 0 && table->unacknowledged < table->count);
    table->count--;
    /* Entries that were probed past the hole move into it. */
    for (uint32_t at = (hole + 1) & mask; table->entries[at].packet_id != 0; at = (at + 1) & mask) {
        uint32_t home = place_of(table, table->entries[at].packet_id);
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        table->entries[hole] = table->entries[at];
        hole = at;
    }
    table->entries[hole] = (inflight_entry){0};
    if (table->count == 0 && table->room > FIRST_ROOM * 4) hmq_inflight_free(allocator, table);
}

void hmq_inflight_free(const hmq_allocator *allocator, hmq_inflight *table) {
    if (table->entries != NULL) allocator->release(table->entries);
    *table = (hmq_inflight){0};
}
