/* refusals.h - which slots were refused on which connection, and ROUTE.RESUME.
 *
 *     bridge sends   5 and 6 to a slot, before it reads a reply
 *     node           5: TRYAGAIN, the slot is moving;  6: REFUSED, although the slot may have settled
 *     bridge         waits for both replies, sends ROUTE.RESUME <slot>, then 5 and 6 again, in their order
 *
 * Invariants:
 *  1. A slot that took a publish with HOME not, takes no later one on that connection until ROUTE.RESUME.
 *  2. It is forgotten with the connection, and only then.
 *
 * At most 2 KiB for each connection with a refused slot; maxclients bounds those.  Each function costs O(1). */
#ifndef HMQ_ROUTE_REFUSALS_H
#define HMQ_ROUTE_REFUSALS_H

#include "topic/slot.h"
#include "server/state.h"

/* The connection that sent the running command; 0: none did (a script, another module). */
uint64_t refusals_connection(server_ctx *ctx);
/* The same for the commands that the running command calls; NULL ends that. */
void refusals_set_caller(server_ctx *ctx);

/* NULL: none.  Valid until the next call here. */
const hmq_slot_set *refusals_of(uint64_t connection);
void refusals_add(uint64_t connection, const hmq_slot_set *slots);
void refusals_client_gone(uint64_t connection);

/* For INFO: connections with a refused slot. */
size_t refusals_count(void);

int route_resume_command(server_ctx *ctx, server_string **argv, int argc);

#endif
