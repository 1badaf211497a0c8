/* internal.h - the structures behind engine/engine.h, and what its files know of one another; private to the core.
 *
 * Each file may use those below it, and none above:
 *
 *      engine/engine.c             connections come and go, flush, the server's loss and return
 *      engine/traffic.c     what each connection sent and received, for whoever looks
 *      engine/client.c      packets of clients become commands
 *      engine/server.c      replies and pushes become packets
 *      engine/queue.c       a session's queue: pages that are fetched, the comparison after a loss of the server
 *      engine/acks.c        what clients acknowledge, and how the server is told
 *      engine/send.c        messages on their way to a client: window, ready line
 *      engine/rules.c       what a client may publish, and which topics may be sent to it
 *      engine/confirm.c     answers that are withheld until replicas have confirmed
 *      engine/log.c         commands without a reply: the log of their bytes, and whom the replies belong to
 *      engine/answers.c     what a client is told of its publish in the end
 *      engine/inbox.c       which connection an inbox belongs to
 *      engine/connection.c  a connection's lists, output and events
 *      engine/inflight.c           the messages that a client has and has not acknowledged
 *
 * Memory: everything is the engine's, taken from its allocator.  A connection without traffic holds its structure, its
 * names and nothing else.
 *
 * Where memory is lacking, one of two things happens, and neither loses or reorders anything: a connection that cannot go
 * on in order is ended (hmq_engine_no_memory; the server has all that was acknowledged), and what merely could not be put on
 * a list is found by a sweep over all connections at the next flush. */
#ifndef HMQ_ENGINE_INTERNAL_H
#define HMQ_ENGINE_INTERNAL_H

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/resp.h"
#include "topic/record.h"
#include "mqtt/properties.h"
#include "engine/engine.h"
#include "engine/inflight.h"

/* Reason codes of MQTT 5.0. */
enum {
    REASON_NO_SUBSCRIBERS = 0x10,
    REASON_UNSPECIFIED = 0x80, /* the server refuses a publish for good */
    REASON_PROTOCOL = 0x82,
    REASON_NOT_AUTHORIZED = 0x87,
    REASON_BUSY = 0x89,
    REASON_IN_USE = 0x91,
    REASON_RECEIVE_MAXIMUM = 0x93,
    REASON_TOPIC_ALIAS = 0x94,
    REASON_QUOTA = 0x97
};

typedef enum phase { PHASE_NEW = 0, PHASE_HELD = 1, PHASE_OPEN = 2, PHASE_ENDED = 3 } phase;

/* What a command without a reply is for. */
typedef enum command_kind {
    COMMAND_PUBLISH = 1,
    COMMAND_DENIED = 2,   /* holds the place of a publish that the rules refuse, so that its answer comes in order */
    COMMAND_COMPLETE = 3, /* of QoS 2, incoming */
    COMMAND_RELEASE = 4,  /* of QoS 2, outgoing */
    COMMAND_ACK = 5,
    COMMAND_FETCH = 6,
    COMMAND_SENT = 7,
    COMMAND_OWNER = 8,
    COMMAND_SILENT = 9,   /* of the owner: confirmed by a push for each channel */
    COMMAND_WAIT = 10     /* engine/confirm.c */
} command_kind;

typedef struct awaited {
    hmq_conn conn;
    uint64_t token;     /* OWNER: its own; SILENT: confirmations to come; FETCH: bytes that its page may have; a
                           client's: 1 if it was sent before */
    uint32_t len;       /* of its bytes in the log */
    uint16_t packet_id; /* of an ACK: how many; of a FETCH: 1 if it is to be PACKED */
    uint8_t kind;
    uint8_t qos;
    uint16_t batch;        /* the first publish of a TOPIC.PIPELINE: how many there are; else 0 */
    uint8_t before, after; /* bytes of the TOPIC.PIPELINE that stand around its own */
    uint8_t losses;        /* of the server, since it was written: of a publish */
    bool alone;            /* under way as the only suspect (engine/log.c) */
} awaited;

