/* turns.c - listens to the event loop while a part of the module needs it.
 *
 * A listener may not be removed while the server calls listeners, so a timer removes it. */
#include "server/turns.h"

#include "server/awake.h"
#include "server/listening.h"
#include "server/timers.h"

#define IDLE_TURNS 16 /* turns without work, and then ... */
#define LEAVE_MS 100  /* ... this time, until the module stops listening */

static void (*end_of_turn)(server_ctx *);
static bool (*more_to_do)(void);
static bool is_wanted, is_leaving;
static unsigned idle_turns;

static void on_event_loop(server_ctx *ctx, server_event event, uint64_t sub, void *data);
static event_listener loop = {.event = SERVER_EVENT_EVENTLOOP, .handler = on_event_loop};

static void leave(server_ctx *ctx, void *data) {
    (void)ctx, (void)data;
    is_leaving = false;
    if (idle_turns >= IDLE_TURNS && !is_wanted && loop.is_heard) listening_set(&loop, false);
}

static module_timer leave_timer = {.fire = leave};

static void on_event_loop(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)event, (void)data;
    if (sub != SERVER_EVENTLOOP_BEFORE_SLEEP) return;
    counters.turns_heard++;
    end_of_turn(ctx);
    bool has_work = is_wanted || more_to_do();
    is_wanted = false;
    idle_turns = has_work ? 0 : idle_turns + 1;
    if (idle_turns < IDLE_TURNS || is_leaving) return;
    is_leaving = true;
    timers_arm(&leave_timer, LEAVE_MS);
}

void turns_request(void) {
    awake_follow();
    is_wanted = true;
    if (!loop.is_heard) listening_set(&loop, true);
}

static bool wake_pending;

static void on_wake(void *data) {
    (void)data;
    wake_pending = false; /* the timer was only there to end a turn */
}

void turns_request_another(void) {
    if (!wake_pending) wake_pending = sv.EventLoopAddOneShot(on_wake, NULL) == SERVER_OK;
}

void turns_start(void (*at_end)(server_ctx *), bool (*has_more)(void)) {
    end_of_turn = at_end;
    more_to_do = has_more;
    awake_add_follower(turns_request);
}
