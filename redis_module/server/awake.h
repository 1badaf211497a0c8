/* awake.h - the module sleeps until it is used.
 *
 * The server calls a command filter for every command, and walks through all listeners to its events at each key that is
 * overwritten and twice in each turn of the event loop.  A server whose policy is empty, and that keeps nothing of
 * HoldMQ, would pay for that and gain nothing.  So each part registers here how it begins to listen to commands, clients
 * and the clock, and the module wakes at its first use, for the rest of its life:
 *
 *     a policy that is not empty, and any command of the module (a dry run is one)
 *     a key with a name of HoldMQ: the listener to key events never sleeps
 *     a cluster
 *
 * A sleeping module can be unloaded.
 *
 * An awake module that keeps nothing yet only looks at commands and key events: it has no timers and no listeners to the
 * server's other events.  Later it has only those that it needs (server/listening.h).  Each part calls awake_follow before it remembers anything of keys and clients: an index is made,
 * a message may be held, a client subscribes or begins a transaction, a command of the module runs.
 *
 * Invariant: a sleeping module remembers nothing of keys, clients and users.  What it has not seen, it finds out when it
 * wakes, as when it is loaded into a running server. */
#ifndef HMQ_AWAKE_H
#define HMQ_AWAKE_H

#include "server/state.h"

/* `wake` runs once, after those that were added before. */
void awake_add(void (*wake)(void));
/* `follow` runs once, when the awake module first remembers something of keys or clients. */
void awake_add_follower(void (*follow)(void));
/* Wakes the module if awake_now was called before, and from now on when it is called. */
void awake_start(void);

extern bool is_awake, is_following;
void awake_all(void);
void awake_follow_all(void);

/* The module is used. */
static inline void awake_now(void) {
    if (__builtin_expect(!is_awake, 0)) awake_all();
}

/* Something of keys or clients is remembered from now on. */
static inline void awake_follow(void) {
    if (__builtin_expect(!is_following, 0)) awake_follow_all();
}

#endif
