/* parts.h - what the files of the queue share, and no others use. */
#ifndef HMQ_QUEUE_PARTS_H
#define HMQ_QUEUE_PARTS_H

#include "index/overflow.h"
#include "index/session_hash.h"
#include "queue/queue.h"

/* {c}_messages_<packet id>, which is also the reference in the set.  The caller frees it. */
server_string *queue_message_name(hmq_slice session, uint16_t packet_id);
/* The identifier in such a name; 0 if the name is not one of this session's. */
uint16_t queue_packet_id_of(hmq_slice session, const server_string *member);
void queue_free_members(server_string **members, size_t count);

/* The number in an open counter: 0 if the key does not exist, -1 if it holds something else. */
long long queue_counter_value(server_key *key);

/* The serial of the identifier handed out last.  It is above all serials in use, also if the last messages were
 * acknowledged or trimmed. */
uint64_t queue_serial_before(const session_facts *facts, uint64_t last_in_queue, uint16_t counter);

/* When the message expires (ms since 1970); 0 if it is gone.  `own`: also by its own expiry (queue/expiry.h). */
long long queue_message_expiry(queue *q, server_string *member, bool own);
/* The same, and the bytes of its value. */
long long queue_message_read(queue *q, server_string *member, bool own, size_t *bytes);

/* Up to `most` of the oldest references after `after`; the caller frees them. */
size_t queue_collect_oldest(queue *q, uint64_t after, server_string **members, size_t most);

/* Removes references, and the messages that they name, from set and keyspace; replicated and announced. */
void queue_remove_members(queue *q, server_string **members, size_t count);
size_t queue_remove_oldest(queue *q, uint64_t after, size_t most);
/* Removes the oldest after `after`, until this many messages and bytes are removed.  Returns the number of messages. */
size_t queue_remove_oldest_of(queue *q, uint64_t after, size_t count, size_t bytes);

/* The run of new messages that have room. */
typedef struct queue_room {
    size_t first, count;
} queue_room;
/* Makes room for new messages within `limit` and the session's maximum of bytes; messages in flight stay.  With a
 * policy that refuses, all have room or none. */
queue_room queue_make_room(queue *q, const session_facts *facts, const queue_item *items, size_t count, size_t limit,
                           overflow policy, queue_result *result);
/* Is there room for this many messages with this many bytes in total?  Removes only expired references. */
bool queue_has_room(queue *q, const session_facts *facts, size_t count, size_t bytes, size_t limit,
                    queue_result *result);
/* Messages were added of which the first expires at `soonest_ms`. */
void queue_expires_from(queue *q, long long soonest_ms);

/* ---- queue/add.c ------------------------------------------------------------------------------------------- */

/* Puts the reference into the set.  False if the member is already there and its message lives.  If that message has
 * expired, the new reference replaces it, and *last_serial may change. */
bool queue_put_reference(queue *q, server_string *member, uint64_t serial, uint64_t *last_serial);

/* Stores the message that a reference names; returns its bytes. */
size_t queue_store_message(queue *q, server_string *member, const queue_item *item);

/* What was added to the queue, and the last identifier and serial that were used. */
typedef struct queue_added {
    const queue_item *items;
    server_string **members; /* their references */
    size_t count;
    uint16_t packet_id; /* handed out last */
    uint64_t serial;    /* the largest so far */
    bool was_empty;
} queue_added;

/* Replicates the references, and updates counter and expiry.  If nothing was added, result->keys_expire_ms says when
 * the counter ends; otherwise it is set. */
void queue_settle(queue *q, server_key *last, const session_facts *facts, queue_added added, queue_result *result);

/* When the first of these messages may expire. */
long long queue_soonest_expiry(const queue_item *items, size_t count);

/* ---- queue/replicate.c ----------------------------------------------------------------------------------------- */

/* The message is in the keyspace: replicates it, immediately or together with others. */
void queue_replicate_message(queue *q, server_string *member, server_string *value, long long expire_ms);
/* Replicates now what was postponed, because another command about these messages follows. */
void queue_replicate_now(server_ctx *ctx);

/* ---- queue/expiry.c ---------------------------------------------------------------------------------------- */

/* These messages were added: notes it if one has an expiry of its own. */
void queue_note_expiring(queue *q, const session_facts *facts, const queue_item *items, size_t count,
                         long long keys_expire_ms);
/* The messages after facts->sent up to `serial` are in flight now: they no longer expire by their own expiry. */
void queue_mark_in_flight(queue *q, const session_facts *facts, uint64_t serial);
/* When the key of a message that is now in flight expires.  `own_ms`: expiry of the message, 0 if none; `current_ms`: of
 * the key. */
long long queue_in_flight_expiry_ms(int64_t own_ms, long long current_ms);
/* The keys of a session that was never opened must not end before `expire_ms`. */
void queue_extend_expiry(queue *q, const session_facts *facts, long long expire_ms);

/* The bytes of a message's value; *there: whether the message exists. */
size_t queue_value_bytes(queue *q, server_string *member, bool *there);

#endif
