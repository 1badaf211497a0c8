/* share_replay.h - a group that reads history: its members share the past, then what is published.
 *
 *     {$share/<group>/<filter>}_replays   HASH   $share/<group>/<filter> -> where it is, as of a session's replay
 *
 *     the first member subscribes with a start ──► replays ──all is read──► live
 *     history ──► a connected member with room, in turn ──► its queue, marked with the share, as any message of the group
 *
 * Invariants:
 *  1. While a group replays, what is published is not routed to it; `index->group_replays` says which do, a pure function
 *     of these keys.
 *  2. The place moves in the step that gives the messages, and the group becomes live in the step that has read all.
 *  3. What waits in the group's queue (members gave it back) is given first.
 *  4. Members come and go, the place is the group's; with its last subscription the group ends, and its place with it. */
#ifndef HMQ_SHARE_REPLAY_H
#define HMQ_SHARE_REPLAY_H

#include "server/state.h"
#include "index/index.h"
#include "index/shares.h"

/* Gives members a page, if it replays.  True if more could go at once. */
bool share_replay_on(server_ctx *ctx, index_t *index, share *s);

#endif
