/* index.h - the in-memory indexes of a database: who subscribes to what, which channels hold messages, which topics
 * have a retained message.
 *
 * Invariants:
 *  1. After index_of, the index is a pure function of the keys of its database.  HOLDMQ.CHECK compares it with a
 *     rebuild.  Nothing else is remembered about sessions.
 *  2. Keyspace notifications keep it current, with two exceptions: a key that is overwritten by another type (only a
 *     listener to every SET would hear of it), and a key that has expired unnoticed.  So the user of an entry looks
 *     at its key first (index_session_is_valid, retained_read, the hand-off), and HOLDMQ.CHECK looks at all.  A key that
 *     a notification cannot settle at once (a hash with filters) is put on the list of stale names, and read before
 *     the next use.
 *  3. The module's own commands change key and index in the same step, and notify with index_notify, which the index
 *     does not hear.
 *  4. Nothing changes under a reader.  A reader that iterates over a part of the index, or keeps a pointer into it
 *     while keys are read or written, pins that part.  While any part is pinned, index_of refreshes nothing.  Changes
 *     of a pinned part are put on the list of stale names.  So everything that a pinned reader reaches stays until it
 *     unpins.
 *
 * Reading a name again costs O(filters of that session), a full scan (module loaded into a running server) O(keys). */
#ifndef HMQ_INDEX_H
#define HMQ_INDEX_H

#include "topic/trie.h"
#include "server/state.h"

/* Parts that other files define. */
typedef struct session_index session_index;
typedef struct usage usage;
typedef struct history_stores history_stores;
typedef struct fan_outs fan_outs;
typedef struct own_routes own_routes;
typedef struct outboxes outboxes;

typedef struct index {
    hmq_trie *filters; /* subscriber: indexed_session *, or a share, tagged; options: packed (index/subscription.h) */
    server_dict *sessions; /* session key -> indexed_session */
    struct indexed_session *leaving; /* ended sessions whose filters are still in the trie (index/filters.h) */
    server_dict *retained; /* the topics, in the order of index/retained_topics.h -> server_string * of the key */
    server_dict *retained_keys; /* key -> retained_entry * */
    server_dict *cursors; /* session key -> retained messages to hand over (routing/retained_cursors.h) */
    fan_outs *fan_outs; /* publishes that are delivered in steps (routing/fan_out.h) */
    server_dict *held; /* channel -> kinds of its keys, one bit each (index/channels.h) */
    server_dict *claimed; /* channels whose names the application uses, without a mark for it yet */
    server_dict *shares; /* $share/<group>/<filter> -> share (index/shares.h) */
    server_dict *group_replays; /* names of shares that read history (routing/share_replay.h) */
    server_dict *waiting; /* names of shares whose queue may hold something that a member can take */
    session_index *opened; /* sessions that were opened */
    usage *usage;          /* what each user has */
    history_stores *histories; /* the policies of HISTORY.STORE (history/store.h) */
    own_routes *routes; /* which slots have subscribers of which filter (cluster/own.h); NULL without a cluster */
    outboxes *outboxes; /* which slots have messages for all nodes (session/outbox.h); NULL without a cluster */
    server_dict *stale; /* stale names: keys to read again */
    bool scan_needed;
    size_t pins[4]; /* by index_part: readers (invariant 4) */
    bool abandoned; /* its database was emptied while it was pinned: the last reader frees it */
} index_t;

/* What a reader pins. */
typedef enum index_part {
    INDEX_SESSIONS, /* filters, sessions, shares, opened sessions and their owners */
    INDEX_RETAINED,
    INDEX_HISTORIES,
    INDEX_CURSORS,
} index_part;
/* Readers may be nested.  An index that is pinned is not freed before the last of them has unpinned it. */
void index_pin(index_t *index, index_part part);
void index_unpin(index_t *index, index_part part);

/* What happened to a name. */
typedef enum index_use {
    INDEX_NAME_APPEARED, /* a key of any type may have this name now */
    INDEX_NAME_GONE,
    INDEX_NAME_LIST, /* a list of that name was changed */
} index_use;

/* Called with a difference between an index and a rebuild, and the name. */
typedef void (*index_differ)(void *context, const char *what, hmq_slice name);

/* A kind of entries: how they are made from keys, kept and checked.  Each function may be NULL. */
typedef struct index_kind {
    void (*make)(index_t *index); /* the parts of a new, empty index */
    void (*release)(index_t *index);
    bool (*is_key)(hmq_slice name); /* is an entry made from a key of this name?  If so, these apply: */
    void (*refresh)(server_ctx *ctx, index_t *index, hmq_slice name); /* reads the key, or removes the entry */
    bool foresees_expiry; /* an entry knows when its key expires, and needs no refresh then */
    void (*used)(server_ctx *ctx, index_t *index, hmq_slice name, index_use use); /* of any name */
    void (*changed)(index_t *index, hmq_slice name); /* others changed a key that is not a list */
    void (*written)(index_t *index, hmq_slice name); /* the module changed a hash, or created or removed a key */
    void (*doubt_all)(index_t *index); /* any key may be another */
    void (*emptied)(server_ctx *ctx, index_t *index); /* before the index of an emptied database is freed */
    void (*all_emptied)(void);
    void (*look)(server_ctx *ctx, index_t *index); /* looks at the key of every entry, as the next user would */
    void (*check)(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context);
} index_kind;

/* Registers for notifications and events.  `populated`: the server may hold keys already.  `kinds` end with NULL. */
void index_start(server_ctx *ctx, bool populated, const index_kind *const *kinds);
/* Only a replica loads a data set beside the served one (repl-diskless-load swapdb). */
void index_expect_async_load(bool is_replica);

/* Called when the index hears of an event. */
typedef struct index_watcher {
    void (*message_gone)(int db,
                         hmq_slice session_key); /* a queued message was deleted by another program, or expired */
    void (*queue_expired)(int db, hmq_slice session_key); /* the queue of a session expired */
    void (*swapped)(void); /* two databases changed places */
    void (*emptied)(void); /* databases were emptied */
    void (*session_gone)(server_ctx *ctx, hmq_slice session,
                         long long epoch); /* a connected session's hash vanished, and no HoldMQ command removed it */
} index_watcher;
void index_watch(index_watcher watcher);

/* Databases are numbered from 0 to below this number.  index_exists says which of them have an index. */
int index_databases(void);
bool index_exists(int db);
/* The index as it is, without reading keys; NULL if there is none. */
const index_t *index_peek(int db);
/* The same for its own parts, which finish what they began. */
index_t *index_as_it_is(int db);

/* The index of the context's database, made current unless a part of it is pinned. */
index_t *index_of(server_ctx *ctx);
/* Once in a turn of the event loop: does what commands with a key have left (server/command_slot.h). */
void index_before_sleep(void);
/* Has the index heard of and applied every change? */
bool index_is_current(server_ctx *ctx);

/* The type of a key; SERVER_EMPTY if there is none. */
int index_type_of(server_ctx *ctx, hmq_slice name);

/* The key may have changed: it is read again before the next use. */
void index_mark_stale(index_t *index, hmq_slice name);

#endif
