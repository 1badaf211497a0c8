/* share_replay.h - a group that reads history: its members share the past, then live messages.
 *
 *     {$share/<group>/<filter>}_replays   HASH   $share/<group>/<filter> -> its position, as in a session's replay
 *
 *     the first member subscribes with a start ──► replays ──all is read──► live
 *     history ──► a connected member with room, in turn ──► its queue, marked with the share, as any message of the group
 *
 * Invariants:
 *  1. While a group replays, no publish is routed to it.  `index->group_replays` says which groups do, a pure
 *     function of these keys.
 *  2. The position moves in the step that delivers the messages, and the group becomes live in the step that has read
 *     everything.
 *  3. Pending messages of the group's queue (members gave them back) are delivered first.
 *  4. Members come and go, but the position belongs to the group.  It ends with the group's last subscription. */
#ifndef HMQ_SHARE_REPLAY_H
#define HMQ_SHARE_REPLAY_H

#include "server/state.h"
#include "index/index.h"
#include "index/shares.h"

/* Delivers a page to members, if the group replays.  True if more could follow at once. */
bool share_replay_on(server_ctx *ctx, index_t *index, share *s);

#endif
