/* primaries.c - the nodes that have slots. */
#include "cluster/primaries.h"

#include <string.h>

#include "server/internals.h"
#include "server/memory.h"
#include "server/numbers.h"
#include "server/slots.h"

typedef struct primary {
    char id[SLOTS_NODE_ID_BYTES];
    unsigned slot; /* that it had */
} primary;

static struct {
    primary *list;
    size_t count, room;
    uint64_t read_us;
    bool is_read;
} primaries;

static void take(void *context, const slots_node *node) {
    (void)context;
    if (!node->has_slots) return;
    primaries.list = array_reserve(primaries.list, &primaries.room, primaries.count, 1, 16, sizeof *primaries.list);
    primaries.list[primaries.count].slot = node->slot;
    memcpy(primaries.list[primaries.count++].id, node->id.data, SLOTS_NODE_ID_BYTES);
}

static void look(void) {
    uint64_t now_us = monotonic_us();
    if (primaries.is_read && now_us - primaries.read_us < PRIMARIES_OLD_MS * 1000ULL) return;
    primaries.count = 0;
    slots_each_node(take, NULL);
    primaries.read_us = now_us;
    primaries.is_read = true;
}

void primaries_forget(void) {
    primaries.is_read = false;
}

static const primary *find(hmq_slice node) {
    if (node.len != SLOTS_NODE_ID_BYTES) return NULL;
    for (size_t i = 0; i < primaries.count; i++) {
        if (memcmp(primaries.list[i].id, node.data, node.len) == 0) return &primaries.list[i];
    }
    return NULL;
}

bool primaries_include(hmq_slice node) {
    const primary *before = find(node);
    if (before != NULL && internals_slot_is_of(before->slot, before->id, sizeof before->id)) return true;
    look();
    return find(node) != NULL;
}

void primaries_reply(server_ctx *ctx) {
    look();
    sv.ReplyWithArray(ctx, (long)primaries.count);
    for (size_t i = 0; i < primaries.count; i++)
        sv.ReplyWithStringBuffer(ctx, primaries.list[i].id, SLOTS_NODE_ID_BYTES);
}
