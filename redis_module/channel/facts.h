/* facts.h - what is remembered of the channels that were published to last: their rule, and whether somebody hears.
 *
 * A small table by hash of the name; it answers in constant time what the policy would search for, and lets a PUBLISH stay
 * the server's own:
 *
 *   A channel that was heard goes on being heard until a subscriber leaves.  Leaving is seen: UNSUBSCRIBE and its kin, RESET,
 *   EXEC (which may run them), a client that disconnects.  Each of them makes all that was remembered of hearing void.
 *   A channel that was not heard is not heard until somebody subscribes: SUBSCRIBE and its kin, EXEC, a command of theirs that
 *   was held up.
 *   (Shard channels lose subscribers when their slot moves, unseen: nothing is remembered of them.) */
#ifndef HMQ_CHANNEL_FACTS_H
#define HMQ_CHANNEL_FACTS_H

#include "server/state.h"

/* The rule for a channel, NULL if none. */
const hmq_rule *channel_rule_of(hmq_slice channel);

/* The policies have changed. */
void channel_facts_forget(void);

/* Was it heard, and has no subscriber left since? */
bool channel_is_heard(hmq_slice channel);
void channel_was_heard(hmq_slice channel);
/* A subscriber may have left some channel. */
void channel_subscriber_left(void);

/* Did nobody hear it, and has nobody subscribed to anything since? */
bool channel_is_unheard(hmq_slice channel);
void channel_was_unheard(hmq_slice channel);
/* Somebody may have subscribed. */
void channel_subscriber_came(void);

/* The rule for a channel, NULL if none. */
const hmq_rule *channel_rule(const server_string *channel);

#endif
