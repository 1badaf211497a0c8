/* live.h - what is remembered of a shard, so that a message need not be looked up in eight keys.
 *
 * Invariants:
 *  1. A function of the keys: state hash, pattern set, logs of the present epoch.  It is made from them when in doubt, and
 *     HOLDMQ.CHECK compares it with one that is made anew.
 *  2. In doubt is who heard of a change: notifications of these keys (index/events.c), flushes and swapped databases, another
 *     role, something that was loaded (server/replication.h), a slot that came or went.  What nobody tells (a stock SET over one of them, an XADD to a log)
 *     is looked for: types and pattern set once in a turn of the event loop, a log's length before it is written.
 *  3. On a replica it is in doubt with each turn of the event loop: logs grow there without a word.
 *
 * Owned by the store (history/store.h).  Making it opens the log of each pattern and reads the tail: O(patterns + tail). */
#ifndef HMQ_HISTORY_LIVE_H
#define HMQ_HISTORY_LIVE_H

#include "history/shard.h"
#include "history/tail.h"

typedef struct history_log {
    server_string *name; /* NULL: there is none yet */
    uint64_t messages;
} history_log;

typedef struct history_live {
    bool valid;      /* not in doubt */
    bool on_replica; /* when it was made */
    unsigned long long turn, doubts; /* when it was looked at last */
    unsigned slot;   /* of the cluster */
    uint64_t view;   /* of the slots, when it was made */
    history_shard state;
    server_string *state_key;
    history_set *set;  /* of the present generation, the first one if nothing was written */
    history_log *logs; /* of the present epoch, by pattern */
    uint32_t log_count;
    history_tail tail;
} history_live;

/* Is the key of the policy (in a cluster the copy of this shard) still there?  Looked at once in a turn of the event
 * loop. */
bool history_live_policy(server_ctx *ctx, const history_store *store, unsigned shard);

/* Made current.  NULL after replying (if `reply`) which key holds something else.  Valid until a key changes. */
history_live *history_live_of(server_ctx *ctx, const history_store *store, unsigned shard, bool reply);
void history_live_free(history_live *live);

/* What is remembered for a log (its name is made); the pattern is one of the set. */
history_log *history_live_log(history_live *live, uint32_t pattern);
/* A new epoch begins: no logs, no tail. */
void history_live_begin_epoch(history_live *live);
/* After the module's own write of the state hash: it says what is remembered. */
void history_live_written(history_live *live);

/* A key of this name has changed, or any may have. */
void history_live_doubt(const history_stores *stores, hmq_slice key);
void history_live_doubt_all(const history_stores *stores);

/* The event loop is about to wait. */
void history_before_sleep(void);

/* Tells of each shard that is not what its keys say. */
void history_live_check(server_ctx *ctx, const history_stores *stores,
                        void (*tell)(void *context, const char *what, hmq_slice name), void *context);

/* False after replying (if `reply`) which key holds something else: this one, the pattern set or a log of the present
 * epoch. */
bool history_shard_read(server_ctx *ctx, const history_store *store, unsigned shard, history_shard *state, bool reply);

#endif
