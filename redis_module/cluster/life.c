/* life.c - when a node forgets what it knows of routes. */
#include "cluster/life.h"

#include "server/errors.h"
#include "server/replication.h"
#include "server/slots.h"
#include "index/subscription.h"
#include "cluster/homes.h"
#include "cluster/primaries.h"
#include "cluster/table.h"

static struct {
    bool began;
    bool owned; /* a slot, at the last look */
    unsigned promotions;
} life;

static void look(void) {
    bool owns = slots_owns_any(), promoted = life.promotions != replication_promotions();
    if (!life.began || promoted || (owns && !life.owned)) {
        homes_forget();
        primaries_forget();
        table_forget(0);
    } else if (!owns && life.owned) {
        table_forget(0);
    }
    life.began = true;
    life.owned = owns;
    life.promotions = replication_promotions();
}

static void on_change_of_slots(void) {
    if (!life.began) return;
    slots_read_again();
    look();
}

void route_life_start(void) {
    if (can.cluster) slots_watch(on_change_of_slots);
}

/* ---- commands ---------------------------------------------------------------------------------------------- */

bool route_begin_look(args *a) {
    if (!can.cluster) {
        reply_error(a->ctx, ERROR_ROUTES_WITHOUT_CLUSTER);
    } else if (sv.GetSelectedDb(a->ctx) != 0) {
        reply_error(a->ctx, ERROR_ROUTES_DATABASE, sv.GetSelectedDb(a->ctx));
    } else {
        look();
        return true;
    }
    return false;
}

bool route_look(server_ctx *ctx) {
    if (!can.cluster || sv.GetSelectedDb(ctx) != 0) return false;
    look();
    return true;
}

bool route_begin(args *a) {
    if (!route_begin_look(a)) return false;
    if (slots_cluster_is_up()) return true;
    reply_error(a->ctx, ERROR_CLUSTER_DOWN);
    return false;
}

bool route_begin_answer(args *a) {
    if (!route_begin(a)) return false;
    if (life.owned) return true;
    reply_error(a->ctx, ERROR_ROUTES_NO_SLOTS);
    return false;
}

bool route_check_slot(server_ctx *ctx, unsigned slot) {
    switch (slots_state(slot)) {
    case SLOT_SERVED: return true;
    case SLOT_MIGRATING:
    case SLOT_IMPORTING: reply_error(ctx, ERROR_ROUTE_MOVING, slot); return false;
    case SLOT_ELSEWHERE: break;
    }
    return slots_reply_elsewhere(ctx, slot);
}

bool route_node(args *a, hmq_slice *node) {
    server_string *text;
    if (!args_string(a, "node", &text)) return false;
    *node = slice_of(text);
    bool valid = node->len == SLOTS_NODE_ID_BYTES;
    for (size_t i = 0; valid && i < node->len; i++) {
        uint8_t c = node->data[i];
        valid = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
    }
    if (!valid) reply_error(a->ctx, ERROR_ROUTES_NODE_INVALID, shown(text));
    return valid;
}

bool route_generation(args *a, long long *n) {
    return args_number(a, "generation", 1, INT64_MAX - 1, n);
}

bool route_pair(args *a, server_string **filter, unsigned *slot) {
    long long number;
    if (!args_string(a, "filter", filter) || !subscription_check_filter(a->ctx, *filter, false)) return false;
    if (!args_number(a, "slot", 0, HMQ_SLOTS - 1, &number)) return false;
    *slot = (unsigned)number;
    return true;
}
