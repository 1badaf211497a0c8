/* internal.h - the structures behind engine/engine.h, and the functions that its files share; private to the core.
 *
 * Each file may use the files listed below it, and none above it:
 *
 *      engine/engine.c      opens and closes connections, flushes
 *      engine/links.c       handles the loss and return of a link, and moves sessions between links
 *      engine/traffic.c     measures what each connection sent and received
 *      engine/client.c      turns packets of clients into commands
 *      engine/server.c      turns replies and pushes into packets
 *      engine/crossing.c    sends publishes to several nodes of a cluster; with the files that engine/lane.h lists
 *      engine/queue.c       fetches a session's queue page by page, and compares it after a loss of the server
 *      engine/acks.c        collects acknowledgements of clients and passes them to the server
 *      engine/send.c        sends messages to a client: window, ready line
 *      engine/members.c     further sessions of a client: their packet identifiers, and the window that they share
 *      engine/places.c      widens and narrows how many messages may be in the queue that were sent
 *      engine/rules.c       decides what a client may publish, and which topics may be sent to it
 *      engine/confirm.c     withholds answers until replicas have confirmed
 *      engine/log.c         keeps the bytes of commands without a reply, and whom each reply belongs to
 *      engine/answers.c     gives a client the final answer to its publish
 *      engine/refusals.c    which refusals are temporary, and the pauses after them
 *      engine/routes.c      which link has a slot, and the answers of nodes about topics
 *      engine/inbox.c       finds the connection of an inbox
 *      engine/trace.c       notes the times of sampled publishes and deliveries
 *      engine/latency.c     measures how long publishes and deliveries take
 *      engine/connection.c  a connection's lists, output and events
 *      engine/inflight.c    the messages that a client has received and not acknowledged
 *
 * Who owns what: the engine owns the links, the connections, and what counts for all of them (bounds on memory, inboxes,
 * events, `flushes`, `waiting`, `outputs`).  A link owns what is between the engine and one server: the log of commands, the
 * bytes of an incomplete reply, WAITs, pages under way, and the lines of connections that wait for it.  A connection
 * has one link.  All its commands are in that link's log, and in the lines of other links it is ignored.
 *
 * Memory: the engine owns everything, and takes it from its allocator.  An idle connection holds its structure and its
 * names, and nothing else.
 *
 * When memory runs out, nothing is lost or reordered.  A connection that cannot continue in order is ended
 * (hmq_engine_no_memory): the server has everything that was acknowledged.  A connection that could not be put on a list
 * is found by a sweep over all connections at the next flush. */
#ifndef HMQ_ENGINE_INTERNAL_H
#define HMQ_ENGINE_INTERNAL_H

#include "base/assert.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/resp.h"
#include "topic/record.h"
#include "topic/slot.h"
#include "topic/topic.h"
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

/* The purpose of a command without a reply. */
typedef enum command_kind {
    COMMAND_PUBLISH = 1,
    COMMAND_DENIED = 2,   /* holds the place of a publish that the rules deny, so that its answer comes in order */
    COMMAND_COMPLETE = 3, /* of QoS 2, incoming */
    COMMAND_RELEASE = 4,  /* of QoS 2, outgoing */
    COMMAND_ACK = 5,
    COMMAND_FETCH = 6,
    COMMAND_SENT = 7,
    COMMAND_OWNER = 8,
    COMMAND_SILENT = 9,   /* of the owner: each channel is confirmed by a push, and there is no reply */
    COMMAND_WAIT = 10,    /* engine/confirm.c */
    COMMAND_VISIT = 11,   /* of a publish that crosses nodes, and the next two: engine/crossing.c */
    COMMAND_CHECKS = 12,
    COMMAND_RESUME = 13
} command_kind;

typedef struct awaited {
    hmq_conn conn;
    uint64_t token;     /* OWNER: the owner's token; SILENT: pending confirmations; FETCH: maximum bytes of its page;
                           VISIT: the number of its publish; CHECKS: how many;
                           commands of clients: bit 0: it was sent before; the others: its trace (0: none) */
    uint32_t len;       /* of its bytes in the log */
    uint16_t packet_id; /* ACK: number of identifiers; FETCH: 1 if it asks for PACKED; SENT: its WINDOW, or 0 */
    uint8_t kind;
    uint8_t qos;           /* FETCH: 1 if the page is for one large message */
    uint16_t batch;        /* of the first publish of a TOPIC.PIPELINE: the number of publishes in it; else 0 */
    uint8_t before, after; /* bytes of the TOPIC.PIPELINE around this command */
    uint8_t losses;        /* of a publish: how often the server was lost after it was written */
    bool alone;            /* a suspect, and sent by itself (engine/log.c) */
} awaited;

