/* channel.h - persistent pub/sub: what a publish keeps, what a channel has to offer, CHANNEL.* commands.
 *
 *     <channel>         LIST  the messages held, oldest first; expires ttl after the last one
 *     {<channel>}_last  LIST  of one: the last message, heard or not (policy last=on); channel_names.h
 *
 * Invariants:
 *  1. A message is held only on a writable master, for a user who may write the key, and never in a key of another
 *     type: PUBLISH does not turn into WRONGTYPE.
 *  2. Without memory for a message that would have to be kept, the publisher gets OOM and nobody the message. */
#ifndef HMQ_CHANNEL_H
#define HMQ_CHANNEL_H

#include "module.h"

/* The end of a turn of the event loop: whether the server refuses writes is asked anew. */
void channel_before_sleep(void);

int channel_publish_command(server_ctx *ctx, server_string **argv, int argc);
int channel_spublish_command(server_ctx *ctx, server_string **argv, int argc);
int channel_last_command(server_ctx *ctx, server_string **argv, int argc);
int channel_policy_command(server_ctx *ctx, server_string **argv, int argc);

/* The rule for a channel, NULL if none. */
const hmq_rule *channel_rule(const server_string *channel);

/* The last message that the channel keeps; NULL if none.  The caller frees it. */
server_string *channel_last(server_ctx *ctx, server_string *channel, const hmq_rule *rule);

#endif
