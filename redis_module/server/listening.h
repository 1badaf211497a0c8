/* listening.h - listens to an event of the server only while the module needs it.
 *
 * The server goes through all listeners at each key that is overwritten and twice in each turn of the event loop, whatever
 * they listen to.  So an application pays for each of them at each SET.
 *
 *     LOADING, FLUSHDB, SWAPDB  on a replica, in a cluster, and while data may be loaded (server/replication.c): all data
 *                               changes at once without a command.  Elsewhere such changes are commands, which the
 *                               command filter sees before they run: from then on
 *     ROLE_CHANGED              on a replica, in a cluster, and after a command that may change the role
 *     CLIENT_CHANGE             once something is remembered of a client that must be forgotten when it goes
 *     SHUTDOWN, MODULE_CHANGE   after a command that loads or unloads a module
 *     EVENTLOOP                 while there is work at the end of a turn
 *
 * Where one of these commands is renamed, its event is always listened to. */
#ifndef HMQ_LISTENING_H
#define HMQ_LISTENING_H

#include "server/state.h"

typedef struct event_listener {
    uint64_t event;
    server_event_handler handler;
    bool is_early; /* also before the module follows (server/awake.h) */
    bool is_wanted, is_heard, is_known;
    struct event_listener *next;
} event_listener;

/* Listens from now on, or no longer; if the module does not follow yet and the listener is not early, once it follows.
 * Must not be ended while the server calls listeners. */
void listening_set(event_listener *listener, bool is_wanted);
/* Kinds of events that are listened to now. */
unsigned listening_count(void);
/* Before all other parts. */
void listening_start(void);

#endif
