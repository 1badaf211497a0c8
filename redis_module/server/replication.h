/* replication.h - stock commands for the append-only file and for replicas: built only while somebody takes them.
 *
 * Building them is a tenth of a SESSION.ADD and a third of a kept PUBLISH.  The server throws them away if it has neither
 * an append-only file nor replicas nor a backlog for replicas to come; then only the count of changes rises, by which it
 * knows when to make a snapshot.
 *
 * Invariant: what the server would take is built.  An append-only file is asked for each time.  Replicas and the backlog
 * are not told by the module API at once, but they come in few ways, each of which is seen before it has effect:
 *
 *     SYNC, PSYNC         the command filter; in doubt until the server has said three times that there is no replica, while
 *                         it was not paused (a paused command runs later, unseen).  One that is refused changes nothing
 *                         after that.  If the server knows them by other names, the doubt lasts for good
 *     a promoted replica  keeps its backlog: the event of its new role
 *     loading             may leave a backlog: its event, and the module's own start
 *     a cluster           moves slots by means of its own: there all is built, always
 *
 * In doubt all is built, until the server says (asked ten times a second) that it has neither. */
#ifndef HMQ_REPLICATION_H
#define HMQ_REPLICATION_H

#include "server/state.h"

void replication_start(server_ctx *ctx);

/* A client sent SYNC or PSYNC. */
void replication_replica_comes(void);

/* Has a publish to be replicated: is a replica connected, synchronizing, or may it come back for what is in the backlog? */
bool replication_has_replicas(void);

/* How often the role has changed or something was loaded: what was remembered before is to be looked at anew. */
unsigned long long replication_doubts(void);

/* How often this server became a primary since it was started: what its former primary did at the end it may not know. */
unsigned replication_promotions(void);

/* Does anybody take stock commands now?  Holds for as long as the running command. */
bool replication_taken(server_ctx *ctx);
/* The same for who has the context's flags already. */
bool replication_taken_with(int context_flags);

/* sv.Replicate if `taken`; if not, the data set counts as changed once more, which is all that would be left of it (the
 * server forgets the command at once). */
#define replicate_if(taken, ctx, ...) ((void)((taken) ? sv.Replicate((ctx), __VA_ARGS__) : sv.ReplicateVerbatim(ctx)))
#define replicate(ctx, ...) replicate_if(replication_taken(ctx), ctx, __VA_ARGS__)

#endif
