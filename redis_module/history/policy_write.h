/* policy_write.h - writes policies of history (history/store.h), and tells of them in replies.
 *
 * In a cluster a policy is written for each shard that is here, under a key of its own.  What is written replaces what was
 * there; replicas get UNLINK and HSET.  The index reads it anew, which may free the store that it had. */
#ifndef HMQ_HISTORY_POLICY_WRITE_H
#define HMQ_HISTORY_POLICY_WRITE_H

#include "index/index.h"
#include "history/store.h"

/* What the store says, for this shard (without a cluster: for all).  The index is not told. */
void history_policy_write(server_ctx *ctx, const history_store *store, unsigned shard);

/* In a cluster: a shard that was written to has a copy of the policy, so that who gets its slot knows it.  The last thing
 * that a command does: the index may be read anew. */
void history_policy_keep(server_ctx *ctx, const history_store *store, unsigned shard);

/* So that it selects nothing more and is not found, though all that it has is still there.  Copies that are so already
 * stay as they are; those that are not here, too.  The index is not told. */
void history_policy_mark_removed(server_ctx *ctx, const history_store *store);

/* For the moment when it is written: no smaller than what is there. */
long long history_changed_now(const history_store *own);

/* Begins a map with what the policy says of a store: its name, filters, numbers, and in a cluster seed and time of change;
 * `more` fields are to follow. */
void history_reply_policy(server_ctx *ctx, const history_store *store, long more);
/* A field that is a number. */
void history_reply_number(server_ctx *ctx, const char *name, uint64_t number);

#endif
