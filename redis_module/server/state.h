/* state.h - the state that the module's files share: settings, what the server can do, counters.
 *
 * The server runs modules in one thread, so nothing here is locked.  Settings are written by config.c, `can` by
 * module.c at load, and each counter by the code that does what it counts. */
#ifndef HMQ_STATE_H
#define HMQ_STATE_H

#include "base/base.h"
#include "topic/policy.h"
#include "server/api.h"

#define HMQ_MODULE_NAME "holdmq"
/* major * 10000 + minor * 100 + patch, as MODULE LIST shows it. */
#define HMQ_MODULE_VERSION 200

/* Settings, by their names in CONFIG GET holdmq.*; config.c has the defaults. */
struct settings {
    bool intercept;           /* intercept: PUBLISH and (P|S)SUBSCRIBE of stock clients are persistent */
    bool presence;            /* presence: clients that connect and disconnect are announced */
    server_string *policies;  /* policies: the text, see src/topic/policy.h */
    server_string *default_policies; /* ... as at load, unless configured */
    hmq_policy *policy;       /* ... parsed */
    bool delivers;            /* ... some rule hands messages to new subscribers */
    long long session_limit;  /* session-limit: messages in a queue, 1..65535 */
    long long session_bytes;  /* session-bytes: bytes in a queue, 0: no bound */
    int session_overflow;     /* session-overflow: what happens to a message beyond these limits (index/overflow.h) */
    long long max_sessions;   /* max-sessions: opened sessions of a database, 0: no bound (routing/quota.h) */
    long long max_retained;   /* max-retained: the same for retained messages */
    long long max_sessions_per_user; /* max-sessions-per-user, max-retained-per-user: of one user (index/usage.h) */
    long long max_retained_per_user;
    long long max_queue_bytes_per_user; /* max-queue-bytes-per-user, max-queue-bytes: in queues (queue/usage.h) */
    long long max_queue_bytes;
    long long outbox_bytes; /* outbox-bytes: of the outbox of a slot, 0: none (session/outbox.h) */
    long long max_route_bytes; /* max-route-bytes: of the routes of a cluster (cluster/table.h) */
    long long drain_timeout_s; /* drain-timeout: seconds that a subscriber may take nothing of a backlog */
    long long min_free_disk; /* min-free-disk: bytes, 0: none (server/resources.h) */
    long long session_ttl_s; /* session-ttl: seconds a queued message lives */
};

/* What the running server lets the module do; INFO holdmq shows it. */
struct capabilities {
    bool valkey; /* family */
    int version; /* 0xMMmmpp, as the server reports it to modules */
    bool filter_client; /* the command filter knows the client's id (7.2) */
    bool post_jobs; /* jobs after a command (7.2) */
    bool direct_push; /* the server's own functions that write a push were found and may be used */
    bool cluster;
    bool has_other_modules; /* other modules are or were loaded, and may hear key events and log clients in */
    bool module_command, debug_command; /* have these names, so that the command filter sees them */
    bool flush_commands, swap_command, role_commands; /* FLUSHALL, FLUSHDB; SWAPDB; REPLICAOF, SLAVEOF, FAILOVER: too */
    bool set_many; /* MSETEX: several strings with one expiry (Valkey 9.1, Redis 8.4) */
};

