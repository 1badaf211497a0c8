/* sweep.h - removes the message strings that a session left behind, which have expiries of their own.
 *
 * When {c}_messages of an opened session expires, its members are lost.  But the counter {c}_last_packet_id lives a
 * little longer (SWEEP_GRACE_MS), and says where to search: the identifiers before it.  A sweep looks at a bounded
 * number of names in each turn of the event loop, skips messages of a session that was opened again, and removes the
 * counter at the end.  A dropped queue with more messages than one step may remove (sweep_defer_removal) leaves its
 * strings to a sweep, too, with its last identifier, because the counter ends with the queue.
 *
 * If the server is down at that moment, the strings expire by themselves: the sweep only returns memory early.  The
 * same applies to a session whose slot is moving to another node of the cluster. */
#ifndef HMQ_SESSION_SWEEP_H
#define HMQ_SESSION_SWEEP_H

#include "server/state.h"

/* The queue of this session expired.  (The index calls this inside a notification, so it is only noted.) */
void sweep_note_expired(int db, hmq_slice session);

/* A queue with this many messages is dropped.  True: the messages are more than this turn of the event loop may still
 * remove, so the sweep removes their strings, from this identifier downwards. */
bool sweep_defer_removal(int db, hmq_slice session, size_t messages, long long last_packet_id);

/* Continues the sweeps: once in a turn of the event loop. */
void sweep_before_sleep(void);
bool sweep_any_active(void);

#endif
