/* internals.h - functions of the server that the module API does not offer, found by name.  Only this file uses them.
 *
 * lookupClientByID, addReplyPubsubMessage, addReplyPubsubPatMessage, clientTotalPubSubSubscriptionCount,
 * getClientOutputBufferMemoryUsage, scriptGetCaller, authRequired, serverPubsubSubscriptionCount and
 * serverPubsubShardSubscriptionCount have the same signatures in Redis from 7.0.1 on and in Valkey;
 * enterExecutionUnit, exitExecutionUnit and afterCommand have them from 7.2 on.  A node is asked about its slots by
 * getNodeBySlot, getMyClusterNode and getMigratingSlotDest (Redis from 7.4 on, Valkey from 8.0 on), else by
 * clusterNodeGetSlotBit with the variable `myself`; about the node of a slot by getNodeBySlot and clusterNodeGetName (from the same versions on).
 * pubsubPublishMessage has the same signature from 7.0.0 on.  Clients, strings and nodes stay opaque.  If a function is
 * missing, the answer is "not known". */
#ifndef HMQ_INTERNALS_H
#define HMQ_INTERNALS_H

#include "server/state.h"

typedef struct server_client server_client;

/* Looks for the functions, sets can.direct_push. */
void internals_start(void);

/* The client of an id; NULL if it is gone.  Only where can.direct_push. */
server_client *internals_client(uint64_t id);
void internals_push(server_client *client, server_string *channel, server_string *message, server_string *kind);
void internals_push_pattern(server_client *client, server_string *pattern, server_string *channel,
                            server_string *message);
/* The number of subscriptions of a client that has the PUBSUB flag. */
int internals_subscriptions(server_client *client);
size_t internals_output_bytes(server_client *client);
/* The bytes in the output buffer of the client with this id.  False if the server lacks the functions, or the client is
 * gone. */
bool internals_output_of(uint64_t client, size_t *bytes);

/* The client for which the running script runs; NULL if no script runs, or the client is not known. */
server_client *internals_script_caller(void);
/* Has the client authenticated, if the server requires it?  False if that is not known. */
bool internals_is_authenticated(uint64_t client);
/* Has the server no subscriber of channels and patterns (or of shard channels)?  False if that is not known. */
bool internals_nobody_subscribes(bool sharded);

/* What the server does before and after a command, for writes of the command filter (server/filter_unit.h).  Only if
 * internals_knows_units(). */
bool internals_knows_units(void);
void internals_begin_unit(void);
/* Sends what was held back for the unit's client, and propagates what was written. */
void internals_end_unit(server_client *client);

/* Can the server be asked about a slot of the cluster?  If so: does it serve the slot now?  Not on a replica, and not while
 * the slot is moving to another node.  (Redis before 7.4 does not say that it is moving.) */
bool internals_can_read_slots(void);
bool internals_serve_slot(unsigned slot);
/* The same for all of up to 64 slots: bit n of `slots` is slot first + n. */
bool internals_serve_slots(unsigned first, uint64_t slots);

/* Publishes to the subscribers of this server alone, without the bus of the cluster.  False if the server lacks the
 * function: nothing was done. */
bool internals_publish_here(server_string *channel, server_string *message, int *heard);
/* Has the node with this id (`len` bytes) the slot now?  False also if that is not known. */
bool internals_slot_is_of(unsigned slot, const char *id, size_t len);

#endif
