/* usage.h - what each user has: opened sessions, retained messages, bytes in the queues of its sessions.
 *
 *     identity ──► user: sessions, retained messages, bytes     all queues of the database: bytes
 *
 * A user is the identity to which a session belongs (session/identity.h), or by which a retained message was
 * published (routing/retained.h).  Things without an identity count for the database alone.
 *
 * Invariants:
 *  1. Sessions and retained messages are counted where the index adds and removes them, so they are a function of the
 *     keys, as all of the index.
 *  2. Bytes are counted only while a maximum needs them (usage_era).  Each counted queue knows with how many bytes it
 *     is in the sums, so that it can be subtracted.  A queue that is not counted yet is in no sum.
 *  3. An event that makes the counts of queues useless (another role, a load, a time without a maximum) begins a new
 *     era.  Counts and sums of an earlier era are void, and nobody walks over them.
 *
 * Knows nothing of keys.  O(log n) by name, else O(1). */
#ifndef HMQ_USAGE_H
#define HMQ_USAGE_H

#include "server/state.h"

#define QUOTA_MAX (1LL << 40) /* of any maximum of a user */
#define IDENTITY_MAX_BYTES 2048 /* of the name of a user */

/* A sum of bytes, valid in its era. */
typedef struct usage_sum {
    size_t bytes;
    unsigned long long era;
} usage_sum;

/* What a publish will add whose queues are being checked; the era is that of the check.  A check in steps may have others in
 * between. */
typedef struct usage_reserved {
    usage_sum at_once, in_steps;
} usage_reserved;

typedef struct usage_user {
    server_string *name;
    size_t sessions, retained;
    usage_sum queued;
    usage_reserved reserved;
    long long logged_ms;   /* when its name was last logged */
} usage_user;

typedef struct usage {
    server_dict *users; /* identity -> usage_user */
    usage_sum queued;   /* all queues */
    usage_reserved reserved;
} usage;

/* What a queue contributes to the sums. */
typedef struct usage_queue {
    size_t bytes;
    size_t length;          /* references: any other number means that others changed the queue */
    unsigned long long era; /* 0: it is not counted */
    bool doubted;           /* a message of unknown size was removed; its bytes are still in `bytes` */
} usage_queue;

usage *usage_new(void);
void usage_free(usage *all);

usage_user *usage_find(const usage *all, hmq_slice identity);
usage_user *usage_make(usage *all, hmq_slice identity);
/* Frees the user if nothing counts for it. */
void usage_free_if_empty(usage *all, usage_user *user);

/* Are both the same user, or both no user?  They may belong to two indexes. */
bool usage_is_same(const usage_user *a, const usage_user *b);

/* The current era; 0: no bound needs bytes. */
unsigned long long usage_era(void);
/* The number of sessions with a bound of their own for the bytes of their user changes by `by`. */
void usage_bounds_changed(long by);

size_t usage_bytes(const usage_sum *sum);

/* The queue has this many bytes; `user` NULL: it belongs to no user. */
void usage_set(usage *all, usage_user *user, usage_queue *of, size_t bytes);
/* The queue no longer counts. */
void usage_forget(usage *all, usage_user *user, usage_queue *of);
/* The queue belongs to another user from now on. */
void usage_move(usage_user *from, usage_user *to, const usage_queue *of);
static inline bool usage_is_counted(const usage_queue *of) {
    return of->era != 0 && of->era == usage_era();
}

/* Reports each difference in sessions and retained messages. */
void usage_compare(const usage *kept, const usage *rebuilt,
                   void (*differ)(void *context, const char *what, hmq_slice name), void *context);

/* A name is logged at most once in this many seconds. */
#define QUOTA_LOGGED_EVERY_S 60
/* May the log name the user now?  NULL: may it name anything else of this kind? */
bool quota_may_log(usage_user *user);

#endif
