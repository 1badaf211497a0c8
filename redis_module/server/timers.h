/* timers.h - timers of the server that can be stopped and resumed: a server unloads no module that holds a timer.
 *
 * Each timer is a static variable of its user; a table has all that were ever armed. */
#ifndef HMQ_TIMERS_H
#define HMQ_TIMERS_H

#include "server/state.h"

typedef struct module_timer {
    server_timer fire;
    uint64_t id;
    long long due_ms;
    bool armed;
} module_timer;

/* Calls timer->fire after `period_ms`.  The timer is no longer armed when `fire` begins. */
void timers_arm(server_ctx *ctx, module_timer *timer, long long period_ms);
/* Stops all timers until timers_resume.  The caller makes sure that a turn ends (server/turns.h). */
void timers_stop(server_ctx *ctx);
bool timers_are_stopped(void);
/* Overdue timers fire at once, so that frequent stops cannot prevent them. */
void timers_resume(server_ctx *ctx);

#endif