/* The outcome of a command that replicas have not confirmed yet.  The bytes of the command follow this structure. */
typedef struct held_answer {
    int64_t reached; /* of a publish */
    awaited entry;
    uint8_t refusal; /* reason code of 5.0; 0: success */
} held_answer;

/* Arrays that grow: a queue of packet identifiers, and a list of connections. */
typedef struct id_queue {
    hmq_bytes bytes;
} id_queue;

typedef struct conn_list {
    hmq_bytes bytes; /* hmq_conn */
} conn_list;

/* Pages of queues: those under way, and the connections that wait for theirs. */
typedef struct fetch_line {
    conn_list waiting;
    uint32_t under_way;
    uint64_t bytes; /* maximum bytes of all pages under way */
} fetch_line;

typedef struct bucket { /* a token bucket of one second */
    uint32_t rate;
    double tokens;
    int64_t filled_ms;
} bucket;

typedef struct retry { /* of commands that the server refuses temporarily */
    bool waits;
    uint32_t pause_ms; /* the most recent pause; 0: nothing was refused since the last success */
    int64_t at_ms, since_ms;
    uint32_t most; /* publishes that are sent again at the same time while queues are full; 0: all */
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
    bool can_deny_all; /* false: only topics that begin with a dollar can be denied */
} rule_set;

typedef struct traffic {
    uint64_t received, bytes_received, sent, bytes_sent;
    uint64_t received_before, sent_before; /* at the last measurement */
    uint32_t received_lately, sent_lately;
} traffic;

/* Both ends included. */
typedef struct slot_range {
    uint16_t first, last;
} slot_range;

typedef struct route_cache route_cache;

/* A node's answer about a topic: engine/routes.c. */
typedef struct route_answer {
    uint32_t uses; /* the cache, and publishes */
    uint32_t range_count;
    uint64_t hash, serial;
    int64_t n, version; /* of the node's routes */
    uint64_t planned; /* the slots_version that the plan is of; 0: none */
    hmq_bytes plan; /* plan_parts, each followed by the end of a command */
    size_t counted; /* bytes, in the cache's `bytes` */
    route_cache *cache; /* NULL: it is in none */
    struct route_answer *next; /* in its bucket */
    uint16_t topic_len;
    uint8_t node_len;
    bool is_listed, was_used;
    uint8_t node[HMQ_NODE_ID_BYTES];
    slot_range ranges[]; /* the topic follows them */
} route_answer;

static inline uint8_t *hmq_answer_topic(route_answer *a) {
    return (uint8_t *)(a->ranges + a->range_count);
}

struct route_cache {
    int64_t n; /* of the node that answered; 0: none has */
    uint8_t node[HMQ_NODE_ID_BYTES], node_len;
    route_answer **buckets;
    uint32_t room, count;
    size_t bytes;
    hmq_bytes order; /* route_answer *, the oldest first; also those that a newer one has replaced */
};

typedef struct plan_part { /* `len` bytes follow */
    uint32_t link, words, len;
} plan_part;

/* Slots that left a link whose visits up to `until` are not all answered. */
typedef struct leaving_slots {
    uint32_t first, last, link;
    uint64_t until;
} leaving_slots;

/* A store of history; `bytes` of its filters follow: 32 bits of length, text. */
typedef struct kept_store {
    size_t bytes;
    uint64_t seed[2];
    uint32_t spread;
    uint16_t slots[64];
} kept_store;

/* A connection to a server. */
typedef struct engine_link {
    uint32_t number; /* its index among the engine's links */
    bool up; /* connected */
    bool broken; /* the server's bytes were no valid replies */
    bool unpacked; /* the server does not support SESSION.FETCH ... PACKED */
    bool unpipelined; /* the server does not support TOPIC.PIPELINE, or does not permit it */
    bool suspect_under_way; /* a publish that may break the connection is in the log (engine/log.c) */
    bool wait_due, wait_under_way; /* engine/confirm.c */
    bool unconfirmed_is_reported;
    int64_t wait_at_ms; /* the earliest time of the next WAIT */
    uint32_t held; /* withheld answers */
    hmq_bytes log; /* commands without a reply, written or not */
    size_t unwritten; /* bytes at the end of the log */
    size_t run_bytes; /* bytes of the run at the end of the log: publishes that will become one command */
    uint32_t run; /* number of these publishes */
    double run_copies; /* copies that the run is likely to make */
    double copies_most; /* that one command should make */
    hmq_bytes awaited; /* struct awaited, one per command in the log */
    hmq_bytes incoming; /* bytes from the server: an incomplete reply */
    hmq_resp_progress measured; /* of `incoming` */
    fetch_line pages; /* of small messages, and */
    fetch_line large; /* pages of one large message each: neither waits for the other */
    uint32_t fetch_limit; /* on the number of pages of either line */
    uint32_t behind; /* number of connections with `behind` */
    uint32_t acking; /* identifiers in SESSION.ACKs without a reply */
    conn_list ack_queue, unconfirmed, crossed;

    /* With `cluster`. */
    uint8_t id[HMQ_NODE_ID_BYTES], id_len; /* of the node; 0: unknown */
    route_cache cache;
    hmq_bytes checks, asked; /* check_due: not sent yet; sent, in the order of the replies */
    uint64_t visits_put, visits_answered;
    uint64_t
        *blocked; /* of each slot that was refused here: the visits that are to be answered before it resumes; 0: it
                          was not; NULL: none was */
    uint32_t blocked_count;
} engine_link;

