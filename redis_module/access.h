/* access.h - what a client's user may do, as far as interception has to know it before the server asks.
 *
 * A rewritten PUBLISH is judged by the server as CHANNEL.PUBLISH.  So that nobody loses what he had, PUBLISH is
 * rewritten only for users who may run both; so that nobody gains what he had not, a message is held only if the user
 * may write the key.  Verdicts are remembered by client until an ACL command, or AUTH, HELLO or RESET of that client,
 * was seen by the command filter. */
#ifndef HMQ_ACCESS_H
#define HMQ_ACCESS_H

#include "module.h"

/* May PUBLISH (SPUBLISH if sharded) of this client be rewritten?  client 0: unknown (servers before 7.2), then only if
 * all users are alike in it. */
bool access_may_intercept(uint64_t client, bool sharded);

/* Must this client's PUBLISH be left to the server's own error, because a RESP2 subscriber may not publish? */
bool access_is_resp2_subscriber(uint64_t client);
/* The client sent a subscribing command (so that only such clients are asked). */
void access_saw_subscribe(uint64_t client);

/* A name that nobody uses: random, the same as long as the server runs.  The caller frees it. */
server_string *access_probe_name(void);

/* May the user behind the running command write this key? */
bool access_may_write(server_ctx *ctx, server_string *key);

void access_forget_client(uint64_t client);
void access_forget_all(void);
/* The client that runs a script now: commands of the script come under another id. */
void access_script_caller(uint64_t client);

#endif
