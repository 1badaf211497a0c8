/* filters.h - who subscribes to what.
 *
 *     {c}_subscriptions   ->   the session with its filters   ->   the trie of the database
 *
 * The trie is a function of the keys.  A change of subscriptions changes both.  Only the filters of a session that ended with
 * many of them leave the trie in steps: taking 1,000 out at once takes a millisecond, and many sessions may expire together.
 * Until then the trie names a session that is gone, which its readers skip. */
#ifndef HMQ_INDEX_FILTERS_H
#define HMQ_INDEX_FILTERS_H

#include "index/index.h"

/* Scratch of a reader: the number of the reading that found the session last, and where it has noted it. */
typedef struct session_mark {
    uint64_t number;
    uint32_t slot;
} session_mark;

/* A session that has at least one subscription. */
typedef struct indexed_session {
    server_string *key;    /* {c} */
    server_string *inbox;  /* {c}_inbox */
    server_string *hash;   /* {c}_subscriptions */
    unsigned slot;         /* of the cluster; 0 without one */
    server_dict *filters;  /* filter -> packed options + 1 (as a pointer) */
    long long since_ms;    /* when it got its first subscription */
    session_mark match;    /* of a match in one step (routing/matching.h) */
    session_mark in_steps; /* of one in steps */
    session_mark gathered; /* of gathered deliveries (routing/gather.c) */
    uint64_t judged;       /* number of the publish for which its queue was judged last (routing/judging.h) */
    uint32_t holds;
    bool is_gone; /* its last subscription is gone, and it is not in the index: it is only held, or leaves the trie */
    struct indexed_session *next_leaving;
} indexed_session;

/* Does the session still have its subscriptions?  If not, they are read again before the next match. */
bool index_session_is_valid(server_ctx *ctx, index_t *index, const indexed_session *session);

/* Keeps the memory of a session while it may leave the index. */
void index_session_hold(indexed_session *session);
void index_session_release(indexed_session *session);

/* Does one of its filters, shared ones left out, match the topic?  O(filters). */
bool index_session_matches(const indexed_session *session, hmq_slice topic);

/* The module set or removed one filter of a session. */
void index_set_filter(index_t *index, hmq_slice session_key, hmq_slice filter, uint32_t options);
void index_remove_filter(index_t *index, hmq_slice session_key, hmq_slice filter);
/* All subscriptions of the session are gone. */
void index_remove_session(index_t *index, hmq_slice session_key);
/* At the end of a turn: takes filters of ended sessions out of the trie, for half a millisecond. */
void index_filters_before_sleep(void);
bool index_filters_any_leaving(void);

/* Called when a session's filter is added to an index or removed from it, kept or rebuilt (a shared one without its group).
 * Also when subscriptions of a session vanished, and no command of this module removed them: its slot may be moving. */
typedef struct filter_watcher {
    void (*came)(index_t *index, hmq_slice filter, unsigned slot);
    void (*went)(index_t *index, hmq_slice filter, unsigned slot);
    void (*vanished)(index_t *index, unsigned slot);
} filter_watcher;
/* To be called before the index starts.  Without a watcher nothing is looked up for it. */
void index_watch_filters(const filter_watcher *who);

/* The same for a filter of something else that takes messages in its slot: a shard of a store of history. */
void index_filter_came(index_t *index, hmq_slice filter, unsigned slot);
void index_filter_went(index_t *index, hmq_slice filter, unsigned slot);

extern const index_kind index_filters_kind;

#endif
