/* store.h - the policies of history: which topics are kept, in how many shards, for how long.
 *
 *     {<store>}_history_store   HASH  shards, levels, age (s), epoch (s), bytes, seed (32 hexadecimal digits),
 *                                     hold (bytes, if given), learn (s, if the store learns), spread and had (if the
 *                                     number of shards was changed); a field "filter <filter>" without a value for each
 *                                     topic filter; removed, while the rest of a removed store is being deleted
 *
 * In a cluster a store's shards are on several nodes.  Each shard has a copy of the policy, which moves with its slot:
 *
 *     {<store>/<shard>}_history_store   HASH  the same, and changed: ms, when HISTORY.STORE (or UNSTORE) wrote it
 *
 * A node knows a store as long as it has a copy of its policy.  Copies differ only while they are being written.  Then
 * the newest copy counts, and of equally new ones that of the first shard.
 *
 * Invariants:
 *  1. No topic is selected by two stores: HISTORY.STORE refuses filters that overlap with those of another store.
 *  2. `history_stores` is a pure function of these keys (index/index.h keeps it current; HOLDMQ.CHECK compares it with
 *     a rebuild).  A hash that is not a policy does not count.  If two keys written by hand overlap, the store whose
 *     name comes first gets the topic.
 *  3. Levels and seed never change.  The number of shards over which topics are spread changes only with a generation
 *     of all shards (HISTORY.PATTERNS COMMIT).  These determine the shard of a message.  The number of shards never
 *     decreases, because shards that get no more topics keep their messages.
 *  4. A store that is being removed selects nothing, and only the code that removes it finds it.
 *
 * An append finds the store by one walk down a trie of all filters; without any store that is one comparison. */
#ifndef HMQ_HISTORY_STORE_H
#define HMQ_HISTORY_STORE_H

#include "base/hash.h"
#include "topic/trie.h"
#include "history/cursor.h"
#include "server/state.h"
#include "index/index.h"

#define HISTORY_NAME_MAX 64
#define HISTORY_STORES_MAX 256
#define HISTORY_FILTERS_MAX 64
#define HISTORY_SHARDS_MAX 64
#define HISTORY_EPOCHS_MAX 4096 /* into which an age may be divided */
#define HISTORY_SEED_DIGITS 32

_Static_assert(HISTORY_SHARDS_MAX <= 64, "a bit for each shard");

typedef struct history_store {
    server_string *key;   /* {<store>}_history_store; in a cluster a name, and no key */
    hmq_slice name;       /* a part of it */
    unsigned shards;      /* existing shards, 1 .. HISTORY_SHARDS_MAX */
    unsigned spread;      /* number of shards, from the first one on, that topics are spread over; <= shards */
    uint64_t former_shards; /* bit n - 1: it once had n shards, and has more now */
    unsigned levels;      /* indexed, 1 .. HMQ_PATTERNS_MAX_LEVELS */
    long long age_s;      /* 0: no limit */
    long long epoch_s;    /* an epoch ends at this age */
    long long bytes;      /* of all shards; 0: no limit */
    long long hold;       /* bytes that readers may hold back beyond it; -1: not given */
    bool removed;
    long long learn_s;    /* seconds between two looks for a better pattern set; 0: none */
    hmq_hash_seed seed;
    long long changed_ms; /* in a cluster; 0: not given */
    uint64_t copies;      /* in a cluster: bit n: a copy of the policy is here for shard n */
    server_dict *filters; /* without values */
    struct history_live **live; /* what is remembered of each shard (history/live.h); NULL: nothing */
    unsigned long long *checked_turns; /* when the key of the policy, or each copy, was checked last (history/live.h) */
} history_store;

typedef struct history_stores history_stores;

/* `live_free` frees what is remembered of a shard, NULL included (history/live.h). */
history_stores *history_stores_new(index_t *index, void (*live_free)(struct history_live *live));
void history_stores_free(history_stores *stores);

/* Is this the name of a policy's key? */
bool history_store_is_key(hmq_slice name);
/* The key of this store's policy for this shard; the caller frees it. */
server_string *history_policy_key(hmq_slice name, unsigned shard);
/* Reads 32 hexadecimal digits; false for any other text. */
bool history_seed_read(const server_string *value, hmq_hash_seed *seed);

/* Reads the policy of this key again; in a cluster that copy, or, with the `key` of a store, all of its copies. */
void history_stores_refresh(server_ctx *ctx, history_stores *stores, hmq_slice key);
/* Visits all keys of policies. */
void history_stores_each_key(const history_stores *stores, void (*visit)(void *context, hmq_slice key), void *context);

/* How many bytes readers may hold back from retention: as the policy says, or as many as it keeps, or 1 GiB. */
long long history_store_hold(const history_store *store);

/* The name and id that a cursor carries of its store. */
hmq_cursor_store history_store_identity(const history_store *store);
/* Is the cursor of this store, and not of another, or of an earlier one of the same name? */
bool history_store_is_of(const history_store *store, const hmq_cursor_store *of);

/* By name, the first after NULL. */
const history_store *history_stores_next(const history_stores *stores, const history_store *after);
/* The first whose key comes after this one, which may be empty. */
const history_store *history_stores_after(const history_stores *stores, hmq_slice key);
const history_store *history_stores_find(const history_stores *stores, hmq_slice name);
/* The same for those that are being removed. */
const history_store *history_stores_removed_after(const history_stores *stores, hmq_slice key);
bool history_stores_is_removed(const history_stores *stores, hmq_slice name);
/* The store that selects this topic; NULL if none does. */
const history_store *history_stores_of_topic(const history_stores *stores, hmq_slice topic);

/* Reports each policy of `a` that `b` lacks, or has with other values. */
void history_stores_compare(const history_stores *a, const history_stores *b,
                            void (*differ)(void *context, const char *what, hmq_slice name), void *context);

#endif