/* The outcome of a command that replicas have not confirmed yet; the bytes of the command follow it. */
typedef struct held_answer {
    int64_t reached; /* of a publish */
    awaited entry;
    uint8_t refusal; /* reason code of 5.0; 0: it was done */
} held_answer;

/* A queue of 16-bit numbers, lists of connections, and so on: arrays that grow. */
typedef struct id_queue {
    hmq_bytes bytes;
} id_queue;

typedef struct conn_list {
    hmq_bytes bytes; /* hmq_conn */
} conn_list;

typedef struct bucket { /* a token bucket of one second */
    uint32_t rate;
    double tokens;
    int64_t filled_ms;
} bucket;

typedef struct retry { /* of what the server refuses for now */
    bool waits;
    uint32_t pause_ms; /* the last one; 0: nothing was refused since the last success */
    int64_t at_ms, since_ms;
    uint32_t most; /* of publishes that are sent again at once, while there was no room; 0: all */
} retry;

typedef struct alias {
    uint64_t hash;
    uint8_t *topic;
    uint16_t len;
} alias;

typedef struct rule_set { /* engine/rules.c */
    hmq_engine_rule *rules; /* one block with the texts */
    size_t count;
    bool denied_otherwise;
    bool can_deny;   /* some topic may be denied */
    bool judges_all; /* else only topics that begin with a dollar can be denied */
} rule_set;

typedef struct traffic {
    uint64_t received, bytes_received, sent, bytes_sent;
    uint64_t received_before, sent_before; /* at the last measurement */
    uint32_t received_lately, sent_lately;
} traffic;

typedef struct connection {
    hmq_conn handle;
    uint8_t phase;
    uint8_t version;
    bool writable, in_outputs, in_flush, in_waiting, in_fetch_queue, in_ack_queue, in_unconfirmed;
    bool paused;       /* a packet is with the owner: what follows waits */
    bool is_resting; /* and so RELIEF is owed */
    bool has_more;     /* whole packets were left in `unread`: a call takes TURN_PACKETS at most */
    uint8_t owed;      /* the event that ended it, if there was no memory to raise it; else 0 */

    /* From the client. */
    hmq_bytes unread;
    size_t connect_held;  /* as counted in the engine's connects_held */
    uint32_t outstanding; /* PUBLISH, DENIED, COMPLETE without an outcome */
    uint32_t under_way;   /* of them with the server */
    size_t under_way_bytes;
    float reach; /* to how many sessions its publishes go, a mean of the last ones */
    hmq_bytes again;      /* those of them that are to be sent again: engine/log.c has the form */
    hmq_bytes later;      /* and those that came behind them */
    hmq_bytes held;       /* held_answers with their commands: engine/confirm.c */
    retry publishes;      /* one of them was refused for now */
    uint32_t quota_used;
    uint16_t receive_maximum, alias_maximum_in, alias_maximum_out;
    uint16_t aliases_out_count;
    alias *aliases_in;  /* alias_maximum_in, by alias - 1; NULL until the first */
    alias *aliases_out; /* alias_maximum_out */
    bucket publishing;
    bool denial_is_reported; /* one line in a log has to do for a connection */
    rule_set publish_rules;

    /* To the client. */
    uint64_t unclaimed; /* as the engine's was when it was accepted */
    hmq_bytes output;
    hmq_inflight inflight;
    uint16_t window;
    uint32_t places; /* entries in flight from which on nothing is sent */
    uint32_t max_packet_out;
    uint64_t position, highest;
    uint64_t check_until, missed_after; /* while checking: engine/queue.c */
    uint64_t newest; /* the highest serial pushed */
    bool behind, fetching, checking, missed, sent_due;
    bool overflowed; /* it is behind because pushes came faster than acknowledgements */
    bool outgrew;    /* backlogs_outgrown has counted it, and it has not caught up since */
    uint32_t needs; /* bytes of the next message of the queue, which is larger than a page; 0: not known to be */
    bool replays, wants_room; /* hmq_engine_replays */
    bool withheld_is_reported;    /* as told_of_denial */
    rule_set receive_rules;
    retry queue;     /* a command about the session was refused for now */
    hmq_bytes ready; /* outgoing_message + value, one after the other */
    uint32_t ready_count;
    id_queue acks_due, acking;
    id_queue in_output; /* messages of QoS 0 of the queue: acknowledged when their bytes are handed out */
    int64_t acks_since_ms; /* while in_ack_queue */
    id_queue releases; /* those under way first */
    uint32_t releases_under_way;
    bool releases_held; /* one of those under way was refused: it and all behind it go again */
    bucket replay;

    traffic traffic;

    /* Who it is. */
    uint64_t epoch;
    uint8_t *names; /* session key + "_inbox", then the client id */
    size_t key_len, inbox_len, id_len;
} connection;

