/* timers.c - stops and resumes timers. */
#include "server/timers.h"

#include <assert.h>

enum { MOST_TIMERS = 8 };
static module_timer *timers[MOST_TIMERS];
static int timer_count;
static bool stopped;

static void remember(module_timer *timer) {
    for (int i = 0; i < timer_count; i++) {
        if (timers[i] == timer) return;
    }
    assert(timer_count < MOST_TIMERS);
    timers[timer_count++] = timer;
}

static void on_timer(server_ctx *ctx, void *data) {
    module_timer *timer = data;
    timer->armed = false;
    timer->fire(ctx, NULL);
}

void timers_arm(server_ctx *ctx, module_timer *timer, long long period_ms) {
    remember(timer);
    timer->due_ms = sv.Milliseconds() + period_ms;
    timer->armed = true;
    if (!stopped) timer->id = sv.CreateTimer(ctx, period_ms, on_timer, timer);
}

void timers_stop(server_ctx *ctx) {
    if (stopped) return;
    stopped = true;
    for (int i = 0; i < timer_count; i++) {
        if (timers[i]->armed) sv.StopTimer(ctx, timers[i]->id, NULL);
    }
}

bool timers_are_stopped(void) {
    return stopped;
}

void timers_resume(server_ctx *ctx) {
    if (!stopped) return;
    stopped = false;
    for (int i = 0; i < timer_count; i++) {
        module_timer *timer = timers[i];
        if (!timer->armed) continue;
        long long left_ms = timer->due_ms - sv.Milliseconds();
        if (left_ms > 0)
            timer->id = sv.CreateTimer(ctx, left_ms, on_timer, timer);
        else
            on_timer(ctx, timer);
    }
}
