/* end_of_turn.c - calls each part that has work at the end of a turn, in their order. */
#include "end_of_turn.h"

#include "server/replication.h"
#include "server/slots.h"
#include "server/turns.h"
#include "index/filters.h"
#include "index/index.h"
#include "queue/sweep.h"
#include "cluster/standstill.h"
#include "history/live.h"
#include "history/ticks.h"
#include "routing/fan_out.h"
#include "routing/push_budget.h"
#include "routing/retained_cursors.h"
#include "channel/drain.h"
#include "channel/handoff.h"
#include "channel/pattern_walk.h"
#include "channel/store.h"

/* Before replies are written.  The index comes first: the others read it. */
static void on_end_of_turn(server_ctx *ctx) {
    replication_before_sleep();
    index_before_sleep();
    index_filters_before_sleep();
    if (handoff_pending()) handoff_before_sleep();
    push_budget_before_sleep(fan_out_is_pending());
    drain_before_sleep();
    retained_cursors_before_sleep();
    fan_out_before_sleep();
    walk_before_sleep();
    store_before_sleep();
    slots_before_sleep();
    standstill_before_sleep();
    sweep_before_sleep();
    history_before_sleep();
    history_ticks_before_sleep(ctx);
}

/* Is there something to do at the end of later turns?  On a node of a cluster there always may be. */
static bool has_more(void) {
    return can.cluster || handoff_pending() || drain_any_active() || walk_any_active() || retained_cursors_any_due() ||
           fan_out_any_due() || sweep_any_active() || index_filters_any_leaving() || store_has_unmarked_claims();
}

void end_of_turn_start(void) {
    turns_start(on_end_of_turn, has_more);
}