struct counters {
    unsigned long long channel_published; /* CHANNEL.PUBLISH and intercepted PUBLISH */
    unsigned long long channel_held; /* messages put into a channel's list */
    unsigned long long channel_trimmed; /* dropped by maxlen */
    unsigned long long channel_not_held_wrongtype;
    unsigned long long channel_not_held_denied;
    unsigned long long turns_heard; /* turns of the event loop at whose end the module ran */
    unsigned long long channel_superseded; /* times that a later message was heard, or was not kept */
    unsigned long long channel_stepped_aside; /* channels whose names the application uses for keys */
    unsigned long long handed_over; /* messages given to new subscribers */
    unsigned long long handoffs_cancelled; /* subscriptions that were rejected or gone before the hand-off */
    unsigned long long topic_published;
    unsigned long long fan_outs; /* publishes that were delivered in steps (routing/fan_out.h) */
    unsigned long long fan_outs_delayed; /* publishes temporarily refused, because too many fan-outs are pending */
    unsigned long long fan_outs_refused; /* publishes of programs, for the same reason */
    unsigned long long topic_stored; /* messages put into session queues */
    unsigned long long topic_refused; /* sessions that could not be served: wrong types, or no room */
    unsigned long long topic_pushed; /* deliveries pushed to an inbox with a listener */
    unsigned long long pushed_headers; /* those without the message, which is to be fetched (routing/push_budget.h) */
    unsigned long long qos0_queued; /* messages of QoS 0 that wait for their client in its queue (routing/qos0.h) */
    unsigned long long qos0_dropped; /* ... that were dropped: no room in the queue, or the client was gone */
    unsigned long long session_trimmed; /* messages dropped because their queue was full */
    unsigned long long queue_references_searched; /* looked at for expired messages (queue/look.h) */
    unsigned long long queue_full_refused; /* publishes refused because of a full queue, for good and temporarily */
    unsigned long long queue_full_delayed;
    unsigned long long sessions_refused; /* because of holdmq.max-sessions and holdmq.max-retained */
    unsigned long long retained_refused;
    unsigned long long user_sessions_refused; /* ... because of the maximum of one user */
    unsigned long long user_retained_refused;
    unsigned long long user_bytes_full; /* messages that met the maximum of a user, or of the database */
    unsigned long long queue_bytes_full;
    unsigned long long disk_refused; /* commands and messages, by holdmq.min-free-disk */
    unsigned long long session_expired; /* references found whose message had expired */
    unsigned long long session_acked;
    unsigned long long fenced; /* commands refused because of an old epoch */
    unsigned long long identities_refused; /* opens of sessions that belong to another identity */
    unsigned long long wills_published;
    unsigned long long shared_delivered; /* given to a member of a group */
    unsigned long long shared_queued; /* put into a group's own queue */
    unsigned long long shared_redistributed; /* taken from a member that left */
    unsigned long long owners_lost;
    unsigned long long sessions_lost; /* connections whose owner vanished */
    unsigned long long history_appended; /* messages kept in history */
    unsigned long long history_refused; /* messages of the module itself that could not be kept */
    unsigned long long history_learned; /* times that a store searched for a better pattern set */
    unsigned long long history_switched; /* times that a store got another pattern set */
    unsigned long long replayed; /* messages of history delivered to sessions */
    unsigned long long replays_missed; /* that retention removed before a subscription had read them */
    unsigned long long replays_ended; /* made live: their store is gone, or no longer keeps all their topics */
    unsigned long long history_trimmed; /* messages removed by HISTORY.TRIM */
    unsigned long long history_dropped; /* messages dropped by retention */
    unsigned long long history_holds_lost; /* readers that exceeded HOLDBYTES, counted per shard */
    unsigned long long index_rebuilds;
};

extern struct settings settings;
extern struct capabilities can;
extern struct counters counters;

/* A context that belongs to no client: for work outside a command. */
extern server_ctx *detached;

/* The server's allocator, for the core. */
extern const hmq_allocator server_allocator;

/* Reports to the latency monitor how long a step took that began at `begun_ms` (sv.Milliseconds()). */
void slow_step(const char *event, long long begun_ms);

/* Does another program's key exist?  Not counted, announced or remembered by the server as a look-up. */
bool key_exists_unseen(server_ctx *ctx, server_string *name);
/* The same for a key of the module that is to be read; NULL if it does not exist.  `aside`: the read does not count
 * as a use that delays eviction, either. */
server_key *key_open_unseen(server_ctx *ctx, server_string *name, bool aside);

/* String and slice helpers used everywhere. */
hmq_slice slice_of(const server_string *string);
bool slice_is(hmq_slice slice, const char *word); /* ASCII, case-insensitive */

#endif
