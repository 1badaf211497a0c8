/* owner.h - the processes that own sessions: a heartbeat for each, and what happens when it stops.
 *
 *     holdmq_owner:<name>    STRING  the lease in seconds, expiring with it; SESSION.OWNER renews it
 *
 * A session that is opened by an owner that beats does not end as long as that one does (its keys have no expiry; its field
 * `owner_lease` tells, also after a restart, that the owner beat, and with which lease).  When the key is gone, the owner is
 * lost: each of its connected sessions is closed as lost, in the order of their keys, some at a time (due.h).
 *
 * Invariants:
 *  1. An owner that never beat is never lost: its sessions live by their own leases.
 *  2. Only sessions whose epoch is older than the loss are closed: whoever takes the name anew keeps his.
 *  3. After a load, a restart or a promotion an owner has its lease once more before its absence counts; also, once
 *     between two heartbeats, after a time in which this server stood still and could have heard nobody.
 *
 * In a cluster the key has to lie in a slot of the node that has the sessions: the name must have a hash tag. */
#ifndef HMQ_OWNER_H
#define HMQ_OWNER_H

#include "server/state.h"
#include "index/index.h"
#include "index/sessions.h"

int session_owner_command(server_ctx *ctx, server_string **argv, int argc);

/* A client's connection is gone. */
void owner_client_gone(uint64_t client);

/* The lease of an owner that beats, 0 if it does not. */
long long owner_lease(server_ctx *ctx, hmq_slice name);
/* May the running command ask for it?  The owner's key may lie in another slot (server/command_slot.h). */
bool owner_is_readable(hmq_slice name);

/* If this is the name of an owner's key: its length, and the owner's name. */
bool owner_is_key(hmq_slice key, hmq_slice *name);
/* The key was changed by others: looks at it. */
void owner_key_changed(server_ctx *ctx, session_index *sessions, hmq_slice name);

/* The deadline of an owner has passed.  Works until `until_ms`; arms the next one. */
void owner_do_due(server_ctx *ctx, session_index *sessions, owner_entry *owner, long long until_ms);

/* This server takes no writes now: whoever beats later is heard in another period of service. */
void owner_period_ends(void);
/* This server begins to take writes: every owner that was not heard since has its lease once more. */
void owner_regain_all(session_index *sessions);

/* This server stood still, or its clock leapt: every owner that did not have it has its lease once more. */
void owner_stood_still(session_index *sessions);

extern const index_kind owners_kind;

#endif