struct hmq_engine {
    hmq_allocator allocator;
    hmq_engine_settings settings;
    hmq_engine_counters count;

    connection **slots;
    uint32_t *generations;
    uint32_t slot_count, slot_room, live;
    hmq_bytes free_slots; /* uint32_t */

    uint32_t *inboxes; /* open addressing: slot + 1, 0 empty */
    uint32_t inbox_room, inbox_count;

    uint64_t unclaimed; /* messages of queues that came for nobody: a session that is about to be opened fetches them */

    size_t connects_held; /* bytes held for clients whose CONNECT is not whole */
    bool took; /* the last bytes of a client made a packet whole */
    bool up;
    bool broken; /* the server's bytes made no sense */
    bool unpacked; /* this server knows no SESSION.FETCH ... PACKED */
    bool unpipelined; /* this server knows no TOPIC.PIPELINE, or does not permit it */
    bool suspect_under_way; /* the one publish that may break the connection (engine/log.c) */
    bool wait_due, wait_under_way; /* engine/confirm.c */
    bool unconfirmed_is_reported;
    int64_t wait_at_ms; /* the next WAIT not before */
    uint32_t held; /* answers of all connections */
    size_t held_bytes; /* with their commands */
    bool sweep; /* something could not be put on a list, or raised: the next flush looks at all connections */
    hmq_bytes log; /* commands without a reply, and those not written */
    size_t unwritten; /* bytes at the end of the log */
    size_t run_bytes; /* at the very end: publishes that nobody was handed out, to become one command */
    uint32_t run; /* how many */
    double copies; /* of a publish, on the way: engine/log.c */
    hmq_bytes awaited; /* struct awaited, one for each command in the log */
    hmq_bytes incoming; /* what came from the server and is not a whole reply yet */
    hmq_resp_progress measured; /* of it */

    uint32_t fetches, fetch_limit;
    uint64_t fetch_bytes; /* that the pages under way may have */
    uint32_t behind; /* connections that are */
    uint32_t acking; /* identifiers in the SESSION.ACKs that have no reply yet */
    conn_list outputs, flushes, waiting, fetch_queue, ack_queue, unconfirmed;
    hmq_bytes events; /* hmq_engine_event, each with its bytes behind it */
    hmq_bytes scratch; /* room for a message of TBMQ's, decoded */
    hmq_bytes handed; /* the output that was handed out last */
    hmq_bytes spare[16]; /* buffers to be used again */
    uint32_t spare_count;
    int64_t now_ms;
};

