/* sessions.h - the opened sessions of a database, in memory: who is connected for which owner, and when something
 * is due about a session although nobody sends a command.
 *
 *     sessions    session key -> entry, in the order of the keys (SESSION.LIST)
 *     owners      name -> owner: the connected sessions that it has
 *     deadlines   when (8 bytes, big endian), what, name: the next one is the first
 *
 * Invariants:
 *  1. An entry is a pure function of {c}_session; whoever changes the hash refreshes the entry in the same step, changes
 *     by others are heard by the index (index/index.h).  HOLDMQ.CHECK compares with a rebuild.
 *  2. A deadline is armed for each entry with `due_ms`, not later than that; what acts on one looks at the keys again.
 *  3. An owner stands as long as it has connected sessions or beats (session/owner.h).
 *
 * Owns all that it holds.  Refreshing is O(log n). */
#ifndef HMQ_SESSION_INDEX_H
#define HMQ_SESSION_INDEX_H

#include "index/session_hash.h"
#include "index/usage.h"

typedef struct session_index session_index;
typedef struct owner_entry owner_entry;

typedef struct session_entry {
    server_string *key;
    owner_entry *owner; /* NULL if it is not connected */
    bool connected;
    bool shares;        /* has, or had, a shared subscription */
    bool refuses;       /* its policy may refuse messages (index/overflow.h) */
    bool gives_back, ending; /* something of it goes to other members of its groups (routing/share_leave.h) */
    uint64_t gave_up_to; /* ... it has come so far: no function of the hash */
    usage_user *user;   /* to whom it belongs (session/identity.h); NULL: nobody */
    long long user_bytes, user_retained; /* the bounds of that user that it tells: 0: none, -1: the settings' */
    usage_queue queued; /* how its queue counts (queue/usage.h): the one thing that is no function of the hash */
    size_t window;      /* the largest that was asked for, 0: none (shares only) */
    long long epoch;
    long long due_ms;   /* 0: nothing is due */
    long long armed_ms; /* its deadline, 0: none */
    uint64_t qos0_until; /* 0: nothing of QoS 0 is in its queue (routing/qos0.h) */
    unsigned promotions; /* for so many of this server's its packet identifiers have skipped some (queue/add.c) */
    bool facts_known;   /* `facts` are those of the hash, but for its expiry: nothing has changed it since */
    session_facts facts;
} session_entry;

struct owner_entry {
    server_string *name;
    server_dict *sessions; /* session key -> session_entry * */
    long long lease_s;     /* the longest that a session or the owner's key tells; 0: it never beat */
    long long armed_ms;    /* its deadline, 0: none */
    uint64_t heard;        /* the period of service (session/owner.h) in which it beat last, 0: none */
    long long grace_ms;    /* until then its absence does not count; 0: it does */
    long long lost_epoch;  /* it is lost: sessions with a smaller epoch are being closed; 0: it is not */
    server_string *cursor; /* ... up to this key they are; NULL: none yet */
    uint64_t link;         /* the connection that bears its name and beat last; 0: none is known */
    long long link_gone_ms; /* since when that connection is gone; 0: it stands, or is not known */
    bool has_link;         /* ... was there when it was looked at last */
    size_t room;           /* bytes that may be pushed to it since then (routing/push_budget.h) */
    size_t unwritten;      /* bytes that were pushed and, as far as is known, not written yet */
    unsigned long long written; /* to it, when it was looked at last */
};

struct index;
/* It is a part of this index. */
session_index *session_index_new(struct index *index);
void session_index_free(session_index *sessions);

/* The hash {c}_session changed or is gone: reads it again. */
void session_index_refresh(server_ctx *ctx, session_index *sessions, hmq_slice session);
/* If this is the name of a {c}_session: the module itself changed it. */
void session_index_forget_facts(session_index *sessions, hmq_slice name);

session_entry *session_index_find(const session_index *sessions, hmq_slice session);
/* The first entry behind this key (len 0: of all), NULL at the end. */
session_entry *session_index_next(const session_index *sessions, hmq_slice after);
/* By session key -> session_entry *; to read. */
server_dict *session_index_keys(const session_index *sessions);
size_t session_index_count(const session_index *sessions);
size_t session_index_connected(const session_index *sessions);
/* Those whose policy may refuse messages. */
size_t session_index_refusing(const session_index *sessions);

/* The session's hash says this of QoS 0 now (0: nothing); the entry, if it says something. */
void session_index_set_qos0(session_index *sessions, session_entry *entry, uint64_t until);
session_entry *session_index_with_qos0(const session_index *sessions, hmq_slice session);

owner_entry *session_index_owner(const session_index *sessions, hmq_slice name);
owner_entry *session_index_make_owner(session_index *sessions, hmq_slice name);
/* Frees it if it has no session and does not beat. */
void session_index_settle_owner(session_index *sessions, owner_entry *owner);
/* Calls for every owner that beats or did; the callback may arm deadlines, nothing else. */
void session_index_each_owner(session_index *sessions, void (*visit)(session_index *, owner_entry *, void *),
                              void *data);

/* Moves a deadline (0: none). */
void session_index_arm(session_index *sessions, session_entry *entry, long long at_ms);
void session_index_arm_owner(session_index *sessions, owner_entry *owner, long long at_ms);

typedef struct deadline {
    session_entry *session; /* one of the two */
    owner_entry *owner;
} deadline;
/* Takes the first deadline that has passed; false if there is none.  It is not armed any more. */
bool session_index_take_due(session_index *sessions, long long now_ms, deadline *due);

/* Tells each difference: `differ` gets what differs and the name. */
void session_index_compare(const session_index *kept, const session_index *rebuilt,
                           void (*differ)(void *context, const char *what, hmq_slice name), void *context);

/* Since when the owner cannot have heard anything, because its connection is gone; 0: nobody knows.  Known only of an owner
 * whose connection bears its name (CLIENT SETNAME), as that of a bridge does: it has no other. */
long long owner_deaf_since(const session_index *sessions, hmq_slice name);

struct index_kind;
extern const struct index_kind index_sessions_kind;

/* The entry of an opened session, if the index knows of every change so far: NULL if it does not, or there is none.  O(log n):
 * the index is left as it is. */
session_entry *index_opened(server_ctx *ctx, hmq_slice session);

#endif
