/* share.h - shared subscriptions ($share/<group>/<filter>): one member of a group gets each message.
 *
 *     published ──► a connected member, in turn ──► its queue, the record marked with the share
 *          └──────► the group's queue {$share/<group>/<filter>}_messages, while no member is connected
 *                        └──► members, as they connect or subscribe, in order, in portions
 *     a member leaves: messages that its client did not get ──► other members, or the group's queue, in order
 *     the last subscription ends: so does the group's queue
 *
 * Invariants:
 *  1. A message of QoS 1 or 2 is in one queue of the group, a member's or the group's own, until it is acknowledged.
 *  2. While a message is pending in the group's queue, or moves from a member that leaves to others (share_leave.h),
 *     later messages are queued after it.
 *  3. QoS 0 goes to a connected member or to nobody.
 *  4. Members whose queue is full are skipped, and members with more unacknowledged messages than their window (the
 *     largest of SESSION.FETCH … WINDOW) if another has fewer.
 *
 * In a cluster the queues of the members and of the group are in several slots.  A command with a key moves messages
 * between them after it has run, in the same step (server/command_slot.h).
 *
 * Finding a member costs O(log n).  At most SHARE_CREW_MOST are looked at, once for all messages of a step. */
#ifndef HMQ_SHARE_H
#define HMQ_SHARE_H

#include "server/state.h"
#include "index/index.h"
#include "index/shares.h"
#include "routing/delivery.h"
#include "routing/share_crew.h"

/* Delivers a message to one member, or to the group's queue.  True if it was stored, or a client heard it. */
bool share_deliver(server_ctx *ctx, index_t *index, share *s, message *m);

/* The same, but only to a member that has room for it below its window (or its own maximum of messages); false: none has. */
#define SHARE_ROOM 1000
bool share_deliver_if_room(server_ctx *ctx, index_t *index, share *s, message *m);

/* The shares to which the session subscribes, to be read before the session ends.  share_end_if_left ends those without
 * another subscriber once the session is out of the index: their queues are dropped (MQTT 5.0 section 4.8.2). */
typedef struct share_names {
    size_t count;
    server_string **list;
} share_names;
share_names share_names_of(server_ctx *ctx, hmq_slice session);
void share_names_end(server_ctx *ctx, share_names *names); /* frees them */
/* The same for one share that a session unsubscribed from. */
void share_end_if_left(server_ctx *ctx, hmq_slice filter);

/* The session connected, or subscribed (then `only`): hands out pending messages of its groups, as many as fit one
 * step. */
void share_member_joined(server_ctx *ctx, hmq_slice session, hmq_slice only);

/* The session's client accepts this many unacknowledged messages. */
void share_note_window(server_ctx *ctx, hmq_slice session, size_t window);

/* For share_turn.c: may a message be pending in the group's queue?  Hands out `count` of them; true if there are
 * more, and members took all of these. */
bool share_has_pending(server_ctx *ctx, share *s);
bool share_deliver_pending(server_ctx *ctx, index_t *index, share *s, size_t count);

/* For share_leave.c: delivers a message that a member gives back to another, or to the group's queue; and notes that this
 * session continues to give back. */
bool share_redeliver(share_crew *c, message *m);
void share_note_leaver(share *s, hmq_slice session);

#endif