/* ---- engine/connection.c ---- */
connection *hmq_engine_find(const hmq_engine *e, hmq_conn handle); /* NULL: not known any more */
bool hmq_engine_raise(hmq_engine *e, const hmq_engine_event *event); /* event->bytes are copied */
/* No more packets either way; the owner is told by this event. */
void hmq_engine_end(hmq_engine *e, connection *c, hmq_engine_event_kind kind, hmq_slice bytes);
void hmq_engine_no_memory(hmq_engine *e, connection *c); /* the same: FAILED */
void hmq_id_push(hmq_engine *e, connection *c, id_queue *queue, uint16_t packet_id); /* at most 65535 identifiers */
void hmq_engine_list_add(hmq_engine *e, conn_list *list, hmq_conn conn, bool *listed);
bool hmq_engine_list_pop(conn_list *list, hmq_conn *conn); /* false: nobody is on it */
void hmq_engine_wants_flush(hmq_engine *e, connection *c);
void hmq_engine_wants_time(hmq_engine *e, connection *c);
uint8_t *hmq_engine_output(hmq_engine *e, connection *c, size_t bytes); /* room for a packet; then hmq_engine_put */
void hmq_engine_put(hmq_engine *e, connection *c, size_t bytes);
bool hmq_engine_rests_now(const hmq_engine *e, const connection *c);
void hmq_engine_relieve(hmq_engine *e, connection *c); /* RELIEF if it is owed and due */
void hmq_engine_buffer_done(hmq_engine *e, hmq_bytes *buffer); /* an empty buffer goes back */
hmq_slice hmq_conn_key(const connection *c);
/* Are HMQ_LONG_QUEUE messages or more in its queue, as far as pushes tell? */
bool hmq_conn_queue_is_long(const connection *c);
hmq_slice hmq_conn_inbox(const connection *c);
hmq_slice hmq_conn_client_id(const connection *c);
void hmq_bucket_fill(bucket *b, int64_t now_ms);
/* Takes one token; false: none is there now. */
bool hmq_bucket_take(bucket *b, int64_t now_ms);
/* Takes one in any case; false: it is owed. */
bool hmq_bucket_spend(bucket *b, int64_t now_ms);
/* Tells the client: an acknowledgement. */
void hmq_client_answer(hmq_engine *e, connection *c, hmq_mqtt_type type, uint16_t packet_id, uint8_t reason);
/* The client has it for good (or never will): the server is to be told.  The entry may be gone afterwards. */
void hmq_outgoing_ack_due(hmq_engine *e, connection *c, inflight_entry *entry);
void hmq_outgoing_wants_fetch(hmq_engine *e, connection *c);
bool hmq_outgoing_may_tell(const hmq_engine *e, const connection *c); /* the server, now */
bool hmq_confirm_needs(const hmq_engine *e, const awaited *entry); /* by replicas, before the client is answered */
bool hmq_confirm_uses(const connection *c, uint16_t packet_id); /* O(what is held for it) */

/* ---- engine/answers.c ---- */
/* Is it the code at the beginning of an error? */
bool hmq_error_begins(hmq_slice error, const char *code);
/* Does the error say that the session is another's now, or over? */
bool hmq_session_is_gone(hmq_slice error);
/* A publish or a completion is over, one way or the other: its place is free. */
void hmq_publish_finish(hmq_engine *e, connection *c);
/* PUBACK or PUBREC. */
void hmq_publish_answer(hmq_engine *e, connection *c, const awaited *entry, uint8_t reason);
/* The server has taken the command: the client is answered. */
void hmq_publish_settle(hmq_engine *e, connection *c, const awaited *entry, int64_t reply);
/* What was held is settled: the client is answered. */
void hmq_publish_settled(hmq_engine *e, connection *c, const held_answer *answer);
/* The server has refused for good what the client cannot be told: the connection ends. */
void hmq_publish_failed(hmq_engine *e, connection *c, hmq_slice error);
/* The server was lost too often: the publish, of which these are the bytes of the command, is refused. */
void hmq_publish_abandon(hmq_engine *e, connection *c, const awaited *entry, const uint8_t *bytes);

/* ---- engine/inbox.c ---- */
connection *hmq_engine_find_inbox(const hmq_engine *e, hmq_slice inbox);
bool hmq_inbox_make_room(hmq_engine *e); /* for one more */
/* Gives the inbox to c, for which there is room; returns whose it was. */
connection *hmq_inbox_take(hmq_engine *e, connection *c);
void hmq_inbox_remove(hmq_engine *e, const connection *c); /* unless somebody else has it now */

