/* queue.h - the message queue of one session: a sorted set of references and one string for each message.
 *
 *     {c}_messages            ZSET    member {c}_messages_<packet id>, score = serial
 *     {c}_messages_<pid>      STRING  the message, with its own expiry
 *     {c}_last_packet_id      STRING  decimal, the packet identifier handed out last
 *     {c}_session             HASH    see index/session_hash.h
 *
 * Invariants:
 *  1. Serials only grow, also when the queue ran empty; identifiers are never handed out while in use.
 *     A server that was promoted skips some in each session once: its former primary may have handed out more than it told.
 *  2. Each change is replicated as stock commands with absolute expiry times, in the same order.
 *  3. A message with an expiry of its own is gone for all who hand out queued messages once that has passed, and does
 *     not expire by it any more once it is in flight (queue/expiry.h).
 *  4. The queue and the counter expire with the session if it was opened, else not before their last message.
 *  5. All arguments are checked before the first write.
 *  6. A queue has no more messages than its limit, nor bytes than its bound (queue/notes.h), but for those in flight; nor
 *     more bytes than its user, or the database, has room for (queue/usage.h), but for what it had.
 *
 * Nothing here replies: commands do. */
#ifndef HMQ_QUEUE_H
#define HMQ_QUEUE_H

#include "server/state.h"

#define QUEUE_MAX_LIMIT 65535
#define QUEUE_MAX_TTL_S 2147483647LL

typedef struct queue {
    server_ctx *ctx;
    hmq_slice session;             /* session key; belongs to the caller */
    server_string *messages_name;  /* {c}_messages */
    server_string *last_name;      /* {c}_last_packet_id */
    server_key *messages;          /* open, NULL if it is empty and was opened for reading */
    bool taken; /* somebody takes stock commands (server/replication.h) */
    bool emptied; /* the last reference went while it was open, and the set's expiry with it */
} queue;

typedef struct queue_item {
    server_string *value; /* one as TBMQ keeps it (src/topic/tbmq.h) is stored with the identifier that it gets */
    long long expire_ms;  /* absolute, ms since 1970 */
    uint16_t packet_id;   /* out; 0: trimmed at once */
    uint64_t serial;      /* out */
    uint64_t previous;    /* out: serial of the entry before it, 0 if it was the only one */
} queue_item;

/* Whose bound it was that had no room. */
typedef enum queue_cause { QUEUE_CAUSE_OWN, QUEUE_CAUSE_USER, QUEUE_CAUSE_DATABASE } queue_cause;

typedef struct queue_result {
    uint64_t last_serial;
    long long trimmed;
    long long expired;
    long long keys_expire_ms; /* when the queue's keys end */
    queue_cause cause; /* if something was dropped or refused */
} queue_result;

/* SERVER_READ or SERVER_WRITE.  False if a key has the wrong type (see wrong_type); close it in any case. */
bool queue_open(queue *q, server_ctx *ctx, hmq_slice session, int mode);
void queue_close(queue *q);

/* Reply WRONGTYPE, and return SERVER_OK: after a failed queue_open; for a counter that holds no packet identifier. */
int queue_reply_wrong_type(const queue *q);
int queue_reply_wrong_counter(queue *q);

/* {c}_last_packet_id; belongs to the queue. */
server_string *queue_counter_name(queue *q);

/* Number of references, expired ones included. */
size_t queue_length(const queue *q);

/* Serial of the first (last) reference, 0 if there is none. */
uint64_t queue_first_serial(const queue *q);
uint64_t queue_last_serial(const queue *q);

/* The packet identifier handed out last, 0 if none; -1 if the key holds something else. */
long long queue_last_packet_id(queue *q);

/* Appends the items in order.  What happens to messages beyond `limit`, or beyond the session's bound in bytes, its policy
 * says (index/overflow.h); expired references go first, messages in flight never.  An item that is not stored has packet
 * identifier 0. */
typedef enum queue_status {
    QUEUE_OK,
    QUEUE_BAD_COUNTER,
    QUEUE_BAD_SESSION,
    QUEUE_FULL,    /* not all were stored */
    QUEUE_REFUSED, /* by the session's policy (index/overflow.h): none was, and nothing is changed */
    QUEUE_WAITS,   /* the same, for now */
} queue_status;
queue_status queue_add(queue *q, queue_item *items, size_t count, size_t limit, queue_result *result);

