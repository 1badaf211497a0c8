/* policy_write.h - writes policies of history (history/store.h), and replies them.
 *
 * In a cluster a policy is written for each shard that is here, under a key of its own.  It replaces the former one;
 * replicas get UNLINK and HSET.  The index reads it again, which may free the former store. */
#ifndef HMQ_HISTORY_POLICY_WRITE_H
#define HMQ_HISTORY_POLICY_WRITE_H

#include "index/index.h"
#include "history/store.h"

/* Writes the store's policy for this shard (without a cluster: for all).  The index is not notified. */
void history_policy_write(server_ctx *ctx, const history_store *store, unsigned shard);

/* In a cluster: gives a shard that was written to a copy of the policy, so that the next node of its slot knows it.
 * The last action of a command: the index may be read again. */
void history_policy_copy_to_shard(server_ctx *ctx, const history_store *store, unsigned shard);

/* Marks the store as removed: it selects nothing more and is not found, although its keys still exist.  Copies that
 * are marked already, and those that are not here, stay unchanged.  The index is not notified. */
void history_policy_mark_removed(server_ctx *ctx, const history_store *store);

/* The time for `changed`: not smaller than the current one. */
long long history_changed_now(const history_store *own);

/* Begins a map with what the policy says of a store: its name, filters, numbers, and in a cluster seed and time of change;
 * `more` fields are to follow. */
void history_reply_policy(server_ctx *ctx, const history_store *store, long more);
#endif
