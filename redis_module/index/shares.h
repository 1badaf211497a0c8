/* shares.h - the shared subscriptions of a database, in memory: who is a member of which group.
 *
 *     $share/<group>/<filter>  ->  share: its members, and whose turn it is
 *
 * Invariants:
 *  1. A share exists while it has a member.  Its inner filter is in the trie once: the share itself, marked by
 *     SHARE_TAG, is the subscriber.
 *  2. Members are a function of the keys {c}_subscriptions, like everything in the index; HOLDMQ.CHECK compares them.
 *     Whose turn it is, and what is pending, are hints: both start again after a load.
 *
 * Owns the shares, not the sessions. */
#ifndef HMQ_SHARE_INDEX_H
#define HMQ_SHARE_INDEX_H

#include "topic/trie.h"
#include "server/state.h"
#include "index/usage.h"

/* In the trie: the subscriber is a share, not a session. */
#define SHARE_TAG 1u

struct indexed_session;

typedef struct share {
    server_string *filter; /* $share/<group>/<filter> */
    server_string *key;    /* {$share/<group>/<filter>}: the session key of the group's queue */
    server_dict *members;  /* session key -> indexed_session * */
    server_string *last;   /* the member that got the last message, NULL: none yet */
    bool waits;            /* the group's queue may hold something */
    server_string *leaver; /* a session that is giving back its messages; NULL: none is known */
    usage_queue queued;    /* how the group's queue counts (queue/usage.h) */
    uint64_t judged, had;  /* scratch of routing/publish_slots.c */
    bool served;
} share;

/* Is it a filter of a shared subscription, and what is its inner filter? */
bool share_is(hmq_slice filter, hmq_slice *inner);

share *share_find(server_dict *shares, hmq_slice filter);
void share_join(server_dict *shares, hmq_trie *trie, hmq_slice filter, hmq_slice session_key,
                struct indexed_session *session);
void share_leave(server_dict *shares, hmq_trie *trie, hmq_slice filter, hmq_slice session_key);
void share_free_all(server_dict *shares);

/* The next member after `after` (NULL: the first), in the order of their keys, in a circle. */
struct indexed_session *share_next_member(const share *s, const server_string *after);

static inline bool share_is_tagged(uint64_t subscriber) {
    return (subscriber & SHARE_TAG) != 0;
}
static inline share *share_of(uint64_t subscriber) {
    return (share *)(uintptr_t)(subscriber & ~(uint64_t)SHARE_TAG);
}

/* Reports each difference in the members. */
void share_compare(server_dict *a, server_dict *b, void (*differ)(void *context, const char *what, hmq_slice name),
                   void *context);

#endif
