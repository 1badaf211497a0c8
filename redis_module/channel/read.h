/* read.h - reads what a channel holds: for new subscribers, for CHANNEL.*, and for LRANGE, LLEN and LINDEX.
 *
 * A list command on the channel's name reads held messages if no key of that name exists, and the application is not
 * known to use the name (index/channels.h).  The command filter turns it into HOLDMQ.READ, which decides when it
 * runs, and runs the server's own command. */
#ifndef HMQ_CHANNEL_READ_H
#define HMQ_CHANNEL_READ_H

#include "server/channel_keys.h"

int channel_last_command(server_ctx *ctx, server_string **argv, int argc);
int channel_range_command(server_ctx *ctx, server_string **argv, int argc);
int channel_len_command(server_ctx *ctx, server_string **argv, int argc);
int channel_key_command(server_ctx *ctx, server_string **argv, int argc);
int channel_policy_command(server_ctx *ctx, server_string **argv, int argc);
int channel_alias_command(server_ctx *ctx, server_string **argv, int argc);

/* The message for a new subscriber: the most recent one of the channel, if it is kept; else NULL.  The caller frees
 * it. */
server_string *channel_last(server_ctx *ctx, server_string *channel, const hmq_rule *rule);

/* Do list commands on the channel's name show what is held in this database? */
bool channel_shows_held(server_ctx *ctx, int db, server_string *channel);

/* The list commands that HOLDMQ.READ replaces. */
bool channel_is_list_read(hmq_slice command, int argc);

#endif
