/* facts.h - a cache of recently used channels: their rule, and whether they have a subscriber ("heard").
 *
 * A small table by hash of the name.  It answers in constant time where the policy would search.  With it, the server's
 * own PUBLISH is often enough:
 *
 *   A heard channel stays heard until a subscriber leaves, which is seen: UNSUBSCRIBE and related commands, RESET, EXEC
 *   (which may run them), the end of a client's connection.  Each of these invalidates all entries.
 *   An unheard channel stays unheard until a client subscribes: SUBSCRIBE and related commands, EXEC, or such a command
 *   that was delayed.
 *   While clients may be paused nothing is remembered: their commands are seen when they arrive, but run later.
 *   (Shard channels lose subscribers unseen when their slot moves: nothing is remembered of them.) */
#ifndef HMQ_CHANNEL_FACTS_H
#define HMQ_CHANNEL_FACTS_H

#include "server/state.h"

/* The rule for a channel, NULL if none. */
const hmq_rule *channel_rule_of(hmq_slice channel);

/* Empties the cache: the policies have changed. */
void channel_facts_forget(void);

/* Was the channel heard, and has no subscriber of any channel left since? */
bool channel_is_heard(hmq_slice channel);
void channel_note_heard(hmq_slice channel);
/* A subscriber may have left some channel. */
void channel_subscriber_left(void);

/* Did the channel have no subscriber, and has no client subscribed to anything since? */
bool channel_is_unheard(hmq_slice channel);
void channel_note_unheard(hmq_slice channel);
/* A client may have subscribed. */
void channel_subscriber_joined(void);

/* The rule for a channel, NULL if none. */
const hmq_rule *channel_rule(const server_string *channel);

#endif
