/* live.h - what is remembered of a shard, so that a message needs no look-up in eight keys.
 *
 * Invariants:
 *  1. It is a function of the keys: state hash, pattern set, logs of the current epoch.  In doubt it is made from
 *     them again, and HOLDMQ.CHECK compares it with a new one.
 *  2. It is in doubt after a change that was reported: notifications of these keys (index/events.c), flushes and
 *     swapped databases, another role, a load (server/replication.h), a slot that arrived or left.  Unreported
 *     changes (a stock SET over one of the keys, an XADD to a log) are searched for: types and pattern set once in a
 *     turn of the event loop, a log's length before it is written.
 *  3. On a replica it is in doubt after each turn of the event loop, because logs grow there unreported.
 *
 * Owned by the store (history/store.h).  Making it opens the log of each pattern and reads the tail: O(patterns +
 * tail). */
#ifndef HMQ_HISTORY_LIVE_H
#define HMQ_HISTORY_LIVE_H

#include "history/shard.h"
#include "history/tail.h"

typedef struct history_log {
    server_string *name; /* NULL: there is none yet */
    uint64_t messages;
} history_log;

typedef struct history_live {
    bool is_valid;      /* not in doubt */
    bool was_on_replica; /* when it was made */
    unsigned long long turn, doubts; /* when its keys were checked last */
    unsigned slot;   /* of the cluster */
    uint64_t view;   /* the view of the slots when it was made */
    history_shard state;
    server_string *state_key;
    history_set *set;  /* of the current generation, the first one if nothing was written */
    history_log *logs; /* of the current epoch, by pattern */
    uint32_t log_count;
    history_tail tail;
} history_live;

/* Does the key of the policy (in a cluster: the copy of this shard) still exist?  Checked once in a turn of the event
 * loop. */
bool history_live_policy(server_ctx *ctx, const history_store *store, unsigned shard);

/* Returns it, made current.  NULL after replying (if `reply`) which key has another type or content.  Valid until a
 * key changes. */
history_live *history_live_of(server_ctx *ctx, const history_store *store, unsigned shard, bool reply);
void history_live_free(history_live *live);

/* What is remembered for a log (its name is made); the pattern is one of the set. */
history_log *history_live_log(history_live *live, uint32_t pattern);
/* A new epoch begins: no logs, no tail. */
void history_live_begin_epoch(history_live *live);
/* The module has written the state hash itself: what is remembered is right. */
void history_live_written(history_live *live);

/* A key of this name has changed, or any may have. */
void history_live_mark_stale(const history_stores *stores, hmq_slice key);
void history_live_mark_all_stale(const history_stores *stores);

/* The event loop is about to wait. */
void history_before_sleep(void);

/* Reports each shard that differs from its keys. */
void history_live_check(server_ctx *ctx, const history_stores *stores,
                        void (*differ)(void *context, const char *what, hmq_slice name), void *context);

/* False after replying (if `reply`) which key is invalid: this one, the pattern set or a log of the current epoch. */
bool history_shard_read(server_ctx *ctx, const history_store *store, unsigned shard, history_shard *state, bool reply);

#endif
