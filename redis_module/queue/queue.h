/* queue.h - the message queue of one session: a sorted set of references and one string for each message.
 *
 *     {c}_messages            ZSET    member {c}_messages_<packet id>, score = serial
 *     {c}_messages_<pid>      STRING  the message, with its own expiry
 *     {c}_last_packet_id      STRING  decimal, the packet identifier handed out last
 *     {c}_session             HASH    see index/session_hash.h
 *
 * Invariants:
 *  1. Serials only grow, also after the queue was empty; identifiers are never handed out while in use.  A promoted
 *     server skips some once in each session, because its former primary may have handed out more than it replicated.
 *  2. Each change is replicated as stock commands with absolute expiry times, in the same order.
 *  3. A queued message is not handed out after its own expiry.  In flight it no longer expires by it (queue/expiry.h).
 *  4. The queue and the counter expire with the session if it was opened, else not before their last message.
 *  5. All arguments are checked before the first write.
 *  6. A queue has at most as many messages as its limit, and bytes as its maximum (queue/notes.h), except those in
 *     flight; and at most the bytes for which its user and the database have room (queue/usage.h), except what it had.
 *
 * These functions do not reply, except the two that say so. */
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
    bool taken; /* a file or replica takes stock commands (server/replication.h) */
    bool emptied; /* the last reference was removed while it was open, and with it the set's expiry */
} queue;

typedef struct queue_item {
    server_string *value; /* a value in TBMQ's format (src/topic/tbmq.h) is stored with its new identifier */
    long long expire_ms;  /* absolute, ms since 1970 */
    uint16_t packet_id;   /* out; 0: trimmed at once */
    uint64_t serial;      /* out */
    uint64_t previous;    /* out: serial of the entry before it, 0 if it was the only one */
} queue_item;

/* Whose maximum left no room. */
typedef enum queue_cause { QUEUE_CAUSE_OWN, QUEUE_CAUSE_USER, QUEUE_CAUSE_DATABASE } queue_cause;

typedef struct queue_result {
    uint64_t last_serial;
    long long trimmed;
    long long expired;
    long long keys_expire_ms; /* when the queue's keys end */
    queue_cause cause; /* if something was dropped or refused */
} queue_result;

/* `mode`: SERVER_READ or SERVER_WRITE.  False if {c}_messages has the wrong type.  Close the queue in any case. */
bool queue_open(queue *q, server_ctx *ctx, hmq_slice session, int mode);
void queue_close(queue *q);

/* Reply WRONGTYPE, and return SERVER_OK: after a failed queue_open; for a counter that holds no packet identifier. */
int queue_reply_wrong_type(const queue *q);
int queue_reply_wrong_counter(queue *q);

/* {c}_last_packet_id; belongs to the queue. */
server_string *queue_counter_name(queue *q);

/* Number of references, expired ones included. */
size_t queue_length(const queue *q);

/* Serial of the first, or last, reference; 0 if there is none. */
uint64_t queue_first_serial(const queue *q);
uint64_t queue_last_serial(const queue *q);

/* The packet identifier handed out last, 0 if none; -1 if the key holds something else. */
long long queue_last_packet_id(queue *q);

/* Appends the items in order.  The session's policy decides about messages beyond `limit`, or beyond its maximum of
 * bytes (index/overflow.h).  Expired references are removed first, messages in flight never.  An item that is not
 * stored has packet identifier 0. */
typedef enum queue_status {
    QUEUE_OK,
    QUEUE_BAD_COUNTER,
    QUEUE_BAD_SESSION,
    QUEUE_FULL,    /* not all were stored */
    QUEUE_REFUSED, /* by the session's policy (index/overflow.h): none was stored, nothing has changed */
    QUEUE_WAITS,   /* the same, temporarily */
} queue_status;
queue_status queue_add(queue *q, queue_item *items, size_t count, size_t limit, queue_result *result);

