/* timers.c - arms timers, and passes those that are due to the server. */
#include "server/timers.h"

#include <assert.h>
#include <errno.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MOST_TIMERS = 8 };
#define US_IN_S 1000000LL
#define NS_IN_US 1000LL

static module_timer *timers[MOST_TIMERS];
static int timer_count;
static int file = -1;

static long long now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * US_IN_S + now.tv_nsec / NS_IN_US;
}

static void remember(module_timer *timer) {
    for (int i = 0; i < timer_count; i++) {
        if (timers[i] == timer) return;
    }
    assert(timer_count < MOST_TIMERS);
    timers[timer_count++] = timer;
}

/* Sets the file to the earliest of the timers that the server does not have. */
static void set_file(void) {
    long long due_us = 0; /* never */
    for (int i = 0; i < timer_count; i++) {
        const module_timer *t = timers[i];
        if (t->armed && !t->is_given && (due_us == 0 || t->due_us < due_us)) due_us = t->due_us;
    }
    struct itimerspec at = {.it_value = {due_us / US_IN_S, due_us % US_IN_S * NS_IN_US}};
    int done = timerfd_settime(file, TFD_TIMER_ABSTIME, &at, NULL);
    assert(done == 0);
    (void)done;
}

static void fire(server_ctx *ctx, void *data) {
    module_timer *timer = data;
    timer->armed = timer->is_given = false;
    timer->fire(ctx, NULL);
}

/* Writes need the context of a server's timer, one for each. */
static void on_file(int fd, void *data, int mask) {
    uint64_t times;
    (void)data, (void)mask;
    if (read(fd, &times, sizeof times) != sizeof times) return; /* it was set again in this turn */
    long long until_us = now_us();
    for (int i = 0; i < timer_count; i++) {
        module_timer *t = timers[i];
        if (!t->armed || t->is_given || t->due_us > until_us) continue;
        t->is_given = true;
        t->id = sv.CreateTimer(detached, 0, fire, t);
    }
    set_file();
}

void timers_arm(module_timer *timer, long long period_ms) {
    remember(timer);
    timer->due_us = now_us() + period_ms * (US_IN_S / 1000);
    timer->armed = true;
    set_file();
}

void timers_take_back(void) {
    for (int i = 0; i < timer_count; i++) {
        if (timers[i]->is_given) sv.StopTimer(detached, timers[i]->id, NULL);
        timers[i]->is_given = false;
    }
    set_file();
}

bool timers_start(void) {
    file = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (file < 0) return false;
    if (sv.EventLoopAdd(file, SERVER_EVENTLOOP_READABLE, on_file, NULL) == SERVER_OK) return true;
    int error = errno;
    close(file);
    errno = error;
    return false;
}

void timers_end(void) {
    sv.EventLoopDel(file, SERVER_EVENTLOOP_READABLE);
    close(file);
}