typedef struct connection {
    hmq_conn handle;
    engine_link *link; /* never NULL */
    engine_link *next; /* engine/links.c: the link that it will have; NULL: it stays */
    uint32_t asked;    /* commands in the log about the session: ACK, RELEASE, FETCH, SENT */
    uint8_t phase;
    uint8_t version;
    bool writable, in_outputs, in_flush, in_waiting, in_fetch_queue, in_ack_queue, in_unconfirmed;
    bool paused;       /* the owner handles a packet; later packets wait */
    bool reading_is_paused;   /* the client is not read: a RELIEF event must follow */
    bool has_more;     /* `unread` holds complete packets: one call takes TURN_PACKETS at most */
    uint8_t owed;      /* the event that ended the connection, if there was no memory to raise it; else 0 */
    bool reach_is_known; /* `reach`, from the first reply on */
    bool denial_is_reported; /* one line in the log per connection is enough */

    /* From the client. */
    hmq_bytes unread;
    size_t connect_held;  /* as counted in the engine's connects_held */
    uint32_t outstanding; /* PUBLISH, DENIED, COMPLETE without an outcome */
    uint32_t under_way;   /* those of them that are in the log */
    size_t under_way_bytes;
    hmq_bytes again;      /* outstanding commands that must be sent again; engine/log.c describes the form */
    hmq_bytes later;      /* commands that came after them */
    hmq_bytes held;       /* held_answers with their commands: engine/confirm.c */
    retry publishes;      /* of commands that were refused temporarily */
    uint32_t quota_used;
    uint16_t receive_maximum, alias_maximum_in, alias_maximum_out;
    uint16_t aliases_out_count;
    uint16_t timed_id; /* engine/latency.c: the packet identifier of the publish that is timed; 0: none is */
    uint32_t timed_ms; /* when it arrived: the low bits of the engine's time */
    float reach; /* sessions that a publish of this client reaches: a mean of the most recent ones */
    alias *aliases_in;  /* alias_maximum_in, by alias - 1; NULL until the first */
    alias *aliases_out; /* alias_maximum_out */
    bucket publishing;
    rule_set publish_rules;

    /* To the client. */
    uint64_t unclaimed; /* the engine's `unclaimed` when the connection was accepted */
    hmq_bytes output;
    hmq_inflight inflight;
    uint16_t window;
    uint32_t max_packet_out;
    uint64_t position, highest;
    uint64_t check_until, missed_after; /* while checking: engine/queue.c */
    uint64_t newest; /* the highest serial that was pushed */
    bool behind, fetching, checking, missed, sent_due;
    bool window_due; /* the next SESSION.SENT tells the bound of invariant 3 */
    bool widens, in_wide; /* engine/places.c */
    bool overflowed; /* it is behind because pushes came faster than acknowledgements */
    bool outgrew;    /* backlogs_outgrown has counted it, and it has not caught up since */
    uint32_t needs; /* bytes of the next message of the queue, if it is larger than a page; else 0 */
    bool replays, wants_room; /* hmq_engine_replays */
    bool withheld_is_reported;    /* as denial_is_reported */
    rule_set receive_rules;
    retry queue;     /* of commands about the session that were refused temporarily */
    hmq_bytes ready; /* the ready line: outgoing_message + value of each message */
    uint32_t ready_count;
    uint32_t traces; /* the first of its traces that are not over: engine/trace.c; 0: none */
    uint32_t places; /* with this many entries in flight nothing is sent: `window` or `most_places` */
    uint32_t most_places; /* UINT32_MAX: no bound */
    int64_t crowded_ms; /* when more than `window` were in flight most recently */
    id_queue acks_due, acking;
    id_queue in_output; /* queued messages of QoS 0: acknowledged once their bytes are handed out */
    int64_t acks_since_ms; /* while in_ack_queue */
    id_queue releases; /* those in the log come first */
    uint32_t releases_under_way;
    bool releases_held; /* one in the log was refused: it and all after it are sent again */
    bucket replay;

    traffic traffic;

    /* Of a client with members, and of a member: engine/members.c. */
    struct connection *client; /* of a member: its client's connection; NULL: it is no member, or the client has gone */
    struct connection *members; /* of a client: the first */
    struct connection *next_member;
    uint16_t *placed; /* of a member: by place in its block, the identifier that was sent there last; 0: none */
    uint8_t block;
    bool is_member;

    struct lane *lane; /* its publishes that cross nodes: engine/crossing.c; NULL: it has sent none */

    /* Identity. */
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

    uint64_t unclaimed; /* pushed messages without a connection: a session that is being opened fetches them */

    size_t connects_held; /* bytes held for clients whose CONNECT is incomplete */
    bool completed_packet; /* the last bytes of a client completed a packet */
    uint32_t held; /* withheld answers of all connections */
    size_t held_bytes; /* of these answers, with their commands */
    bool sweep; /* memory for a list or an event was lacking: the next flush visits all connections */
    engine_link *links;
    uint32_t link_count;
    size_t log_commands, log_bytes; /* in the logs of all links */
    double copies; /* sessions that a publish reaches: a mean of the most recent ones */

    conn_list outputs, flushes, waiting, wide;
    hmq_bytes events; /* hmq_engine_event, each followed by its bytes */
    hmq_bytes scratch; /* room for a decoded TBMQ message */
    hmq_bytes handed; /* the output that was handed out last */
    uint32_t *slot_links; /* HMQ_SLOTS of them; NULL: hmq_engine_slots was not called */
    uint64_t slots_version; /* changes of slot_links */
    uint64_t answers; /* the serial of the most recent one */
    hmq_bytes leaving; /* leaving_slots */
    hmq_bytes stores; /* kept_store */
    bool routes_due; /* disturbed publishers are to be tried at the next flush */
    uint32_t blocked; /* slots that are blocked on some link */
    size_t crossings, crossing_bytes;
    struct missing {
        uint64_t what;
        int64_t at_ms;
    } missing[64]; /* of recent ROUTES_MISSING */
    struct traces *traces; /* engine/trace.c; NULL: nothing is traced */
    hmq_bytes spare[16]; /* buffers for reuse */
    uint32_t spare_count;
    int64_t now_ms;
};

