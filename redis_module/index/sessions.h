/* sessions.h - the opened sessions of a database, in memory: who is connected for which owner, and when the module
 * must act on a session without a command.
 *
 *     sessions    session key -> entry, in the order of the keys (SESSION.LIST)
 *     owners      name -> owner: its connected sessions
 *     deadlines   time (8 bytes, big endian), kind, name: the next one is the first
 *
 * Invariants:
 *  1. An entry is a pure function of {c}_session.  A command that changes the hash refreshes the entry in the same
 *     step; the index hears of changes by others (index/index.h).  HOLDMQ.CHECK compares with a rebuild.
 *  2. For each entry with `due_ms` a deadline is armed, not later than that.  Acting on a deadline reads the keys
 *     again.
 *  3. An owner exists while it has connected sessions, or a heartbeat (session/owner.h).
 *
 * Owns everything that it holds.  Refreshing costs O(log n). */
#ifndef HMQ_SESSION_INDEX_H
#define HMQ_SESSION_INDEX_H

#include "index/session_facts.h"
#include "index/usage.h"

typedef struct session_index session_index;
typedef struct owner_entry owner_entry;

typedef struct session_entry {
    server_string *key;
    owner_entry *owner; /* NULL if it is not connected */
    bool connected;
    bool shares;        /* has, or had, a shared subscription */
    bool refuses;       /* its policy may refuse messages (index/overflow.h) */
    bool gives_back, ending; /* messages of it go to other members of its groups (routing/share_leave.h) */
    uint64_t gave_up_to; /* ... up to this serial: not a function of the hash */
    usage_user *user;   /* the user to whom it belongs (session/identity.h); NULL: none */
    long long user_bytes,
        user_retained; /* the maxima of that user, from the hash; 0: none, -1: those of the settings */
    usage_queue queued; /* how its queue counts (queue/usage.h); not a function of the hash */
    size_t window;      /* the largest window that a client used, 0: none (shares only) */
    long long epoch;
    long long due_ms;   /* 0: nothing is due */
    long long armed_ms; /* its deadline, 0: none */
    uint64_t qos0_until; /* 0: nothing of QoS 0 is in its queue (routing/qos0.h) */
    unsigned promotions; /* promotions already accounted for by skipping packet identifiers (queue/add.c) */
    bool facts_known;   /* `facts` equal the hash, except for its expiry */
    session_facts facts;
} session_entry;

struct owner_entry {
    server_string *name;
    server_dict *sessions; /* session key -> session_entry * */
    long long lease_s;     /* the longest that a session or the owner's key says; 0: the owner has no heartbeat */
    long long armed_ms;    /* its deadline, 0: none */
    uint64_t heard;        /* the period of service (session/owner.h) of its last heartbeat, 0: none */
    long long grace_ms;    /* a missing heartbeat counts only after this time; 0: at once */
    long long lost_epoch;  /* if it is lost: sessions with a smaller epoch are being closed; 0: it is not lost */
    server_string *cursor; /* ... up to this key; NULL: none yet */
    uint64_t link;         /* the connection with its name that sent the last heartbeat; 0: none is known */
    long long link_gone_ms; /* since when that connection is gone; 0: it exists, or is not known */
    bool has_link;         /* ... existed at the last look */
    size_t room;           /* bytes that may still be pushed to it (routing/push_budget.h) */
    size_t unwritten;      /* bytes that were pushed and are, as far as is known, not written yet */
    unsigned long long written; /* bytes written to it, at the last look */
};

struct index;
/* It is a part of this index. */
session_index *session_index_new(struct index *index);
void session_index_free(session_index *sessions);

/* The hash {c}_session has changed or is gone: reads it again. */
void session_index_refresh(server_ctx *ctx, session_index *sessions, hmq_slice session);
/* The module itself changed the key of this name. */
void session_index_forget_facts(session_index *sessions, hmq_slice name);

session_entry *session_index_find(const session_index *sessions, hmq_slice session);
/* The first entry after this key (len 0: the first of all); NULL at the end. */
session_entry *session_index_next(const session_index *sessions, hmq_slice after);
/* By session key -> session_entry *; to read. */
server_dict *session_index_keys(const session_index *sessions);
size_t session_index_count(const session_index *sessions);
size_t session_index_connected(const session_index *sessions);
/* The number of those whose policy may refuse messages. */
size_t session_index_refusing(const session_index *sessions);

/* Sets `qos0_until` as in the session's hash (0: none). */
void session_index_set_qos0(session_index *sessions, session_entry *entry, uint64_t until);
session_entry *session_index_with_qos0(const session_index *sessions, hmq_slice session);

owner_entry *session_index_owner(const session_index *sessions, hmq_slice name);
owner_entry *session_index_make_owner(session_index *sessions, hmq_slice name);
bool session_index_has_owners(const session_index *sessions);
/* Frees the owner if it has no session and no heartbeat. */
void session_index_settle_owner(session_index *sessions, owner_entry *owner);
/* Calls for every owner with a heartbeat, present or past.  The callback may only arm deadlines. */
void session_index_each_owner(session_index *sessions, void (*visit)(session_index *, owner_entry *, void *),
                              void *data);

/* Moves a deadline (0: none). */
void session_index_arm(session_index *sessions, session_entry *entry, long long at_ms);
void session_index_arm_owner(session_index *sessions, owner_entry *owner, long long at_ms);

typedef struct deadline {
    session_entry *session; /* one of the two */
    owner_entry *owner;
} deadline;
/* Takes the first deadline that has passed; false if there is none.  It is then no longer armed. */
bool session_index_take_due(session_index *sessions, long long now_ms, deadline *due);

/* Reports each difference: `differ` gets a sentence and the name. */
void session_index_compare(const session_index *kept, const session_index *rebuilt,
                           void (*differ)(void *context, const char *what, hmq_slice name), void *context);

/* Since when the owner cannot have received anything, because its connection is gone; 0: not known.  Known only of an
 * owner whose connection has its name (CLIENT SETNAME), as that of a bridge has. */
long long owner_disconnected_since(const session_index *sessions, hmq_slice name);

struct index_kind;
extern const struct index_kind index_sessions_kind;

/* The entry of an opened session, if the index is current; else NULL, and NULL if there is none.  O(log n): changes
 * nothing in the index. */
session_entry *index_opened(server_ctx *ctx, hmq_slice session);

#endif
