/* slots.h - which slots of the cluster this node serves, and which are moving between two nodes.
 *
 * While a slot is moved key by key (CLUSTER SETSLOT ... MIGRATING/IMPORTING, MIGRATE), the keys of one session are on
 * two nodes.  The server redirects a command to the new node as soon as the old one lacks the key that the command names.
 * The key of a session, {c}, never exists, so the new node would begin a second session.  Therefore each command about
 * a session checks its slot here first, and is refused (TRYAGAIN) until the move is complete.
 *
 * Invariants:
 *  1. The server's own view (its line of CLUSTER NODES) is the only source.  It is read again before the next use
 *     after each CLUSTER command and each slot that Valkey moved as a whole, once a second (ten times while a slot
 *     moves), and before anything is refused.  So a refusal is never older than a millisecond.
 *  2. A slot is served (slots_state, slots_served) only if the server itself says so.  Another node may take a slot
 *     without a command here (a failover, SETSLOT NODE elsewhere): the server learns it on the cluster bus, without an
 *     event for modules.  From 8.0 on, Valkey carries out SETSLOT when its replicas have it, at any time after this
 *     module saw the command.  So the server is asked about each slot: by its own functions (internals.h), else by a call
 *     that names a key of the slot.
 *  3. Each command asks again.  Only a command that names more than 32 slots uses an answer of the same
 *     millisecond, for slots in which it finds nothing to do.
 *
 * Reading the view costs O(nodes of the cluster), about 120 us with three nodes.  Asking about a slot costs 5 ns, by a call
 * about 1 us.  Without a cluster everything is served. */
#ifndef HMQ_SLOTS_H
#define HMQ_SLOTS_H

#include "topic/slot.h"
#include "server/state.h"

typedef enum slot_state {
    SLOT_SERVED,    /* this node's, and not moving */
    SLOT_MIGRATING, /* this node's, moving to another */
    SLOT_IMPORTING, /* another node's, moving to this node */
    SLOT_ELSEWHERE, /* another node's, or no node has it */
} slot_state;

void slots_start(server_ctx *ctx);

/* A CLUSTER command was seen.  It is about to run, or, with in_transaction, will run with an EXEC. */
void slots_note_command(bool in_transaction);
/* An EXEC was seen. */
void slots_note_exec(void);
/* Once in a turn of the event loop. */
void slots_before_sleep(void);

/* Calls `changes` before slots may change by a command or event here: a view that it reads is that before the change. */
void slots_watch(void (*changes)(void));
void slots_read_again(void);

/* Is HOLDMQ.INTERNAL running only because slots.c asks the server about a slot? */
bool slots_is_asking_server(void);

slot_state slots_state(unsigned slot);

/* The same, only by the view, for a slot that the server itself checks: that of the running command's key, or of a call
 * that follows. */
slot_state slots_state_in_view(unsigned slot);

/* The served slots, as a set.  The server says that it serves those of `wanted` that are among them. */
const hmq_slot_set *slots_served(const hmq_slot_set *wanted);
/* The slots that this command has found to be served so far. */
const hmq_slot_set *slots_served_so_far(void);

/* Does the cluster work, as this node sees it?  A node that is cut off may have been replaced, and does not count as
 * working.  The server then refuses commands with keys; commands without keys ask here.  At most a tenth of a second
 * old. */
bool slots_cluster_is_up(void);

/* "host:port" of the node to which a slot is moving, empty if it is not known.  Valid until the next call. */
const char *slots_target(unsigned slot);

/* "host:port" of the node that has the slot, empty if none has.  Valid until the next call.  O(nodes * their ranges). */
const char *slots_owner(unsigned slot);

#define SLOTS_ADDRESS_MAX_BYTES 280
/* Calls for each range of slots that some node has, in no order.  O(nodes * their ranges). */
void slots_each_owned(void (*take)(void *context, unsigned first, unsigned last, const char *address), void *context);

#define SLOTS_NODE_ID_BYTES 40
/* Does the server say that this node has a slot, and what its id is?  At most a second old; the id is valid until the
 * next view. */
bool slots_owns_any(void);
hmq_slice slots_own_id(void);
/* Has the node with this id a slot, as this server sees the cluster now?  O(nodes of the cluster). */
bool slots_node_has_any(hmq_slice id);

/* A node, as this server lists it in CLUSTER NODES. */
typedef struct slots_node {
    hmq_slice id;   /* valid during the call */
    bool is_self;
    bool has_slots; /* it is the primary of some */
    unsigned slot; /* one of these */
    long long ping_ms; /* since when it owes an answer to a ping; 0: it owes none */
    long long pong_ms; /* when it answered last, by the wall clock; 0: never */
} slots_node;
/* Calls for each node that this server knows.  About 30 us with three nodes. */
void slots_each_node(void (*take)(void *context, const slots_node *node), void *context);

/* Views are numbered from 1 on.  These return the number of the current view, and of the last one in which this slot had
 * another state than in the view before.  0 without a cluster.  Call slots_state first. */
uint64_t slots_view_number(void);
uint64_t slots_changed(unsigned slot);

/* The slot of a session, or of any key; 0 without a cluster. */
unsigned slots_of_key(hmq_slice key);

/* May a command about this session run here now?  The server has checked that the slot is this node's (the session is
 * the command's key, or slots_state was asked).  False after replying TRYAGAIN. */
bool slots_check_session(server_ctx *ctx, hmq_slice session);

/* Replies that another node has the slot: MOVED with its address, or CLUSTERDOWN if none has it.  Returns false. */
bool slots_reply_elsewhere(server_ctx *ctx, unsigned slot);

#endif