/* ---- engine/client.c ---- */
void hmq_client_forget(hmq_engine *e, connection *c); /* aliases, rules */

/* ---- engine/rules.c ---- */
bool hmq_rules_set(hmq_engine *e, rule_set *set, const hmq_engine_rule *rules, size_t count, bool denied_otherwise);
void hmq_rules_deny_otherwise(rule_set *set, bool denied_otherwise);
bool hmq_rules_allow(const rule_set *set, hmq_slice topic); /* O(rules) */
void hmq_rules_free(hmq_engine *e, rule_set *set);

/* ---- engine/confirm.c ---- */
bool hmq_confirm_waits(const hmq_engine *e); /* for a WAIT to be sent */
void hmq_confirm_ask(hmq_engine *e); /* at the end of a turn: WAIT, if it is due */
void hmq_confirm_replied(hmq_engine *e, const hmq_resp_item *reply);
/* Withholds the answer to a command.  False: no memory. */
bool hmq_confirm_hold(hmq_engine *e, connection *c, const hmq_slice *command, const held_answer *answer);
void hmq_confirm_forget(hmq_engine *e, connection *c);
void hmq_confirm_lost(hmq_engine *e); /* before hmq_log_lost */

/* ---- engine/log.c ---- */
/* Room for commands of at most `most` bytes; NULL: no memory.  Then hmq_log_add, for each. */
uint8_t *hmq_log_room(hmq_engine *e, size_t most);
/* Ends a TOPIC.PIPELINE that is being written, behind which so many bytes stand. */
void hmq_log_seal(hmq_engine *e, size_t behind);
bool hmq_log_add(hmq_engine *e, const awaited *entry);
/* The same for a publish or a completion: if nothing can go to the server now, it is kept to be sent again. */
bool hmq_log_add_client(hmq_engine *e, connection *c, const awaited *entry);
const awaited *hmq_log_head(const hmq_engine *e); /* NULL: nothing is awaited */
void hmq_log_drop_head(hmq_engine *e);
hmq_slice hmq_log_head_command(const hmq_engine *e); /* its bytes, without a frame */
size_t hmq_log_count(const hmq_engine *e);
void hmq_log_lost(hmq_engine *e);
/* Keeps the command at the head to be sent again.  `seen`: the server may have executed it. */
bool hmq_log_keep_head(hmq_engine *e, connection *c, bool seen);
/* Sends what is kept, if nothing of it is under way: all of it, or (no memory) nothing for now. */
void hmq_log_send_again(hmq_engine *e, connection *c);
/* Has the client a publish or a completion with this identifier that was not answered?  O(commands without a reply). */
bool hmq_log_uses(const hmq_engine *e, const connection *c, uint16_t packet_id);
/* One push that confirms (UN)SUBSCRIBE. */
void hmq_log_confirmed(hmq_engine *e);
/* The reply to a suspect is there, or will not come. */
void hmq_log_suspect_done(hmq_engine *e);
/* Is there something to be sent again that is not refused for now? */
bool hmq_log_goes_on(const connection *c);
/* Publishes of QoS 0 among what is kept. */
size_t hmq_log_kept_qos0(const connection *c);

/* A message of the queue, as pushed, fetched or kept ready. */
typedef struct outgoing_message {
    uint64_t serial;
    uint32_t len;
    uint16_t packet_id;
    uint8_t state;
    bool fresh; /* pushed: counts for the latency, and not for the limit on replays */
} outgoing_message;

enum { STATE_QUEUED = 0, STATE_IN_FLIGHT = 1, STATE_RELEASED = 2 }; /* of an entry of SESSION.FETCH */

/* By which a message is known again. */
static inline uint64_t engine_mark(const uint8_t *value, size_t len) {
    static const hmq_hash_seed seed = {0x686f6c646d71, 0x656e67696e65};
    return hmq_hash_text(&seed, (const char *)value, len);
}

