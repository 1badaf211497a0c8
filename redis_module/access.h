/* access.h - what a client's user may do, as far as interception has to know it before the server asks.
 *
 * A rewritten PUBLISH is judged by the server as CHANNEL.PUBLISH.  So that nobody loses what he had, PUBLISH is
 * rewritten only for users who may run both on this channel; so that nobody gains what he had not, CHANNEL.PUBLISH wants the
 * right to PUBLISH, a message is held only if the user may write the list, and handed over only if the user may read it (and,
 * where it leaves the list, write it).
 *
 * Verdicts are remembered by client until the command filter saw an ACL command, or AUTH, HELLO or RESET of that client.
 * The server's own ACL DRYRUN is asked; where its answer depends on the channel it is asked again each time.
 *
 * Before 7.2 the filter does not know the client: then the right is there only if all users of the server have it. */
#ifndef HMQ_ACCESS_H
#define HMQ_ACCESS_H

#include "module.h"

/* May (S)PUBLISH to this channel by this client (0: unknown) be rewritten? */
bool access_may_intercept(uint64_t client, server_string *channel, bool sharded);

/* Must this client's PUBLISH be left to the server's own error, because a RESP2 subscriber may not publish? */
bool access_is_resp2_subscriber(uint64_t client);
/* The client sent a subscribing command (so that only such clients are asked). */
void access_saw_subscribe(uint64_t client);

/* A name that nobody uses: random, the same as long as the server runs.  The caller frees it. */
server_string *access_probe_name(void);

/* May the user behind the running command publish to the channel by the stock command; may he write, or read, this key? */
bool access_may_publish(server_ctx *ctx, server_string *channel, bool sharded);
bool access_may_write(server_ctx *ctx, server_string *key);
bool access_may_read_here(server_ctx *ctx, server_string *key);

/* May this client (0: unknown) be given what the key holds?  `taking`: and will it leave the key? */
bool access_may_read(uint64_t client, server_string *key, bool taking);

void access_forget_client(uint64_t client);
void access_forget_all(void);
/* The client that runs a script now: commands of the script come under another id. */
void access_script_caller(uint64_t client);

/* Inside MULTI the client asked to become another user: what it queues from now on is not rewritten. */
void access_user_may_change(uint64_t client);
/* Its transaction is over. */
void access_transaction_ends(uint64_t client);

#endif
