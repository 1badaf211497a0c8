/* slots.c - finds the shards of this node, and redirects commands. */
#include "history/slots.h"

#include "server/errors.h"
#include "server/slots.h"
#include "history/live.h"

/* The slot is remembered with the shard, if the shard is. */
static unsigned slot_of(const history_store *store, unsigned shard) {
    bool known = store->live != NULL && store->live[shard] != NULL;
    return known ? store->live[shard]->slot : history_slot(store->name, shard);
}

/* A replica serves reads if its primary has the shard. */
static bool is_on_replica(server_ctx *ctx, const history_store *store, unsigned shard) {
    return !(sv.GetContextFlags(ctx) & SERVER_CTX_MASTER) && (store->copies >> shard & 1);
}

bool history_is_here(server_ctx *ctx, const history_store *store, unsigned shard) {
    if (!can.cluster) return true;
    return slots_state(slot_of(store, shard)) == SLOT_SERVED || is_on_replica(ctx, store, shard);
}

static bool reply_moving(server_ctx *ctx, hmq_slice store, unsigned shard, unsigned slot) {
    reply_error(ctx, ERROR_SHARD_MOVING, slot, shown_slice(store), shard);
    return false;
}

bool history_check_slot(server_ctx *ctx, hmq_slice store, unsigned shard) {
    if (!can.cluster) return true;
    unsigned slot = history_slot(store, shard);
    switch (slots_state(slot)) {
    case SLOT_SERVED:
        if (slots_cluster_is_up()) return true;
        reply_error(ctx, ERROR_CLUSTER_DOWN);
        return false;
    case SLOT_MIGRATING:
    case SLOT_IMPORTING: return reply_moving(ctx, store, shard, slot);
    case SLOT_ELSEWHERE: break;
    }
    return slots_reply_elsewhere(ctx, slot);
}

bool history_check_here(server_ctx *ctx, const history_store *store, unsigned shard) {
    if (!can.cluster) return true;
    unsigned slot = slot_of(store, shard);
    if (slots_state(slot) == SLOT_SERVED && slots_cluster_is_up()) return true;
    return is_on_replica(ctx, store, shard) || history_check_slot(ctx, store->name, shard);
}

bool history_check_not_moving(server_ctx *ctx, const history_store *store) {
    for (unsigned shard = 0; can.cluster && shard < store->shards; shard++) {
        unsigned slot = slot_of(store, shard);
        slot_state state = slots_state(slot);
        if (state == SLOT_MIGRATING || state == SLOT_IMPORTING) return reply_moving(ctx, store->name, shard, slot);
    }
    return true;
}
