/* channel_names.h - the one place that builds the names of keys that belong to a channel.
 *
 *     the channel has                       its last message     what is known of a producer (publish_producer.h)
 *     a hash tag of its own                 <channel>:last       <channel>:producer{<id>}
 *     no '}'                                {<channel>}_last     {<channel>}_producer{<id>}
 *     a '}' that makes no hash tag          {<encoded>}_last%    {<encoded>}_producer%{<id>}
 *
 * All but those of the third kind are in the channel's slot.  Ids and what is encoded: as in a session key
 * (src/session_key.h).  So no two channels, or producers, share a name. */
#ifndef HMQ_CHANNEL_NAMES_H
#define HMQ_CHANNEL_NAMES_H

#include "module.h"

/* Are its keys in its slot? */
bool channel_names_share_slot(hmq_slice channel);

/* The list that keeps the last message of a channel with last=on.  The caller frees it. */
server_string *channel_last_key(hmq_slice channel);
/* The channel of such a name; false if it is none. */
bool channel_of_last_key(hmq_slice name, char *channel, size_t capacity, size_t *len);

/* What is known of a producer that publishes to the channel; its id is not empty.  The caller frees it. */
server_string *channel_producer_key(hmq_slice channel, hmq_slice producer);

#endif
