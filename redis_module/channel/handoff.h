/* handoff.h - hands over to a new subscriber what its channels hold: once, after the confirmation and before any later
 * message.
 *
 * The command filter sees (P|S)SUBSCRIBE before it runs, and leaves a note here.  The note is settled when the client
 * has more subscriptions than before:
 *   - by a job that the server runs directly after that command (7.2), before any other command or event;
 *   - otherwise by the next command that the filter sees, or before the server sleeps.
 * If the client has no more subscriptions when another command comes, the SUBSCRIBE was refused (or named nothing
 * new), and the note is discarded: nothing is handed over to a client that is not a subscriber.
 *
 * Inside MULTI the notes wait for that client's EXEC.
 *
 * server/push.h says how a message is written to one client, and what happens on 7.0; backlogs are in
 * channel/drain.h, patterns in channel/pattern_walk.h. */
#ifndef HMQ_HANDOFF_H
#define HMQ_HANDOFF_H

#include "server/push.h"
#include "server/state.h"

/* Follows clients that disconnect. */
void handoff_start(void);

/* A subscribing command of this client (0: unknown) was seen.  Keeps the names. */
void handoff_note(uint64_t client, push_kind kind, server_string **names, int count);
/* The client's EXEC was seen (`exec`): the notes of its transaction become due.  Else DISCARD or RESET: drops them. */
void handoff_transaction(uint64_t client, bool exec);

/* Is there a note to settle?  (So that the filter can skip this at no cost.) */
bool handoff_pending(void);
/* The end of a turn of the event loop. */
void handoff_before_sleep(void);
/* Serves those who have become subscribers; `final`: discards the other notes. */
void handoff_settle(bool final);

#endif
