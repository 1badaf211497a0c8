/* pattern_walk.h - hands many channels over to a new subscriber, a bounded part at a time.
 *
 * A walk goes through the channels that keep something, in their order and from the pattern's literal prefix on; or
 * through the many names of a SUBSCRIBE:
 *
 *      | handed over, or no match | cursor |  not looked at yet  |
 *
 * The first part is sent in the step of the command: two milliseconds for all such commands of one turn of the event
 * loop.  If that was all, nothing more happens.  Otherwise it continues in the next turns, with a millisecond in each
 * for all walks together, so that other clients are served in between, and never more than the receiver's output
 * buffer takes.
 *
 * Invariants:
 *  1. Each channel is handed over once, before any message that is published to it later.  A publish to a channel
 *     that a walk has not reached makes the walk hand over that channel first.
 *  2. A walk ends when its receiver is gone, unsubscribes the pattern, or takes nothing for holdmq.drain-timeout
 *     seconds. */
#ifndef HMQ_PATTERN_WALK_H
#define HMQ_PATTERN_WALK_H

#include "server/push.h"
#include "server/state.h"

/* Begins a walk for the receiver's pattern.  Nothing is sent yet. */
void walk_begin(const receiver *to, int db);
/* The same for the patterns of the only subscriber, whose id is not known. */
void walk_begin_unknown(int db, server_string **patterns, size_t count);

/* The same for the names of a (S)SUBSCRIBE. */
void walk_begin_names(const receiver *to, int db, server_string **names, size_t count);

/* Continues the walks that began in this turn, for a bounded time. */
void walk_continue(void);
/* Continues all walks; at the end of a turn of the event loop. */
void walk_before_sleep(void);

bool walk_any_active(void);

/* A message is about to be published to the channel. */
void walk_before_publish(server_string *channel, bool sharded);

/* The client sent UNSUBSCRIBE (or PUNSUBSCRIBE, SUNSUBSCRIBE) for these names, or (count 0) for all, or RESET. */
void walk_unsubscribes(uint64_t client, push_kind kind, server_string **names, int count);

#endif
