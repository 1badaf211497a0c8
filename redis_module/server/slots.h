/* slots.h - which slots of the cluster this node serves, and which are on their way between two nodes.
 *
 * Where a slot is moved key by key (CLUSTER SETSLOT ... MIGRATING/IMPORTING, MIGRATE) the keys of one session are for a
 * while on two nodes.  The server sends a command to the new node as soon as the old one lacks the key that the command
 * names, and the key of a session, {c}, never exists: the new node would begin a second session.  So whatever concerns a
 * session asks here first, and waits (TRYAGAIN) until its slot has settled.
 *
 * Invariants:
 *  1. The server's own view (its line of CLUSTER NODES) is the only source; it is read again before the next use after
 *     each CLUSTER command and each slot that Valkey moved as a whole, once a second (ten times while a slot is on its
 *     way), and before anything is refused.
 *  2. So a refusal is never older than the millisecond.  What is served although it is not can only be a slot that was
 *     taken away by other ways (a failover, SETSLOT NODE elsewhere without MIGRATING here), for a second at most; commands
 *     with a key are then refused by the server itself.
 *
 * Reading is O(nodes of the cluster), about 30 us with three; without a cluster everything is served. */
#ifndef HMQ_SLOTS_H
#define HMQ_SLOTS_H

#include "topic/slot.h"
#include "server/state.h"

typedef enum slot_state {
    SLOT_SERVED,    /* this node's, and at rest */
    SLOT_MIGRATING, /* this node's, on its way to another */
    SLOT_IMPORTING, /* another's, on its way to this node */
    SLOT_ELSEWHERE, /* another's, or nobody's */
} slot_state;

void slots_start(server_ctx *ctx);

/* A CLUSTER command was seen: it is about to run, or (in_transaction) will with some EXEC. */
void slots_command_comes(bool in_transaction);
/* An EXEC was seen. */
void slots_transaction_comes(void);
/* Once in a turn of the event loop. */
void slots_before_sleep(void);

slot_state slots_state(unsigned slot);

/* The slots that are served, for sets; read again if some of `wanted` (may be NULL) are not. */
const hmq_slot_set *slots_served(const hmq_slot_set *wanted);

/* Does the cluster work, as this node sees it?  One that is cut off from the others does not: it may have been replaced.
 * The server refuses commands with keys then; whoever serves others asks here.  At most a tenth of a second old. */
bool slots_cluster_works(void);

/* "host:port" of the node to which a slot is on its way, empty if it is not known.  Valid until the next call. */
const char *slots_target(unsigned slot);

/* "host:port" of the node that has the slot, empty if nobody has.  Valid until the next call.  O(nodes * their ranges). */
const char *slots_owner(unsigned slot);

/* Views are numbered, from 1 on: the present one, and the last one that found this slot in another state than before.  0
 * without a cluster.  Whoever remembers something of a slot asks after slots_state. */
uint64_t slots_view(void);
uint64_t slots_changed(unsigned slot);

/* The slot of a session, or of any key; 0 without a cluster. */
unsigned slots_of_key(hmq_slice key);

/* May a command about this session run here now?  False after replying TRYAGAIN. */
bool slots_check_session(server_ctx *ctx, hmq_slice session);

#endif
