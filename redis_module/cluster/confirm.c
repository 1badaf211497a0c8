/* confirm.c - which nodes have the routes of a subscription. */
#include "cluster/confirm.h"

#include "topic/topic.h"
#include "server/errors.h"
#include "server/slots.h"
#include "index/index.h"
#include "cluster/homes.h"
#include "cluster/life.h"
#include "cluster/own.h"
#include "cluster/primaries.h"

static uint64_t last_serial;

/* By the clock, so that one of the process before is not given again. */
static uint64_t next_serial(void) {
    uint64_t now_us = clock_us();
    last_serial = now_us > last_serial ? now_us : last_serial + 1;
    return last_serial;
}

/* Begins again if this node may have missed a change of the route (invariant 1). */
static void refresh(own_note *note, unsigned slot) {
    uint32_t view = (uint32_t)slots_changed(slot);
    if (note->serial != 0 && note->era == homes_era() && note->view == view) return;
    *note = (own_note){.serial = next_serial(), .era = homes_era(), .view = view};
}

static own_note *note_of(server_ctx *ctx, hmq_slice filter, unsigned slot, bool make) {
    (void)slots_state(slot); /* the view is read if it is in doubt */
    own_note *note = own_routes_note(index_of(ctx)->routes, filter, slot, make);
    if (note != NULL) refresh(note, slot);
    return note;
}

/* ---- SESSION.SUBSCRIBE with ROUTES -------------------------------------------------------------------------- */

/* Of the homes that the running command replied. */
static struct {
    uint64_t marks[HOMES_MOST];
    size_t count;
} replied;

bool confirm_parse(args *a, bool *given) {
    *given = (a->argc - a->at) % 2 != 0 && args_take_word(a, "ROUTES");
    if (!*given) return true;
    if (!can.cluster) {
        reply_error(a->ctx, ERROR_CLUSTER_ONLY, "ROUTES", "ROUTES");
        return false;
    }
    if (!route_begin_look(a)) return false;
    int pairs = (a->argc - a->at) / 2;
    if (pairs <= CONFIRM_MOST_PAIRS) return true;
    reply_error(a->ctx, ERROR_SUBSCRIBE_ROUTES_COUNT, pairs, CONFIRM_MOST_PAIRS);
    return false;
}

void confirm_reply_nodes(server_ctx *ctx) {
    homes_reply(ctx);
    replied.count = homes_marks(replied.marks);
    primaries_reply(ctx);
}

void confirm_reply_route(server_ctx *ctx, hmq_slice session, hmq_slice filter) {
    hmq_slice group, inner;
    if (!hmq_topic_split_share((const char *)filter.data, filter.len, &group, &inner)) inner = filter;
    const own_note *note = note_of(ctx, inner, slots_of_key(session), true);
    size_t homes = note == NULL ? 0 : replied.count;
    long count = 1;
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    sv.ReplyWithLongLong(ctx, note == NULL ? 0 : (long long)note->serial);
    for (size_t i = 0; i < homes; i++) {
        if ((note->confirmed & replied.marks[i]) == 0) continue;
        sv.ReplyWithLongLong(ctx, (long long)i);
        count++;
    }
    sv.ReplySetArrayLength(ctx, count);
}

/* ---- ROUTE.CONFIRM ------------------------------------------------------------------------------------------ */

/* Are the rest pairs of node and generation?  Then *marks has those that are noted.  False after replying an error. */
static bool take_generations(args *a, uint64_t *marks) {
    int given = a->argc - a->at;
    *marks = 0;
    if (given == 0 || given % 2 != 0 || given / 2 > HOMES_MOST) {
        reply_error(a->ctx, ERROR_ROUTES_GENERATIONS, given, HOMES_MOST);
        return false;
    }
    while (args_left(a)) {
        hmq_slice node;
        long long n;
        if (!route_node(a, &node) || !route_generation(a, &n)) return false;
        *marks |= homes_mark(node, n);
    }
    return true;
}

int route_confirm_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *filter;
    unsigned slot;
    long long serial;
    uint64_t marks;
    if (!route_begin(&a) || !route_pair(&a, &filter, &slot)) return SERVER_OK;
    if (!args_number(&a, "serial", 1, INT64_MAX, &serial) || !take_generations(&a, &marks)) return SERVER_OK;
    own_note *note = note_of(ctx, slice_of(filter), slot, false);
    if (note != NULL && note->serial == (uint64_t)serial) note->confirmed |= marks;
    sv.ReplyWithSimpleString(ctx, "OK");
    return SERVER_OK;
}
