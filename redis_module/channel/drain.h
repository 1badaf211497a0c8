/* drain.h - hands a channel's backlog (deliver=held) over to one new subscriber, in slices.
 *
 *      list of the channel:   [ backlog, promised to the receiver | published since, for all ]
 *                               `left` messages                     the rest
 *
 * The first slice is sent in the step of the SUBSCRIBE; if that was all, the list is removed.  Otherwise the rest
 * follows, one slice per turn of the event loop, at most as much as the receiver's output buffer takes.  Until the end,
 * every message published to the channel is appended to the list instead of being sent, so that the order is kept.
 * When its turn comes it is published to all subscribers.
 *
 * If the receiver is gone (or unsubscribes, or takes nothing for holdmq.drain-timeout seconds), the backlog stays in
 * the list for the next subscriber.  Later messages go to the current subscribers, and stay if there is none.  A client
 * that subscribes during a drain gets nothing of the backlog, which is promised to the first subscriber.
 *
 * Each slice is removed from the list by one LPOP, which replicates. */
#ifndef HMQ_DRAIN_H
#define HMQ_DRAIN_H

#include "server/push.h"
#include "server/state.h"

/* Hands over the channel's messages in this database. */
void drain_begin(const receiver *to, int db, server_string *channel);

/* Is any backlog being handed over? */
bool drain_any_active(void);
/* Is the channel's backlog being handed over? */
bool drain_is_active(int db, hmq_slice channel);
/* `count` messages were trimmed from the head of the list. */
void drain_note_trimmed(int db, hmq_slice channel, size_t count);

/* The client sent UNSUBSCRIBE (or PUNSUBSCRIBE, SUNSUBSCRIBE) for these names, or (count 0) for all. */
void drain_unsubscribes(uint64_t client, push_kind kind, server_string **names, int count);
/* Ends all drains, because databases were swapped, or the server became a replica. */
void drain_forget_all(void);

/* Sends the next slices: once in a turn of the event loop. */
void drain_before_sleep(void);

#endif