/* NULL: there is no link with this number. */
static inline engine_link *hmq_engine_link(const hmq_engine *e, uint32_t number) {
    return number < e->link_count ? &e->links[number] : NULL;
}

/* The connection whose socket, output, window, aliases and rules the session uses. */
static inline connection *hmq_client_of(connection *c) {
    return c->client != NULL ? c->client : c;
}

/* ---- engine/links.c ---- */
/* Gives a connection its next link, once no command of it awaits a reply.  False: some does. */
bool hmq_link_switch(hmq_engine *e, connection *c);

/* ---- engine/connection.c ---- */
connection *hmq_engine_find(const hmq_engine *e, hmq_conn handle); /* NULL: it is closed */
bool hmq_engine_raise(hmq_engine *e, const hmq_engine_event *event); /* event->bytes are copied */
/* Stops packets in both directions, and tells the owner by this event. */
void hmq_engine_end(hmq_engine *e, connection *c, hmq_engine_event_kind kind, hmq_slice bytes);
void hmq_engine_no_memory(hmq_engine *e, connection *c); /* ends it with FAILED */
void hmq_id_push(hmq_engine *e, connection *c, id_queue *queue, uint16_t packet_id); /* at most 65535 identifiers */
void hmq_engine_list_add(hmq_engine *e, conn_list *list, hmq_conn conn, bool *listed);
bool hmq_engine_list_pop(conn_list *list, hmq_conn *conn); /* false: the list is empty */
void hmq_engine_schedule_flush(hmq_engine *e, connection *c);
void hmq_engine_schedule_wake(hmq_engine *e, connection *c);
uint8_t *hmq_engine_output(hmq_engine *e, connection *c, size_t bytes); /* room; hmq_engine_output_done must follow */
void hmq_engine_output_done(hmq_engine *e, connection *c, size_t bytes);
bool hmq_engine_may_not_read(const hmq_engine *e, const connection *c);
void hmq_engine_resume_reading(hmq_engine *e, connection *c); /* raises RELIEF if it is due */
void hmq_engine_buffer_done(hmq_engine *e, hmq_bytes *buffer); /* keeps or frees a buffer that is no longer used */
hmq_slice hmq_conn_key(const connection *c);
/* Does its queue hold HMQ_LONG_QUEUE messages or more, judging by the pushes? */
bool hmq_conn_queue_is_long(const connection *c);
hmq_slice hmq_conn_inbox(const connection *c);
hmq_slice hmq_conn_client_id(const connection *c);
void hmq_bucket_fill(bucket *b, int64_t now_ms);
/* Takes one token; false: there is none now. */
bool hmq_bucket_take(bucket *b, int64_t now_ms);
/* Takes one token in any case; false: the bucket is overdrawn. */
bool hmq_bucket_spend(bucket *b, int64_t now_ms);
/* Sends an acknowledgement to the client. */
void hmq_client_answer(hmq_engine *e, connection *c, hmq_mqtt_type type, uint16_t packet_id, uint8_t reason);
/* The client has the message for good (or never will): a SESSION.ACK is due.  May free the entry. */
void hmq_outgoing_ack_due(hmq_engine *e, connection *c, inflight_entry *entry);
void hmq_outgoing_schedule_fetch(hmq_engine *e, connection *c);
bool hmq_outgoing_may_send_commands(const connection *c); /* may commands about its session be sent now? */
bool hmq_confirm_needs(const hmq_engine *e, const awaited *entry); /* must replicas confirm it before the answer? */
bool hmq_confirm_uses(const connection *c, uint16_t packet_id); /* O(answers withheld from it) */

