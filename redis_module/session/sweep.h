/* sweep.h - removes what an expired session left: its message strings, which have expiries of their own.
 *
 * When {c}_messages of an opened session expires, its members are gone, but the counter {c}_last_packet_id lives a little
 * longer (SWEEP_GRACE_MS) and tells where to look: the identifiers before it.  A sweep looks at a bounded number of names in
 * each turn of the event loop, passes by messages of a session that was opened anew, and removes the counter at the end.
 * If the server is down at that moment the strings go by their own expiry: the sweep only returns memory early.
 * So do those of a session whose slot is on its way to another node of the cluster, or was when its turn came. */
#ifndef HMQ_SESSION_SWEEP_H
#define HMQ_SESSION_SWEEP_H

#include "server/state.h"

/* The queue of this session expired (told by the index, inside a notification: only noted here). */
void sweep_note(int db, hmq_slice session);

/* Goes on with what was noted: once in a turn of the event loop. */
void sweep_before_sleep(void);
bool sweep_any(void);

#endif
