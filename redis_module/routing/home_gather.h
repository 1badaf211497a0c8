/* home_gather.h - publishes with HOME that TOPIC.PIPELINE gathers (routing/gather.h): those that all of their slots take.
 *
 *     TOPIC.PUBLISH <topic> <payload> ... FROM <id> EPOCH <epoch> SLOTS <count> ... HOME <node> <generation>
 *
 * Consecutive publishes of one client to the same slots have the same last words.  These are judged once in a command, and
 * again after each publish that was executed as a command (it may write an epoch, or refuse a slot).
 *
 * Invariant: what is not taken here is executed as a command, which says why. */
#ifndef HMQ_HOME_GATHER_H
#define HMQ_HOME_GATHER_H

#include "server/slots_option.h"
#include "routing/publisher.h"

/* Begins a command, or continues after a publish that was executed as one. */
void home_gather_begin(void);

/* Do all slots take the publish whose words from `at` on are SLOTS and HOME?  Then returns the slots, valid until the next
 * call; NULL: it must be executed as a command. */
slots_option *home_gather_slots(server_ctx *ctx, const hmq_slice *words, size_t count, size_t at,
                                const publisher *from);

#endif
