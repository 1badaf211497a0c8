/* access.h - what a client's user may do, where the server does not check it by itself.  command_access.h says what the
 * arguments of each command name.
 *
 * The server checks a rewritten PUBLISH as CHANNEL.PUBLISH.  No user loses a right: PUBLISH is rewritten only for
 * users who may run both commands on this channel.  No user gains one: CHANNEL.PUBLISH requires the right to PUBLISH,
 * a message is held only if the user may write the list, and handed over only if the user may read the list (and
 * write it, if the message leaves it).
 *
 * Verdicts are remembered per client until the command filter sees an ACL command, or AUTH, HELLO or RESET of that
 * client.  A user who may not publish to all channels is checked again for each channel.
 *
 * Before 7.2 the filter does not know the client.  A right then counts only if all users of the server have it. */
#ifndef HMQ_ACCESS_H
#define HMQ_ACCESS_H

#include "server/push.h"
#include "server/state.h"

/* May (S)PUBLISH to this channel by this client (0: unknown) be rewritten? */
bool access_may_intercept(uint64_t client, server_string *channel, bool sharded);
/* May it become HOLDMQ.SPUBLISH, too? */
bool access_may_queue(uint64_t client, server_string *channel);

/* Must the server answer this client's PUBLISH with its own error, because a RESP2 subscriber may not publish? */
bool access_is_resp2_subscriber(uint64_t client);
/* The client sent a subscribing command.  Other clients are never looked up. */
void access_note_subscribe(uint64_t client);

/* May this client (0: unknown) publish by the stock command, write this key, or see by LRANGE what is held? */
bool access_may_publish_as(uint64_t client, server_string *channel, bool sharded);
bool access_may_write_as(uint64_t client, server_string *key);
bool access_may_see_held(uint64_t client, server_string *channel);

/* May the user of the running command publish to the channel by the stock command, write this key, or read it? */
bool access_may_publish(server_ctx *ctx, server_string *channel, bool sharded);
bool access_may_write(server_ctx *ctx, server_string *key);
bool access_may_read_here(server_ctx *ctx, server_string *key);

/* May this client (0: unknown) get what the key holds?  `taking`: the message is then removed from the key. */
bool access_may_read(uint64_t client, server_string *key, bool taking);

/* True if a key or a channel may be denied to the user who runs the command, or, with `is_dangerous`, dangerous commands
 * where the server has no category for them.  *user is the user's name, which the caller frees; NULL if a script runs
 * whose user is not known.  False if nothing is denied, or no client sent the command (the replication stream, a file
 * that is loaded, this module). */
bool access_is_restricted(server_ctx *ctx, bool is_dangerous, server_string **user);
/* From now on, commands that this module calls are checked as those of the context's client; NULL ends that. */
void access_run_calls_as(server_ctx *ctx);
/* Is the running command one of these?  The server has not checked its arguments. */
bool access_is_called(void);
/* The name of the user who runs the command; NULL if it is not known.  The caller frees it. */
server_string *access_user_of_runner(server_ctx *ctx);
/* May the user with this name (NULL: no) use the topic (with `is_pattern` only if one of the user's channel patterns
 * is equal to it), use the key, read all keys, or run commands that the server should have in its category
 * @dangerous? */
bool access_user_may_use_topic(server_string *user, hmq_slice topic, bool is_pattern);
bool access_user_may_use_key(server_string *user, server_string *key, uint64_t rights);
bool access_user_may_read_all(server_string *user);
bool access_user_may_run_dangerous(server_string *user);
/* Notes a refusal where the server notes its own: in the ACL log.  `reason`: SERVER_ACL_LOG_... */
void access_note_refusal(server_ctx *ctx, server_string *user, hmq_slice object, int reason);

void access_forget_client(uint64_t client);
void access_forget_all(void);
/* CLIENT PAUSE was seen, for this time.  Commands that arrive during the pause run later, unseen, and may change users or
 * subscriptions.  So nothing is remembered until it ends. */
void access_note_pause(long long timeout_ms);
/* A pause is under way that was not seen: the same until the server says that it has ended. */
void access_note_unseen_pause(void);
bool access_may_be_paused(void);
bool access_may_pause(uint64_t client);
/* May the client run UNSUBSCRIBE, or its relative of this kind? */
bool access_may_unsubscribe(uint64_t client, push_kind kind);
/* The client may run a script next.  Commands of a script have another client id.  The server says for which of the
 * clients noted here a script runs (server/internals.h); where it cannot, a right counts only if all users have it. */
void access_script_caller(uint64_t client);
/* The same for a client that the command filter has not seen, if the running script is that client's. */
void access_look_for_script_caller(uint64_t client);

/* Inside MULTI, the client asked to become another user.  Commands that it queues from now on are not rewritten. */
void access_user_may_change(uint64_t client);
/* A client may have queued a command that changes users, or its own user.  From now on the filter checks whether a
 * transaction runs. */
void access_transaction_changes_users(void);
/* Its transaction is over. */
void access_transaction_ends(uint64_t client);

/* Does the filter have a wildcard?  Then it is checked as a pattern. */
bool access_has_wildcard(hmq_slice filter);

#endif