/* ---- engine/routes.c ---- */
typedef struct route_home { /* who answers */
    hmq_slice node;
    int64_t n;
} route_home;
route_answer *hmq_route_find(hmq_engine *e, engine_link *l, hmq_slice topic); /* NULL: none is cached */
/* Reads version and slots of a reply, and caches them; the caller has one use of the answer.  NULL: they are none, or no
 * memory. */
route_answer *hmq_route_learn(hmq_engine *e, engine_link *l, const route_home *home, hmq_slice topic, hmq_slice reply,
                              size_t *at);
void hmq_answer_release(hmq_engine *e, route_answer *a); /* ends one use; NULL is none */
/* Is it of the generation that answered on this link last? */
bool hmq_answer_is_current(const engine_link *l, const route_answer *a);
void hmq_route_forget(hmq_engine *e, engine_link *l); /* all answers of a link */
void hmq_route_free(hmq_engine *e, engine_link *l);
/* Where a publish by this answer goes; NULL: some slots have no link, or no memory. */
const hmq_bytes *hmq_route_plan(hmq_engine *e, route_answer *a);
bool hmq_route_is_leaving(hmq_engine *e, uint32_t slot);
/* Calls `use` with the slots of each link, HMQ_NO_LINK included, at most 1024 at a time.  False: one call returned it, or no
 * memory.  O(slots * links that have some). */
typedef bool slot_use(hmq_engine *e, void *context, uint32_t link, const slot_range *ranges, size_t count);
bool hmq_route_each(hmq_engine *e, const slot_range *ranges, size_t count, slot_use *use, void *context);
size_t hmq_route_tail_bytes(size_t ranges);
uint8_t *hmq_route_put_tail(uint8_t *out, const route_answer *a, const slot_range *ranges, size_t count,
                            uint32_t *words);

/* ---- engine/refusals.c ---- */
/* The index of the error's code in the counter `refusals`. */
size_t hmq_refusal_index(hmq_slice error);
/* May the same command succeed a little later? */
bool hmq_refusal_is_temporary(const hmq_engine *e, hmq_slice error);
/* There is no room: MQTT 5.0 has a reason code for that, so a 5.0 client gets it immediately.  Clients of 3.1.1 wait, and
 * so do all who publish to a queue that makes publishers wait (QUEUEFULL). */
bool hmq_refusal_is_answered_at_once(hmq_slice error);
uint8_t hmq_refusal_reason(hmq_slice error); /* for the client */
/* Begins a pause after a temporary refusal; consecutive pauses get longer. */
void hmq_refusal_pause(hmq_engine *e, connection *c, retry *r, hmq_slice error);
void hmq_refusal_wait(hmq_engine *e, connection *c, retry *r, hmq_slice error); /* the same without REFUSED */
bool hmq_refusal_lasts_too_long(const hmq_engine *e, const retry *r); /* since retry_total_ms? */

