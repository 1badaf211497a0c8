/* share.h - shared subscriptions ($share/<group>/<filter>): one member of a group gets each message.
 *
 *     published ──► a connected member, in turn ──► its queue, the record marked with the share
 *          └──────► the group's queue {$share/<group>/<filter>}_messages, while no member is connected
 *                        └──► members, as they connect or subscribe, in order, some at a time
 *     a member leaves: what it was given and its client was not ──► other members, or the group's queue, in order
 *     the last subscription ends: so does the group's queue
 *
 * Invariants:
 *  1. A message of QoS 1 or 2 is in one queue of the group, a member's or the group's own, until it is acknowledged.
 *  2. While something waits in the group's queue, or goes from a member that leaves to others (share_leave.h), what is
 *     published goes behind it.
 *  3. QoS 0 goes to a connected member or to nobody.
 *  4. Members whose queue is full are passed by, and those with more than their window (the largest of SESSION.FETCH …
 *     WINDOW) unacknowledged if another has less.
 *
 * In a cluster the members' queues and the group's lie in several slots: what a command with a key moves between them, it
 * moves after it has run, in the same step (server/command_slot.h).
 *
 * Finding a member is O(log n) each, at most SHARE_CREW_MOST are looked at, once for all messages of a step. */
#ifndef HMQ_SHARE_H
#define HMQ_SHARE_H

#include "server/state.h"
#include "index/index.h"
#include "index/shares.h"
#include "routing/delivery.h"
#include "routing/share_crew.h"

/* Hands a message on its way to one member, or to the group's queue.  True if it was stored, or somebody heard it. */
bool share_deliver(server_ctx *ctx, index_t *index, share *s, message *m);

/* The same to a member that has room for it below its window (or so many messages of its own); false: none has. */
#define SHARE_ROOM 1000
bool share_deliver_if_room(server_ctx *ctx, index_t *index, share *s, message *m);

/* The shares that the session subscribes to: taken before it ends, and then, when it is out of the index, ended if nobody
 * else subscribes to them: their queues are dropped (MQTT 5.0 section 4.8.2). */
typedef struct share_names {
    size_t count;
    server_string **list;
} share_names;
share_names share_names_of(server_ctx *ctx, hmq_slice session);
void share_names_end(server_ctx *ctx, share_names *names); /* frees them */
/* The same for one share that a session unsubscribed from. */
void share_end_if_left(server_ctx *ctx, hmq_slice filter);

/* The session connected, or subscribed (then `only`): what waits for its groups is handed out, as much as goes at once. */
void share_member_came(server_ctx *ctx, hmq_slice session, hmq_slice only);

/* The session asked for so many unacknowledged messages. */
void share_note_window(server_ctx *ctx, hmq_slice session, size_t window);

/* For share_turn.c: may something wait in the group's queue; hands out `count` messages of that, true if there are more and
 * members took all of these. */
bool share_something_waits(server_ctx *ctx, share *s);
bool share_hand_out(server_ctx *ctx, index_t *index, share *s, size_t count);

/* For share_leave.c: a message that a member gives back goes to another, or to the group's queue; this session goes on giving
 * back what it was given. */
bool share_deliver_back(share_crew *c, message *m);
void share_note_leaver(share *s, hmq_slice session);

#endif
