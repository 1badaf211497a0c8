/* owner.h - the processes that own sessions: a heartbeat for each, and what happens when it stops.
 *
 *     holdmq_owner:<name>    STRING  the lease in seconds, expiring with it; SESSION.OWNER renews it
 *
 * A session that is opened by an owner with a heartbeat does not end before its owner.  (Its keys have no expiry.
 * Its field `owner_lease` says, also after a restart, that the owner has a heartbeat, and with which lease.)  When
 * the key is gone, the owner is lost: each of its connected sessions is closed as lost, in the order of their keys,
 * in portions (due.h).
 *
 * Invariants:
 *  1. An owner without a heartbeat is never lost: its sessions have leases of their own.
 *  2. Only sessions whose epoch is older than the loss are closed: a process that takes the name again keeps its
 *     sessions.
 *  3. After a load, a restart or a promotion an owner gets one lease before its absence counts.  The same applies,
 *     once between two heartbeats, after a time in which this server was stopped and received nothing.
 *
 * In a cluster the key must be in a slot of the node that has the sessions: the name must have a hash tag. */
#ifndef HMQ_OWNER_H
#define HMQ_OWNER_H

#include "server/state.h"
#include "index/index.h"
#include "index/sessions.h"

int session_owner_command(server_ctx *ctx, server_string **argv, int argc);

/* A client's connection is gone. */
void owner_client_gone(uint64_t client);

/* The lease of an owner with a heartbeat; 0 if it has none. */
long long owner_lease(server_ctx *ctx, hmq_slice name);
/* May the running command read the owner's key, which may be in another slot (server/command_slot.h)? */
bool owner_is_readable(hmq_slice name);

/* If this is the name of an owner's key: its length, and the owner's name. */
bool owner_is_key(hmq_slice key, hmq_slice *name);
/* Another program changed the key: reads it. */
void owner_key_changed(server_ctx *ctx, session_index *sessions, hmq_slice name);

/* The deadline of an owner has passed.  Works until `until_ms`; arms the next one. */
void owner_do_due(server_ctx *ctx, session_index *sessions, owner_entry *owner, long long until_ms);

/* This server takes no writes now: later heartbeats belong to another period of service. */
void owner_period_ends(void);
/* This server begins to take writes: every owner without a heartbeat since then gets one lease. */
void owner_renew_all(session_index *sessions);

/* This server was stopped, or its clock was set: every owner gets one lease, once between two heartbeats. */
void owner_renew_after_pause(session_index *sessions);

extern const index_kind owners_kind;

#endif