/* ---- engine/answers.c ---- */
/* Does the error begin with this code? */
bool hmq_error_begins(hmq_slice error, const char *code);
/* Does the error say that the session has another owner or no longer exists? */
bool hmq_session_is_gone(hmq_slice error);
/* A publish or a completion has its outcome: it is no longer outstanding. */
void hmq_publish_finish(hmq_engine *e, connection *c);
/* Sends PUBACK or PUBREC. */
void hmq_publish_answer(hmq_engine *e, connection *c, const awaited *entry, uint8_t reason);
/* Answers the client: the server has taken the command. */
void hmq_publish_settle(hmq_engine *e, connection *c, const awaited *entry, int64_t reply);
/* Answers the client: replicas have confirmed a withheld answer. */
void hmq_publish_settled(hmq_engine *e, connection *c, const held_answer *answer);
/* Ends the connection: the server has refused a command for good, and MQTT has no answer that says so. */
void hmq_publish_failed(hmq_engine *e, connection *c, hmq_slice error);
/* Refuses a publish, whose command has these bytes: the server was lost too often. */
void hmq_publish_abandon(hmq_engine *e, connection *c, const awaited *entry, const uint8_t *bytes);

/* ---- engine/inbox.c ---- */
connection *hmq_engine_find_inbox(const hmq_engine *e, hmq_slice inbox);
bool hmq_inbox_make_room(hmq_engine *e); /* for one more inbox */
/* Gives c its inbox, for which there is room; returns the former connection of the inbox. */
connection *hmq_inbox_take(hmq_engine *e, connection *c);
void hmq_inbox_remove(hmq_engine *e, const connection *c); /* unless another connection has it now */

/* ---- engine/client.c ---- */
void hmq_client_forget(hmq_engine *e, connection *c); /* aliases, rules */

/* ---- engine/rules.c ---- */
bool hmq_rules_set(hmq_engine *e, rule_set *set, const hmq_engine_rule *rules, size_t count, bool denied_otherwise);
void hmq_rules_deny_otherwise(rule_set *set, bool denied_otherwise);
bool hmq_rules_allow(const rule_set *set, hmq_slice topic); /* O(rules) */
void hmq_rules_free(hmq_engine *e, rule_set *set);

/* ---- engine/confirm.c ---- */
bool hmq_confirm_is_due(const engine_link *l); /* is a WAIT due that has not been sent? */
void hmq_confirm_send_wait(hmq_engine *e, engine_link *l); /* sends the WAIT that is due; at the end of a turn */
/* Returns whether enough replicas have confirmed. */
bool hmq_confirm_replied(hmq_engine *e, engine_link *l, const hmq_resp_item *reply);
/* Withholds the answer to a command.  False: no memory. */
bool hmq_confirm_hold(hmq_engine *e, connection *c, const hmq_slice *command, const held_answer *answer);
void hmq_confirm_forget(hmq_engine *e, connection *c);
void hmq_confirm_lost(hmq_engine *e, engine_link *l); /* before hmq_log_lost */
/* Puts all that is held of the connection before `again`.  False: no memory. */
bool hmq_confirm_return_held(hmq_engine *e, connection *c);

/* ---- engine/log.c ---- */
/* Room for commands of at most `most` bytes; NULL: no memory.  hmq_log_add must follow, per command. */
uint8_t *hmq_log_room(hmq_engine *e, engine_link *l, size_t most);
/* Ends a TOPIC.PIPELINE that is being written; `following` bytes of the next command follow it. */
void hmq_log_seal(hmq_engine *e, engine_link *l, size_t following);
bool hmq_log_add(hmq_engine *e, engine_link *l, const awaited *entry);
/* The same for a publish or a completion.  If it may not go to the server now, it is kept and sent later. */
bool hmq_log_add_client(hmq_engine *e, connection *c, const awaited *entry);
const awaited *hmq_log_head(const engine_link *l); /* NULL: no reply is awaited */
void hmq_log_drop_head(hmq_engine *e, engine_link *l);
/* Calls back for each command in the log, the oldest first. */
typedef void log_visit(hmq_engine *e, engine_link *l, const awaited *entry, const uint8_t *bytes, bool is_written);
void hmq_log_each(hmq_engine *e, engine_link *l, log_visit *visit);
hmq_slice hmq_log_head_command(const engine_link *l); /* the bytes of the head, without a frame */
size_t hmq_log_count(const engine_link *l);
void hmq_log_lost(hmq_engine *e, engine_link *l);
/* Keeps the command at the head of its link's log to be sent again.  `seen`: the server may have executed it. */
bool hmq_log_keep_head(hmq_engine *e, connection *c, bool seen);
/* Sends all kept commands of a connection that has none in the log; none if memory is lacking. */
void hmq_log_send_again(hmq_engine *e, connection *c);
/* Does an unanswered publish or completion of this client use the identifier?  O(commands without a reply). */
bool hmq_log_uses(const connection *c, uint16_t packet_id);
/* A push has confirmed one channel of (UN)SUBSCRIBE. */
void hmq_log_confirmed(hmq_engine *e, engine_link *l);
/* The suspect has its reply, or will get none. */
void hmq_log_suspect_done(engine_link *l);
#define HMQ_COPIES_FIRST 768.0
/* A command of several publishes made so many copies; the server refused the rest of it, or nothing. */
void hmq_log_learn_copies(engine_link *l, double copies, bool is_refused);
/* May kept commands be sent again now? */
bool hmq_log_may_resend(const connection *c);
/* The number of publishes of QoS 0 among the kept commands. */
size_t hmq_log_kept_qos0(const connection *c);

