/* member_notes.h - in a cluster: which groups a client's session notes, and the end of their member sessions with it.
 *
 * {c}_session has the filters of the notes, so that the session's last step need not read all subscriptions:
 *
 *     members   per filter: 2 bytes length (little endian), then the filter; at most MEMBERS_MOST of them
 *
 * The step that ends the session puts an end into the outbox of its slot for each of them (session/outbox.h).  Whoever
 * reads the outbox drops the member, unless it has a later claim (SESSION.DROP ... CLAIM).
 *
 *     0xFC <claim> <key of the member session>      claim: the last epoch of the client's session
 *
 * A session whose keys just expire puts nothing: its members expire at about the same time. */
#ifndef HMQ_MEMBER_NOTES_H
#define HMQ_MEMBER_NOTES_H

#include "index/session_state.h"

#define MEMBERS_MOST 64

/* The session notes the group of this filter from now on, or no longer.  Beyond MEMBERS_MOST nothing is noted. */
void member_notes_set(server_ctx *ctx, hmq_slice session, hmq_slice filter, bool noted);

/* The session, which had this last epoch, is over. */
void member_notes_end(server_ctx *ctx, hmq_slice session, long long epoch);

#endif
