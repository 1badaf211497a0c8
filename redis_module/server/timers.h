/* timers.h - timers of the module: a file of the kernel ends the server's wait, and only then the server gets a timer.
 *
 * A server unloads no module that holds a timer, not even on its way out.  To be told of its end, the module would have to
 * listen to an event (server/listening.h).
 *
 * Each timer is a static variable of its user; a table has all that were ever armed. */
#ifndef HMQ_TIMERS_H
#define HMQ_TIMERS_H

#include "server/state.h"

typedef struct module_timer {
    server_timer fire;
    bool armed;
    bool is_given; /* to the server: it fires in this turn of the event loop */
    uint64_t id;   /* ... with this id */
    long long due_us; /* by the monotonic clock */
} module_timer;

/* False, with errno, if the kernel or the server refuses the file. */
bool timers_start(void);
/* Before the module is unloaded. */
void timers_end(void);

/* Calls timer->fire after `period_ms`.  The timer is no longer armed when `fire` begins. */
void timers_arm(module_timer *timer, long long period_ms);
/* Takes the timers back that the server has: the module may be unloaded next.  They fire in the next turn. */
void timers_take_back(void);

#endif