/* ---- engine/latency.c ---- */
/* A message is sent that was published at this time (ms since 1970). */
void hmq_latency_delivered(hmq_engine *e, int64_t published_ms);
/* A publish of QoS 1 or 2 arrived; its acknowledgement is sent. */
static inline void hmq_latency_begin(const hmq_engine *e, connection *c, uint16_t packet_id) {
    if (c->timed_id != 0) return;
    c->timed_id = packet_id;
    c->timed_ms = (uint32_t)e->now_ms;
}
void hmq_latency_end(hmq_engine *e, connection *c);

/* ---- engine/trace.c ----
 *
 * Callers test first whether anything is traced: `traces` of the engine or of the connection, or the token. */

#define TRACE_OF(token) ((token) >> 1)

/* Begins a trace of a publish, if it is to be traced: returns its token, else 0.  May replace the passed properties by
 * others in the engine's scratch. */
uint64_t hmq_trace_publish(hmq_engine *e, connection *c, const hmq_mqtt_packet *p,
                           hmq_mqtt_publish_properties *properties);
/* The command of a publish entered the log of a link. */
void hmq_trace_logged(hmq_engine *e, const engine_link *l, const awaited *entry);
/* All commands in the log of a link are handed out. */
void hmq_trace_commands_handed_out(hmq_engine *e, const engine_link *l);
/* The server replied to the publish. */
void hmq_trace_replied(hmq_engine *e, const awaited *entry, const hmq_resp_item *reply);
/* The publish has its outcome: its acknowledgement, if there is one, is in the output. */
void hmq_trace_answered(hmq_engine *e, connection *c, const awaited *entry, hmq_engine_trace_outcome outcome);
/* A message for the client arrived, with this serial; 0: it is of no queue, and already in the output. */
void hmq_trace_arrived(hmq_engine *e, connection *c, const hmq_record *record, uint64_t serial, bool was_queued);
/* The message of this serial is in the output, or it will never be. */
void hmq_trace_delivered(hmq_engine *e, connection *c, uint64_t serial);
void hmq_trace_skipped(hmq_engine *e, connection *c, uint64_t serial);
/* The client has the message of this serial. */
void hmq_trace_acknowledged(hmq_engine *e, connection *c, uint64_t serial);
/* The output of the connection is handed out. */
void hmq_trace_handed_out(hmq_engine *e, connection *c);
void hmq_trace_forget(hmq_engine *e, connection *c);
void hmq_trace_free(hmq_engine *e);

/* A message of the queue: pushed, fetched or in the ready line. */
typedef struct outgoing_message {
    uint64_t serial;
    uint32_t len;
    uint16_t packet_id;
    uint8_t state;
    bool fresh; /* pushed: counts for the latency, and not for the rate limit of replays */
} outgoing_message;

enum { STATE_QUEUED = 0, STATE_IN_FLIGHT = 1, STATE_RELEASED = 2 }; /* of an entry of SESSION.FETCH */

