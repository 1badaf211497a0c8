/* drain.h - hands a channel's backlog (deliver=held) over to one new subscriber, in slices.
 *
 *      list of the channel:   [ backlog, promised to the receiver | published since, for everybody ]
 *                               `left` messages                     the rest
 *
 * The first slice goes out in the step of the SUBSCRIBE; if that was all, the list is gone and nothing more happens.  Else
 * the rest follows slice by slice, a slice in a turn of the event loop, no more than the receiver's output buffer has room
 * for.  Until the end every message published to the channel goes to the list's tail instead of to the subscribers, so
 * that it keeps its place; when its turn comes it is published to all of them.
 *
 * If the receiver goes away (or unsubscribes, or takes nothing for holdmq.drain-timeout seconds), the backlog stays in the list for the next subscriber; what was published
 * since goes to those who listen, and stays if nobody does.  A subscriber who comes during a drain gets nothing of the
 * backlog: it is promised.
 *
 * Each slice leaves the list by one LPOP, which replicates. */
#ifndef HMQ_DRAIN_H
#define HMQ_DRAIN_H

#include "server/push.h"
#include "server/state.h"

/* Hands over what the channel holds in this database. */
void drain_begin(const receiver *to, int db, server_string *channel);

/* Is any backlog being handed over? */
bool drain_any(void);
/* Is the channel's backlog being handed over? */
bool drain_is_active(int db, hmq_slice channel);
/* `count` messages were trimmed from the head of the list. */
void drain_trimmed(int db, hmq_slice channel, size_t count);

/* The client sent UNSUBSCRIBE (or PUNSUBSCRIBE, SUNSUBSCRIBE) for these names, or (count 0) for all. */
void drain_unsubscribes(uint64_t client, push_kind kind, server_string **names, int count);
/* Databases were swapped, or the server became a replica: what was promised is not where it was. */
void drain_forget_all(void);

/* The next slices: once in a turn of the event loop. */
void drain_before_sleep(void);

#endif
