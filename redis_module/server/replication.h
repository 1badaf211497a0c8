/* replication.h - stock commands for the append-only file and for replicas are built only if the server takes them.
 *
 * Building them is a tenth of a SESSION.ADD and a third of a kept PUBLISH.  Without an append-only file, a replica
 * and a replication backlog, the server discards them, and only its count of changes rises, which decides when a
 * snapshot is due.
 *
 * Invariant: commands that the server would take are built.  The server says each time whether there is an
 * append-only file.  The module API reports replicas and the backlog late, but they begin in few ways, each of which is
 * seen before it has an effect:
 *
 *     SYNC, PSYNC         the command filter sees them.  The module then assumes a replica until the server has said
 *                         three times that there is none, while it was not paused (a paused command runs later, unseen).
 *                         A refused SYNC changes nothing after that.  If the commands are renamed, a replica is
 *                         assumed forever
 *     a promoted replica  keeps its backlog: the event of its new role.  (A primary gets another role by a command,
 *                         which the filter sees.  Only then, and on a replica, the module listens to that event)
 *     loading             may leave a backlog: its event, and the start of the module.  A primary loads only at its start,
 *                         by DEBUG, or if another module does so
 *     a cluster           moves slots by its own means: there all commands are always built
 *
 * In doubt all commands are built, until the server says that it has neither (it is asked ten times a second). */
#ifndef HMQ_REPLICATION_H
#define HMQ_REPLICATION_H

#include "server/state.h"

/* `on_role` is called when the server becomes a replica, or is one already; and some time after it has become a primary,
 * while the server calls no listeners. */
void replication_start(server_ctx *ctx, void (*on_role)(bool is_replica));
/* At the end of a turn. */
void replication_before_sleep(void);

/* A client sent SYNC or PSYNC. */
void replication_note_replica(void);

/* A client sent DEBUG or MODULE: a primary may load data from now on. */
void replication_note_load(void);
/* A client sent REPLICAOF, SLAVEOF or FAILOVER: a primary may become a replica from now on. */
void replication_note_role_command(void);

/* Must a publish be replicated, because a replica is connected, synchronizing, or may return for the backlog? */
bool replication_has_replicas(void);

/* How often the role has changed or data was loaded.  What was remembered before that must be read again. */
unsigned long long replication_change_count(void);

/* How often this server became a primary since its start.  It may lack the last writes of its former primary. */
unsigned replication_promotions(void);

/* Does a file or replica take stock commands now?  Valid during the running command. */
bool replication_is_needed(server_ctx *ctx);
/* The same for a caller that has the context's flags already. */
bool replication_is_needed_with(int context_flags);

/* sv.Replicate if `taken`.  Otherwise the data set only counts as changed once more, which is all that the command would
 * have caused. */
#define replicate_if(taken, ctx, ...) ((void)((taken) ? sv.Replicate((ctx), __VA_ARGS__) : sv.ReplicateVerbatim(ctx)))
#define replicate(ctx, ...) replicate_if(replication_is_needed(ctx), ctx, __VA_ARGS__)

#endif
