/* channel.h - persistent pub/sub: what happens to a published message, and the commands CHANNEL.PUBLISH,
 * CHANNEL.SPUBLISH.
 *
 * Invariants:
 *  1. A message is held only on a writable primary, and for a user who may write a key with the channel's name.  No
 *     key of the application is written, and PUBLISH never fails because of a key.
 *  2. If there is no memory for a message that must be kept, the publisher gets OOM and no subscriber gets the message.
 *  3. A message that is not kept supersedes the kept ones: a new subscriber never gets an older message after it. */
#ifndef HMQ_CHANNEL_H
#define HMQ_CHANNEL_H

#include "server/state.h"

int channel_publish_command(server_ctx *ctx, server_string **argv, int argc);
int channel_spublish_command(server_ctx *ctx, server_string **argv, int argc);

/* What happens to a PUBLISH of a connected client. */
typedef enum channel_route {
    CHANNEL_STOCK, /* the server's own PUBLISH is enough; the message is kept already, if it must be */
    CHANNEL_REWRITTEN /* CHANNEL.PUBLISH: only this command knows the receivers, or can refuse the message */
} channel_route;

/* The client's PUBLISH is about to run, outside of transactions and scripts, and the server will not refuse it.
 * Keeps the message first if it is known that it must be kept. */
channel_route channel_store_before_publish(uint64_t client, int db, server_string *channel, server_string *message,
                                           bool sharded);

/* The same for the active dry run: counts the message if it is certain that it has no receiver. */
bool channel_dry_run_first(uint64_t client, int db, server_string *channel, server_string *message, bool sharded);

/* Is the channel's slot moving to another node?  The server still publishes there, but CHANNEL.SPUBLISH may not. */
bool channel_slot_is_moving(server_string *channel);

/* The message will be published, but may not be kept. */
void channel_note_not_stored(server_string *channel);

#endif
