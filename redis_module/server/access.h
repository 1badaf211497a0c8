/* access.h - what a client's user may do, as far as the server does not ask by itself.  What the arguments of each command
 * name is in command_access.h.
 *
 * A rewritten PUBLISH is judged by the server as CHANNEL.PUBLISH.  So that nobody loses what he had, PUBLISH is
 * rewritten only for users who may run both on this channel; so that nobody gains what he had not, CHANNEL.PUBLISH wants the
 * right to PUBLISH, a message is held only if the user may write the list, and handed over only if the user may read it (and,
 * where it leaves the list, write it).
 *
 * Verdicts are remembered by client until the command filter saw an ACL command, or AUTH, HELLO or RESET of that client.
 * The server judges; whoever may not publish to any channel is judged again for each.
 *
 * Before 7.2 the filter does not know the client: then the right is there only if all users of the server have it. */
#ifndef HMQ_ACCESS_H
#define HMQ_ACCESS_H

#include "server/push.h"
#include "server/state.h"

/* May (S)PUBLISH to this channel by this client (0: unknown) be rewritten? */
bool access_may_intercept(uint64_t client, server_string *channel, bool sharded);

/* Must this client's PUBLISH be left to the server's own error, because a RESP2 subscriber may not publish? */
bool access_is_resp2_subscriber(uint64_t client);
/* The client sent a subscribing command (so that only such clients are asked). */
void access_saw_subscribe(uint64_t client);

/* May this client (0: unknown) publish by the stock command; may it write this key; may it see by LRANGE what is held? */
bool access_may_publish_as(uint64_t client, server_string *channel, bool sharded);
bool access_may_write_as(uint64_t client, server_string *key);
bool access_may_see_held(uint64_t client, server_string *channel);

/* May the user behind the running command publish to the channel by the stock command; may he write, or read, this key? */
bool access_may_publish(server_ctx *ctx, server_string *channel, bool sharded);
bool access_may_write(server_ctx *ctx, server_string *key);
bool access_may_read_here(server_ctx *ctx, server_string *key);

/* May this client (0: unknown) be given what the key holds?  `taking`: and will it leave the key? */
bool access_may_read(uint64_t client, server_string *key, bool taking);

/* Who runs the command, if a key or a channel is denied to him, or, `is_dangerous`, what is dangerous where the server has no
 * category for that: true, and *user is his name, which the caller frees; NULL: a script runs, and whose it is cannot be
 * known.  False: nothing of it is denied, or the command comes from no client (the replication stream, a file that is
 * loaded, this module). */
bool access_is_restricted(server_ctx *ctx, bool is_dangerous, server_string **user);
/* Commands that this module calls from now on are judged as those of the context's client; NULL: that is over. */
void access_call_for(server_ctx *ctx);
/* Is the running command one of those?  The server has not judged its arguments. */
bool access_is_called(void);
/* May a user with this name (NULL: no) use the topic (`is_pattern`: only if one of his channel patterns is equal to it), use
 * the key, read all keys, run commands that the server should have in its category @dangerous? */
bool access_user_may_use_topic(server_string *user, hmq_slice topic, bool is_pattern);
bool access_user_may_use_key(server_string *user, server_string *key, uint64_t rights);
bool access_user_may_read_all(server_string *user);
bool access_user_may_run_dangerous(server_string *user);
/* Notes a refusal where the server notes its own: in the ACL log.  `reason`: SERVER_ACL_LOG_... */
void access_note_refusal(server_ctx *ctx, server_string *user, hmq_slice object, int reason);

void access_forget_client(uint64_t client);
void access_forget_all(void);
/* Clients are paused for so long (CLIENT PAUSE): what was seen of their commands runs later, unseen, and may change their
 * users.  Nothing is remembered meanwhile. */
void access_pause_comes(long long timeout_ms);
bool access_may_pause(uint64_t client);
/* ... UNSUBSCRIBE or its kin? */
bool access_may_unsubscribe(uint64_t client, push_kind kind);
/* The client may run a script next.  Commands of a script come under another id: whose script it is then says the server
 * (server/internals.h), of those seen here; where it does not, the right is there only if all users have it. */
void access_script_caller(uint64_t client);

/* Inside MULTI the client asked to become another user: what it queues from now on is not rewritten. */
void access_user_may_change(uint64_t client);
/* Somebody (perhaps) queued a command that changes users, or who he is: from now on it is looked at whether a transaction runs. */
void access_transaction_changes_users(void);
/* Its transaction is over. */
void access_transaction_ends(uint64_t client);

/* Does the filter stand for topics that nobody has named?  It is judged as a pattern then. */
bool access_has_wildcard(hmq_slice filter);

#endif