/* Identifies a message by its value. */
static inline uint64_t engine_mark(const uint8_t *value, size_t len) {
    return hmq_hash_mark(value, len);
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
void hmq_outgoing_schedule_acks(hmq_engine *e, connection *c);
void hmq_outgoing_flush_acks(hmq_engine *e, engine_link *l); /* of scheduled connections, as many as may be sent now */
void hmq_outgoing_send_all_acks(hmq_engine *e, connection *c); /* ignores HMQ_MOST_ACKING */
void hmq_outgoing_send_releases(hmq_engine *e, connection *c);
/* A command about the session: its size, its first arguments, and its entry in the log. */
size_t hmq_outgoing_session_bytes(const connection *c);
uint8_t *hmq_outgoing_put_session(uint8_t *out, const connection *c, const char *name, size_t len, uint64_t arguments);
bool hmq_outgoing_add(hmq_engine *e, connection *c, command_kind kind, uint16_t packet_id, const uint8_t *begin,
                      const uint8_t *end);

/* ---- engine/send.c ---- */
/* Sends the message after `position`, or appends it to the ready line. */
void hmq_outgoing_take(hmq_engine *e, connection *c, const outgoing_message *m, const uint8_t *value);
/* The output of this connection was handed out. */
void hmq_outgoing_handed_out(hmq_engine *e, connection *c);
/* Acknowledges the next message of the queue without sending it: it is larger than any page may be. */
void hmq_outgoing_skip_oversized(hmq_engine *e, connection *c, uint64_t serial, uint16_t packet_id);
void hmq_outgoing_pushed(hmq_engine *e, connection *c, const hmq_delivery *delivery);
void hmq_outgoing_send_ready(hmq_engine *e, connection *c);
/* PUBACK, PUBREC and PUBCOMP: 0, or an hmq_engine_error. */
int hmq_outgoing_acknowledged(hmq_engine *e, connection *c, uint16_t packet_id);
int hmq_outgoing_received(hmq_engine *e, connection *c, uint16_t packet_id, uint8_t reason);
int hmq_outgoing_completed(hmq_engine *e, connection *c, uint16_t packet_id);

/* ---- engine/members.c ---- */
/* May the client have a member with this block? */
bool hmq_members_may_join(const connection *client, uint8_t block);
/* A connection is to be a member.  False: no memory. */
bool hmq_members_prepare(hmq_engine *e, connection *c);
void hmq_members_add(connection *client, connection *c, uint8_t block); /* it is one from now on */
void hmq_members_forget(hmq_engine *e, connection *c); /* the connection, or the member, is closed */
/* The packet identifier on the connection for one of the session. */
uint16_t hmq_members_wire_id(const hmq_engine *e, const connection *c, uint16_t packet_id);
/* May a message with this identifier be sent: is there room in the client's window, and does no other one use its place? */
bool hmq_members_have_room(const hmq_engine *e, connection *c, uint16_t packet_id);
void hmq_members_sent(connection *c, uint16_t packet_id); /* a message with this identifier is sent */
/* The session that a packet identifier on the connection belongs to, and the one of that session; 0: nobody uses it. */
connection *hmq_members_session(const hmq_engine *e, connection *c, uint16_t wire_id, uint16_t *packet_id);
void hmq_members_acknowledged(hmq_engine *e, connection *c); /* there is room in the window again */
void hmq_members_flush(hmq_engine *e, connection *c); /* its socket accepts bytes again */
void hmq_members_release(hmq_engine *e, connection *c, uint16_t packet_id); /* sends the PUBREL of a message */

/* ---- engine/places.c ---- */
/* A message waits.  If only for acknowledgements that are on their way to the server, more may be sent soon. */
void hmq_places_wait(hmq_engine *e, connection *c);
/* The server has taken `places`, or refused it. */
void hmq_places_announced(hmq_engine *e, connection *c, uint16_t places, bool done);
void hmq_places_used(hmq_engine *e, connection *c); /* another message is in flight */
void hmq_places_lost(connection *c); /* the server is lost */
/* Narrows some that had no use for more than their window for a while. */
void hmq_places_narrow_idle(hmq_engine *e);
/* The bound to report to the server now. */
static inline uint32_t hmq_places_next(const connection *c) {
    return c->widens ? c->most_places : c->places;
}

/* ---- engine/queue.c ---- */
void hmq_outgoing_flush(hmq_engine *e, connection *c);
/* Fetches the pages for which connections wait, as many as may be under way. */
void hmq_outgoing_fetch_waiting(hmq_engine *e, engine_link *l);
/* Is there more of its queue to fetch? */
static inline void hmq_outgoing_set_behind(connection *c, bool behind) {
    c->link->behind += (uint32_t)behind - (uint32_t)c->behind;
    c->behind = behind;
}
/* False: the reply is no page. */
bool hmq_outgoing_fetched(hmq_engine *e, connection *c, const uint8_t *reply, size_t len);
void hmq_outgoing_fetch_failed(hmq_engine *e, connection *c);
void hmq_outgoing_ack_answered(hmq_engine *e, connection *c, uint16_t count, bool done);
void hmq_outgoing_release_answered(hmq_engine *e, connection *c, bool done);
/* Answers the client for releases at the head of the line that need no command. */
void hmq_outgoing_finish_releases(hmq_engine *e, connection *c);
void hmq_outgoing_close(hmq_engine *e, connection *c); /* sends the acknowledgements that are due */
void hmq_outgoing_server_lost(hmq_engine *e, connection *c);
void hmq_outgoing_forget(hmq_engine *e, connection *c);

#endif