static inline uint16_t id_at(const id_queue *queue, size_t index) {
    uint16_t packet_id;
    memcpy(&packet_id, hmq_bytes_at(&queue->bytes) + index * sizeof packet_id, sizeof packet_id);
    return packet_id;
}

static inline uint16_t id_pop(id_queue *queue) {
    uint16_t packet_id = id_at(queue, 0);
    hmq_bytes_drop(&queue->bytes, sizeof packet_id);
    return packet_id;
}

static inline size_t id_count(const id_queue *queue) {
    return queue->bytes.len / sizeof(uint16_t);
}

/* ---- engine/acks.c ---- */
bool hmq_outgoing_acks_are_due(const connection *c);
void hmq_outgoing_wants_to_ack(hmq_engine *e, connection *c);
void hmq_outgoing_flush_acks(hmq_engine *e); /* of those who want to, as many as may go now */
void hmq_outgoing_send_all_acks(hmq_engine *e, connection *c); /* beyond HMQ_MOST_ACKING, too */
void hmq_outgoing_send_releases(hmq_engine *e, connection *c);
/* A command of the session: room for it, its first arguments, and that it is complete. */
size_t hmq_outgoing_session_bytes(const connection *c);
uint8_t *hmq_outgoing_put_session(uint8_t *out, const connection *c, const char *name, size_t len, uint64_t arguments);
bool hmq_outgoing_add(hmq_engine *e, const connection *c, command_kind kind, uint16_t packet_id, const uint8_t *begin,
                      const uint8_t *end);

/* ---- engine/send.c ---- */
/* The message behind `position`: sends it or puts it into the line. */
void hmq_outgoing_take(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value);
/* Its output was handed out. */
void hmq_outgoing_handed_out(hmq_engine *e, connection *c);
/* The next message of the queue is larger than any that may be fetched: it is acknowledged unsent. */
void hmq_outgoing_pass(hmq_engine *e, connection *c, uint64_t serial, uint16_t packet_id);
void hmq_outgoing_pushed(hmq_engine *e, connection *c, const hmq_delivery *delivery);
void hmq_outgoing_send_ready(hmq_engine *e, connection *c);
/* PUBACK, PUBREC and PUBCOMP: 0, or an hmq_engine_error. */
int hmq_outgoing_acknowledged(hmq_engine *e, connection *c, uint16_t packet_id);
int hmq_outgoing_received(hmq_engine *e, connection *c, uint16_t packet_id, uint8_t reason);
int hmq_outgoing_completed(hmq_engine *e, connection *c, uint16_t packet_id);

/* ---- engine/queue.c ---- */
void hmq_outgoing_flush(hmq_engine *e, connection *c);
/* The page that the connection at the head of the line waits for; false if none may be fetched now. */
bool hmq_outgoing_next_fetch(hmq_engine *e);
/* Whether there is more of its queue to fetch. */
static inline void hmq_outgoing_set_behind(hmq_engine *e, connection *c, bool behind) {
    e->behind += (uint32_t)behind - (uint32_t)c->behind;
    c->behind = behind;
}
/* False: that is no page. */
bool hmq_outgoing_fetched(hmq_engine *e, connection *c, const uint8_t *reply, size_t len);
void hmq_outgoing_fetch_failed(hmq_engine *e, connection *c);
void hmq_outgoing_ack_answered(hmq_engine *e, connection *c, uint16_t count, bool done);
void hmq_outgoing_release_answered(hmq_engine *e, connection *c, bool done);
/* Those at the head of the line that need no command: the client is told. */
void hmq_outgoing_pass_releases(hmq_engine *e, connection *c);
void hmq_outgoing_close(hmq_engine *e, connection *c); /* what the server should know still */
void hmq_outgoing_server_lost(hmq_engine *e, connection *c);
void hmq_outgoing_forget(hmq_engine *e, connection *c);

#endif