/* The same if all have room without dropping a message; otherwise QUEUE_REFUSED, and none is stored. */
queue_status queue_add_whole(queue *q, queue_item *items, size_t count, size_t limit, queue_result *result);

/* Has the queue room for one more message of this size?  If not, the session's policy decides: QUEUE_REFUSED,
 * QUEUE_WAITS, or QUEUE_OK if others are dropped for it.  QUEUE_WAITS also if there is room now, but not after the
 * pending messages that are on their way to the queue. */
queue_status queue_check_room(queue *q, size_t bytes, size_t messages_ahead, size_t bytes_ahead);

/* A message that the queue's policy refuses was dropped, because no publisher could be refused. */
void queue_dropped(queue *q);

/* Between these two calls of one command, stored messages may be written to the append-only file as one stock
 * command, at the latest with the second call.  The calls may be nested. */
void queue_replicate_begin(void);
void queue_replicate_end(server_ctx *ctx);

/* The session is new: no other server can have handed out its identifiers. */
void queue_note_new_session(server_ctx *ctx, hmq_slice session);

/* The state of an imported message at its origin. */
enum { QUEUE_QUEUED = 0, QUEUE_IN_FLIGHT = 1, QUEUE_RELEASED = 2 };
typedef struct queue_origin {
    uint16_t packet_id; /* 0: the session's next */
    uint64_t serial;    /* 0, or not above the session's last: the next that fits the identifier */
    uint8_t state;
} queue_origin;

/* Appends messages from elsewhere with their identifiers, if they are free, and their serials.  Messages that were in
 * flight stay so, unless a queued one precedes them.  If the limit is too small, the oldest are not stored, queued
 * ones before those in flight; both arrays then hold the others, *count says how many.  `counter`: the identifier
 * handed out last (0: that of the last message). */
queue_status queue_import(queue *q, queue_item *items, queue_origin *origins, size_t *count, size_t limit,
                          uint16_t counter, queue_result *result);

/* Is there a message that has not expired?  O(expired ones). */
bool queue_has_messages(queue *q);

/* Removes the messages with these identifiers; returns how many existed. */
size_t queue_remove(queue *q, const uint16_t *packet_ids, size_t count);

/* Removes messages, references and counter.  Returns how many references there were. */
size_t queue_drop(queue *q);

/* A notification says that a message of this session was deleted or expired: what is remembered of the queue is no
 * longer valid. */
void queue_message_gone(int db, hmq_slice session);
/* Forgets what is remembered of all queues. */
void queue_forget_hints(void);

/* Messages up to `serial` (at most the newest) are in flight now; the queue is open for writing.  False if the
 * session's hash has another type. */
bool queue_set_sent(queue *q, uint64_t serial);

/* The serial of the newest message that may have been stored by then (ms since 1970); UINT64_MAX if none is certainly
 * newer.  O(log n). */
uint64_t queue_serial_stored_by(queue *q, long long ms);

/* How many references have a serial up to `serial`; counts no further than `most`. */
size_t queue_count_up_to(const queue *q, uint64_t serial, size_t most);

/* The serial of the reference at this place, from 1 on; UINT64_MAX if there are fewer.  O(place). */
uint64_t queue_serial_at(const queue *q, size_t place);

/* Is there a reference after `after`, up to `up_to`?  O(log n). */
bool queue_any_between(const queue *q, uint64_t after, uint64_t up_to);

/* A part of the queue: references after `after` up to `up_to`, oldest first. */
typedef struct queue_range {
    uint64_t after;
    uint64_t up_to;  /* UINT64_MAX: to the end */
    uint64_t sent;   /* up to here messages are in flight: they do not expire by their own expiry */
    size_t count;    /* most messages */
    size_t bytes;    /* approximate maximum bytes of values; at least one message is read */
    bool bounded;    /* `bytes` is a strict maximum: no message if the first one is larger */
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
