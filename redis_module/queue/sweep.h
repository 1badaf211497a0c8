/* sweep.h - removes what a session left: its message strings, which have expiries of their own.
 *
 * When {c}_messages of an opened session expires, its members are gone, but the counter {c}_last_packet_id lives a little
 * longer (SWEEP_GRACE_MS) and tells where to look: the identifiers before it.  A sweep looks at a bounded number of names in
 * each turn of the event loop, passes by messages of a session that was opened anew, and removes the counter at the end.
 * A queue that is dropped with more messages than go in one step (sweep_takes) leaves its strings to a sweep, too: it is told
 * which identifier is the last, since the counter ends with the queue.
 * If the server is down at that moment the strings go by their own expiry: the sweep only returns memory early.
 * So do those of a session whose slot is on its way to another node of the cluster, or was when its turn came. */
#ifndef HMQ_SESSION_SWEEP_H
#define HMQ_SESSION_SWEEP_H

#include "server/state.h"

/* The queue of this session expired (told by the index, inside a notification: only noted here). */
void sweep_note(int db, hmq_slice session);

/* A queue with so many messages is dropped.  True: they are more than are still removed in this turn of the event loop, so
 * the sweep takes their strings, from this identifier downwards. */
bool sweep_takes(int db, hmq_slice session, size_t messages, long long last_packet_id);

/* Goes on with what was noted: once in a turn of the event loop. */
void sweep_before_sleep(void);
bool sweep_any(void);

#endif