/* The same if all have room without dropping one; else QUEUE_REFUSED: none is stored. */
queue_status queue_add_whole(queue *q, queue_item *items, size_t count, size_t limit, queue_result *result);

/* Has the queue room for one more message of so many bytes?  What the session's policy says if not: QUEUE_REFUSED,
 * QUEUE_WAITS, or QUEUE_OK if others are dropped for it. */
queue_status queue_judge(queue *q, size_t bytes);

/* A message for the queue was dropped that its policy refuses, because nobody could be told. */
void queue_dropped(queue *q);

/* Between these two calls, of one command, messages that are stored may be told to the append-only file in one stock command:
 * at the latest with the second.  They may be nested. */
void queue_words_begin(void);
void queue_words_end(server_ctx *ctx);

/* The session is new: no other server can have handed out identifiers of it. */
void queue_begins_here(server_ctx *ctx, hmq_slice session);

/* What a message was where it comes from. */
enum { QUEUE_QUEUED = 0, QUEUE_IN_FLIGHT = 1, QUEUE_RELEASED = 2 };
typedef struct queue_origin {
    uint16_t packet_id; /* 0: the session's next */
    uint64_t serial;    /* 0, or not behind the last one of the session: the next that goes with the identifier */
    uint8_t state;
} queue_origin;

/* Appends messages that come from elsewhere: with their identifiers, as far as they are free, and their serials.  In
 * flight are those that were, as long as nothing queued is before them.  What the limit leaves no room for is not stored:
 * of the oldest, what is queued before what is in flight; both arrays then hold the others, *count says how many.
 * `counter`: the identifier handed out last (0: that of the last message). */
queue_status queue_import(queue *q, queue_item *items, queue_origin *origins, size_t *count, size_t limit,
                          uint16_t counter, queue_result *result);

/* Is there a message that has not expired?  O(expired ones). */
bool queue_has_messages(queue *q);

/* Removes the messages with these identifiers; how many were there. */
size_t queue_remove(queue *q, const uint16_t *packet_ids, size_t count);

/* Removes everything: messages, references, counter.  How many references there were. */
size_t queue_drop(queue *q);

/* A message key of this session was deleted or expired, as notifications tell: what is remembered of the queue no
 * longer holds. */
void queue_message_gone(int db, hmq_slice session);
/* ... of any queue. */
void queue_forget_hints(void);

/* Messages up to `serial` (no further than the newest) are in flight now; the queue is open for writing.  False if the session's hash is none. */
bool queue_set_sent(queue *q, uint64_t serial);

/* The serial of the newest message that may have been stored by then (ms since 1970): UINT64_MAX if none is certainly
 * newer.  O(log n). */
uint64_t queue_stored_by(queue *q, long long ms);

/* How many references have a serial up to `serial`; counts no further than `most`. */
size_t queue_count_up_to(const queue *q, uint64_t serial, size_t most);

/* Is there a reference behind `after`, up to `up_to`?  O(log n). */
bool queue_any_between(const queue *q, uint64_t after, uint64_t up_to);

/* A part of the queue: references behind `after` up to `up_to`, oldest first. */
typedef struct queue_range {
    uint64_t after;
    uint64_t up_to;  /* UINT64_MAX: to the end */
    uint64_t sent;   /* up to here messages are in flight: they do not expire by their own expiry */
    size_t count;    /* most messages */
    size_t bytes;    /* about so many bytes of values, but at least one message */
    bool bounded;    /* at most so many bytes, and no message if the first one is larger */
} queue_range;

typedef struct queue_walked {
    size_t visited;
    uint64_t last;      /* serial of the last message visited, 0 if none */
    bool more;          /* something follows in the range */
    size_t too_large;   /* bytes of the first message, if it alone is more than a bounded range takes; else 0 */
    uint64_t too_large_serial;
    uint16_t too_large_id;
    long long expired;  /* references whose message was gone: removed, replicated, not visited */
} queue_walked;

typedef void (*queue_visit)(void *context, uint64_t serial, uint16_t packet_id, const char *value, size_t len);
queue_walked queue_walk(queue *q, queue_range range, queue_visit visit, void *context);

/* Replaces the message by `value`, its expiry kept; replicated.  False if it is not there. */
typedef server_string *(*queue_rewrite)(void *context, uint16_t packet_id, const char *value, size_t len);
bool queue_replace(queue *q, uint16_t packet_id, queue_rewrite rewrite, void *context);

#endif
