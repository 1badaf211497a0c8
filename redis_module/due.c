/* due.c - the module's clock. */
#include "due.h"

#include "server/awake.h"
#include "server/slots.h"
#include "server/timers.h"
#include "server/writable.h"
#include "index/index.h"
#include "index/sessions.h"
#include "history/learn.h"
#include "history/retain.h"
#include "routing/fan_out.h"
#include "routing/share_turn.h"
#include "session/life.h"
#include "session/owner.h"

#define PERIOD_MS 100
#define SLICE_MS 3 /* of work; then clients are served */
#define AGAIN_MS 1
#define ELSEWHERE_MS 1000
#define STOPPED_MS 1000 /* between two ticks: longer means that the server was stopped, and received nothing */

static bool served;         /* the last time: this server took writes */
static long long ticked_ms; /* the last time */

/* True if it continues soon. */
static bool do_session(server_ctx *ctx, index_t *index, session_entry *entry, long long until_ms) {
    server_string *key = sv.HoldString(NULL, entry->key); /* the entry may go */
    bool here = slots_state(slots_of_key(slice_of(key))) == SLOT_SERVED; /* otherwise it is moving, or another node's */
    long long again_ms = here ? session_do_due(ctx, slice_of(key), until_ms) : sv.Milliseconds() + ELSEWHERE_MS;
    entry = session_index_find(index->opened, slice_of(key));
    long long now_ms = sv.Milliseconds();
    if (entry != NULL && again_ms == 0 && entry->due_ms > 0 && entry->due_ms <= now_ms) again_ms = now_ms + PERIOD_MS;
    if (entry != NULL && again_ms > 0) session_index_arm(index->opened, entry, again_ms);
    sv.FreeString(NULL, key);
    return entry != NULL && again_ms > 0 && again_ms <= now_ms + AGAIN_MS;
}

/* True if something is left. */
static bool do_database(server_ctx *ctx, long long until_ms) {
    deadline due;
    bool soon = false;
    index_t *index = index_of(ctx);
    while (session_index_take_due(index->opened, sv.Milliseconds(), &due)) {
        if (due.session != NULL && do_session(ctx, index, due.session, until_ms)) soon = true;
        if (due.owner != NULL) owner_do_due(ctx, index->opened, due.owner, until_ms);
        if (sv.Milliseconds() >= until_ms) return true;
        index = index_of(ctx);
    }
    return soon;
}

static module_timer clock_timer;

/* Is there a lease that may run out? */
static bool has_owners(void) {
    for (int db = 0; db < index_databases(); db++)
        if (index_exists(db) && session_index_has_owners(index_peek(db)->opened)) return true;
    return false;
}

static void tick(server_ctx *ctx, void *data) {
    (void)data;
    bool loading = (sv.GetContextFlags(ctx) & SERVER_CTX_LOADING) != 0, left = false;
    bool serves = writable_now(ctx, !loading && has_owners());
    long long begun_ms = sv.Milliseconds();
    bool was_stopped = begun_ms - ticked_ms > STOPPED_MS;
    ticked_ms = begun_ms;
    for (int db = 0; !loading && db < index_databases(); db++) {
        if (!index_exists(db)) continue;
        sv.SelectDb(ctx, db);
        index_t *index = index_of(ctx);
        if (serves && !served) owner_renew_all(index->opened);
        if (serves && was_stopped) owner_renew_after_pause(index->opened);
        if (serves) fan_out_resume(index_of(ctx));
        if (serves && share_serve_pending(ctx, index_of(ctx), begun_ms + SLICE_MS)) left = true;
        if (serves && history_retain(ctx, index_of(ctx))) left = true;
        if (serves && do_database(ctx, begun_ms + SLICE_MS)) left = true;
        if (serves && history_learn(ctx, index_of(ctx))) left = true;
    }
    if (!serves) owner_period_ends();
    served = serves;
    timers_arm(&clock_timer, left ? AGAIN_MS : PERIOD_MS);
}

static void follow(void) {
    ticked_ms = sv.Milliseconds();
    clock_timer.fire = tick;
    timers_arm(&clock_timer, PERIOD_MS);
}

void due_start(void) {
    awake_add_follower(follow);
}
