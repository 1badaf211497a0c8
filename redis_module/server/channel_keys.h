/* channel_keys.h - the names of the keys that belong to a channel.
 *
 * Messages and marks: src/topic/channel_key.h.  State of a producer (routing/publish_producer.h):
 *
 *     the channel has a hash tag of its own     <channel>:producer{<id>}
 *     no '}'                                    {<channel>}_producer{<id>}
 *     a '}' that makes no hash tag              {<encoded>}_producer%{<id>}
 *
 * All but the third are in the channel's slot.  Ids and encoding: as in a session key (src/topic/session_key.h). */
#ifndef HMQ_CHANNEL_KEYS_H
#define HMQ_CHANNEL_KEYS_H

#include "topic/channel_key.h"
#include "server/state.h"

/* The key of this kind.  The caller frees it. */
server_string *channel_key(hmq_slice channel, hmq_channel_key_kind kind);

/* The channel of such a key, NULL if the name is not one of these.  The caller frees it. */
server_string *channel_of_key(hmq_slice name, hmq_channel_key_kind *kind);

/* The key with the state of a producer that publishes to the channel; its id is not empty.  The caller frees it. */
server_string *channel_producer_key(hmq_slice channel, hmq_slice producer);
/* Is that key in the channel's slot? */
bool channel_producer_shares_slot(hmq_slice channel);

#endif
