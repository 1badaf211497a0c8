/* pattern_walk.h - hands a new pattern subscriber what each matching channel holds, a bounded part of them at a time.
 *
 * A walk goes through the names of the held lists in their order, from the pattern's literal prefix on:
 *
 *      | given, or no match | cursor |  still to be looked at  |
 *
 * The first part (three milliseconds) goes out in the step of the PSUBSCRIBE; if that was all, nothing more happens.  Else it goes on in the next
 * turns of the event loop, a millisecond in each for all walks together, so that other clients are served in between,
 * and never more than the receiver's output buffer takes.
 *
 * Invariants:
 *  1. Each channel is handed over once, before any message that is published to it later: whoever publishes to a channel
 *     that a walk has still ahead makes the walk give that channel first.
 *  2. A walk ends when its receiver is gone, unsubscribes the pattern, or takes nothing for holdmq.drain-timeout seconds. */
#ifndef HMQ_PATTERN_WALK_H
#define HMQ_PATTERN_WALK_H

#include "module.h"
#include "push.h"

/* Begins a walk for the receiver's pattern.  `served` (may be NULL): patterns by which the receiver got its channels already.
 * Nothing is given yet. */
void walk_begin(const receiver *to, int db, server_string **served, int served_count);

/* Goes on with all walks, for a bounded time. */
void walk_go_on(void);
/* The same once in a turn of the event loop. */
void walk_before_sleep(void);

/* Somebody is about to publish to the channel. */
void walk_before_publish(server_string *channel);

/* The client sent PUNSUBSCRIBE for these patterns, or (count 0) for all, or RESET. */
void walk_unsubscribes(uint64_t client, server_string **patterns, int count);

#endif
