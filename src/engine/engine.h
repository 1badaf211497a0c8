/* engine.h - the hot path of an MQTT front end, without sockets: bytes of clients become commands for the server, and
 * the server's replies and pushes become bytes for clients.
 *
 *      client bytes ──► hmq_engine_receive ──┐                  ┌──► hmq_engine_next_output    bytes for clients
 *                                            ├── hmq_engine ────┼──► hmq_engine_server_output  commands for the server
 *      server bytes ──► hmq_engine_replies ──┘                  └──► events                    what the owner decides
 *
 * One engine holds the connections of one process and their one RESP3 connection to a server with the module.  What
 * comes often never leaves it: PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ; TOPIC.PUBLISH, SESSION.ACK, RELEASE,
 * COMPLETE, FETCH, SENT and the deliveries on inbox channels.  What comes seldom (CONNECT, SUBSCRIBE, UNSUBSCRIBE,
 * DISCONNECT, AUTH) is handed to the owner as an event; the owner sends its commands and packets through the engine,
 * so that all orders are kept.
 *
 *      NEW ──CONNECT event──► HELD ──hmq_engine_open──► OPEN ──hmq_engine_close──► (gone)
 *       └────────────────── an ERROR or ENDED event: no more packets either way ────┘
 *
 * Laws
 *  1. A PUBACK or PUBREC leaves after the server's reply to that publish, a PUBCOMP after the reply to SESSION.COMPLETE,
 *     a PUBREL after the reply to SESSION.RELEASE; for one client in the order of its packets.
 *  2. What a client published and was not acknowledged is sent to the server again after a loss of the server, or after
 *     a refusal that passes (out of memory, read-only, loading ...), in its order: QoS 1 at least once, QoS 2 exactly
 *     once (by its packet identifier), QoS 0 never a second time.
 *  3. Messages of a session's queue are sent in the order of their serials, none left out; at most `window` of them are
 *     unacknowledged.  A push that follows what was sent without a gap is sent at once; otherwise the queue is fetched,
 *     page by page, until nothing follows.  An acknowledgement goes out only for the very message that was sent.
 *     None of QoS 1 or 2 is sent while `places` earlier ones were not removed from the queue, as far as the replies tell:
 *     the server can tell what a killed process can have sent (SESSION.OPEN ... WINDOW).
 *     One whose record has QoS 0 is sent without a place in the window, and acknowledged when its bytes were handed out.
 *  4. All memory is bounded by the settings: unread bytes of a client by max_packet_bytes, ready messages by
 *     max_ready(_bytes), commands without a reply by max_outstanding per client (rest) and in all (congested).
 *  5. Publishes that stand one behind the other, and of which none was handed out yet, go to the server as one command:
 *
 *         TOPIC.PIPELINE <TOPIC.PUBLISH ...><TOPIC.PUBLISH ...>...     one argument: 2 or more commands, as RESP
 *
 *     The reply is an array with the reply to each, or one error: then none was published.  A server that has no such
 *     command (or does not permit it) gets them one by one from then on, these too.  Everything else - laws, settings,
 *     counters - goes by the single publish.
 *  6. A publish that had no reply when the connection to the server broke, twice, goes by itself from then on, one at a
 *     time of all clients'.  When the connection broke HMQ_PUBLISH_ATTEMPTS times it is refused (5.0), or its client is
 *     disconnected (3.1.1): a publish that breaks the connection must not do so for ever.
 *  7. With wait_replicas, an acknowledgement of a publish (law 1) also waits for that many replicas, which are asked by
 *     one WAIT after the commands of a turn; while fewer have confirmed it is withheld, and WAIT is sent again.
 *  8. There is no clock and no randomness in here: the time comes with each call (ms since 1970, the server's unit).
 *
 * Events are handed out one at a time, in order.  The bytes of an event belong to the engine or to the caller's input
 * and stay valid until the next call.  Any input is safe.  Nothing here is thread-safe. */
#ifndef HMQ_ENGINE_H
#define HMQ_ENGINE_H

#include "base/base.h"
#include "mqtt/mqtt.h"

/* cffi-begin */
typedef struct hmq_engine hmq_engine;

#define HMQ_LONG_QUEUE 2000 /* messages: a session that drains what it had before slows publishers only beyond it */
#define HMQ_PUBLISH_ATTEMPTS                                                                                           \
    5 /* losses of the server after which a publish that each of them left unanswered is refused */

/* A connection: in the low 32 bits its place (from 1 on, used again), in the others a generation, so that a reply that comes
 * late never reaches somebody else.  Never 0. */
typedef uint64_t hmq_conn;

typedef struct hmq_engine_settings {
    uint32_t max_packet_bytes; /* of a packet from a client (our Maximum Packet Size) */
    uint32_t max_connect_bytes; /* of a CONNECT; this one and the next three: 0: no bound */
    uint32_t max_filters; /* of a SUBSCRIBE or UNSUBSCRIBE */
    uint32_t max_user_properties; /* of a packet */
    uint32_t max_user_property_bytes;
    uint32_t max_unread_connects; /* bytes held for all clients whose CONNECT is not whole; 0: no bound */
    uint32_t max_client_outstanding; /* commands of one client without a reply; beyond it the client should rest */
    uint32_t max_client_outstanding_bytes; /* of these commands; a single larger one goes alone; 0: no bound */
    uint32_t max_outstanding; /* of all clients; beyond it the engine is congested */
    uint32_t max_outstanding_bytes;
    uint32_t max_ready; /* messages kept behind a full window, for one client */
    uint32_t max_ready_bytes;
    uint32_t max_pipeline; /* publishes in one command; 0 or 1: each goes by itself */
    uint32_t max_fetches; /* pages of queues under way at the same time */
    uint32_t max_fetch_bytes; /* of them together; a single message may be larger: its page goes alone */
    uint32_t max_output_bytes; /* bytes not yet taken by the owner above which no queued message is added */
    uint32_t message_expiry_s; /* of a publish that has none; 0: it does not expire */
    uint32_t max_message_expiry_s; /* the longest that a publish gets; 0: no bound */
    uint32_t retry_first_ms; /* pause before what was refused for now is sent again; it doubles up to ... */
    uint32_t retry_most_ms;
    uint32_t retry_total_ms; /* refused for so long: FAILED */
    uint32_t wait_replicas; /* that have to confirm a publish before it is acknowledged (WAIT); 0: none */
    uint32_t wait_timeout_ms; /* of one WAIT, during which the server takes nothing else of this connection */
    uint64_t inbox_seed[2]; /* random, else client ids can be chosen that make the table of inboxes slow */
} hmq_engine_settings;

typedef enum hmq_engine_event_kind {
    HMQ_EVENT_NONE = 0,
    HMQ_EVENT_PACKET = 1, /* conn; bytes: a whole packet for the owner; then hmq_engine_continue; code: 0, or 0x91
                                 if its packet identifier is that of a publish that was not answered yet */
    HMQ_EVENT_ERROR = 2, /* conn; error, code: what the client did wrong, and the reason code of 5.0 for it */
    HMQ_EVENT_REPLY = 3, /* token, conn; bytes: the reply to the owner's command, as RESP */
    HMQ_EVENT_PUSH = 4, /* bytes: a push that is no delivery, as RESP */
    HMQ_EVENT_TAKEN_OVER = 5, /* conn; epoch: its session has a new owner (or, epoch 0, is gone) */
    HMQ_EVENT_FAILED = 6, /* conn; bytes: the server refused a command of this client for good */
    HMQ_EVENT_CONFLICT = 7, /* conn: the server was restored from an older state; the client has to come back */
    HMQ_EVENT_RELIEF = 8, /* conn: it may be read again */
    HMQ_EVENT_REFUSED = 9, /* conn; bytes: refused for now (logged by the owner); it is tried again by itself */
    HMQ_EVENT_ROOM = 10, /* conn: there is room for more of its backlog; asked for by hmq_engine_replays */
    HMQ_EVENT_DENIED = 11, /* conn; bytes: a topic that its rules deny; of its first such publish alone; then
                                 hmq_engine_continue */
    HMQ_EVENT_WITHHELD =
        12, /* conn; bytes: a topic of its queue that its rules deny; of the first such message alone */
    HMQ_EVENT_ABANDONED = 13, /* conn; bytes: topic, token: size of a publish that law 6 refuses */
    HMQ_EVENT_UNCONFIRMED = 14, /* acknowledgements are withheld; token: replicas that confirmed; bytes: an error of
                                 the server; told once until ... */
    HMQ_EVENT_CONFIRMED = 15 /* token: replicas that confirmed; the acknowledgements go out */
} hmq_engine_event_kind;

typedef struct hmq_engine_event {
    uint8_t kind;
    uint8_t code; /* ERROR, PACKET: reason code of MQTT 5.0 */
    int32_t error; /* ERROR: an hmq_mqtt_error, or an hmq_engine_error */
    hmq_conn conn;
    uint64_t token; /* REPLY */
    uint64_t epoch; /* TAKEN_OVER */
    hmq_slice bytes;
} hmq_engine_event;

/* Faults of a client that are no faults of one packet by itself. */
typedef enum hmq_engine_error {
    HMQ_ENGINE_NOT_CONNECTED = -101, /* a packet before CONNECT [MQTT-3.1.0-1] */
    HMQ_ENGINE_SECOND_CONNECT = -102, /* [MQTT-3.1.0-2] */
    HMQ_ENGINE_UNEXPECTED = -103, /* a packet that only a server sends */
    HMQ_ENGINE_RECEIVE_MAXIMUM = -104, /* more unacknowledged publishes than agreed [MQTT-3.3.4-7] */
    HMQ_ENGINE_TOPIC_ALIAS = -105, /* above the maximum [MQTT-3.3.2-9] */
    HMQ_ENGINE_NO_MEMORY = -106,
    HMQ_ENGINE_SUBSCRIPTION_ID = -107, /* a client's PUBLISH carries one [MQTT-3.3.4-6] */
    HMQ_ENGINE_UNKNOWN_ALIAS = -108, /* a PUBLISH without a topic, whose alias never had one (MQTT 5.0, 3.3.4) */
    HMQ_ENGINE_WRONG_ANSWER = -109, /* an acknowledgement of the other QoS, or PUBCOMP in place of PUBREC (4.3) */
    HMQ_ENGINE_CONNECTS_HELD = -110 /* too much is held for clients whose CONNECT is not whole */
} hmq_engine_error;

/* Text of an hmq_engine_error or hmq_mqtt_error.  Never NULL. */
const char *hmq_engine_error_text(int error);

/* What the owner tells the engine when the session is open. */
typedef struct hmq_engine_session {
    uint8_t version; /* 4 or 5 */
    bool resumed; /* there may be a queue to fetch */
    bool denied_otherwise; /* the verdict on publishing where no rule matches */
    uint16_t window; /* most unacknowledged messages to the client: the smaller of its receive maximum and ours */
    uint16_t places; /* law 3; 0: no bound */
    uint16_t receive_maximum; /* of ours, enforced for 5.0 only; 0: none */
    uint16_t alias_maximum_in; /* highest topic alias that the client may use */
    uint16_t alias_maximum_out; /* that we may use towards it */
    uint32_t max_packet_out; /* the client's Maximum Packet Size; 0: none */
    uint32_t replay_rate; /* messages of a backlog per second; 0: as fast as it acknowledges */
    uint32_t publish_rate; /* messages a second that it may send (bursts of one second); 0: no bound */
    uint64_t epoch;
    hmq_slice client_id;
} hmq_engine_session;

/* Messages that wait for acknowledgements of one client. */
typedef enum hmq_engine_backlog {
    HMQ_BACKLOG_NONE = 0,
    HMQ_BACKLOG_WAITS = 1, /* some: its acknowledgements are to be read soon */
    HMQ_BACKLOG_GROWS = 2 /* more than are kept ready for it, by publishes of now: publishers are to be slowed */
} hmq_engine_backlog;

/* One rule on publishing, or on receiving; the first that matches decides. */
typedef struct hmq_engine_rule {
    bool allow;
    hmq_slice filter;
} hmq_engine_rule;

/* All only grow. */
typedef struct hmq_engine_counters {
    uint64_t packets_received, bytes_received; /* all packets that were decoded */
    uint64_t packets_sent; /* all that were written for clients */
    uint64_t publishes_received[3]; /* by QoS */
    uint64_t publishes_acknowledged;
    uint64_t publishes_denied, publishes_unheard, publishes_refused, publishes_repeated;
    uint64_t refusals[12]; /* commands that the server refused, by hmq_engine_refusal_code */
    uint64_t acknowledged_ms; /* when the last publish was acknowledged (the engine's clock) */
    uint64_t publishes_abandoned; /* refused after HMQ_PUBLISH_ATTEMPTS losses of the server */
    uint64_t publishes_dropped_qos0; /* not taken by the server, or in doubt when it was lost */
    uint64_t waits_unconfirmed; /* WAITs that ended without wait_replicas */
    uint64_t messages_sent[3], messages_sent_again, messages_acknowledged;
    uint64_t messages_dropped_qos0; /* the client does not read */
    uint64_t messages_dropped_oversized, messages_dropped_expired, messages_unreadable;
    uint64_t messages_denied; /* not sent: the client may not receive their topics (any more) */
    uint64_t acknowledgements_unknown;
    uint64_t packets_malformed, protocol_errors;
    uint64_t packets_over_limits; /* of size or of parts */
    uint64_t commands_sent, replies_received; /* each publish of a TOPIC.PIPELINE is one */
    uint64_t deliveries_received, pages_fetched;
    uint64_t backlogs_outgrown; /* times that live messages made the queue of a receiver longer than HMQ_LONG_QUEUE */
    uint64_t latency_ms_sum, latency_count; /* from publishing to sending, of messages not from a backlog */
    uint64_t latency_below_ms[12]; /* 1 2 5 10 20 50 100 200 500 1000 5000, and all others */
} hmq_engine_counters;

/* The error code that refusals[index] counts; "other" for the last; NULL: there is no such index. */
const char *hmq_engine_refusal_code(size_t index);

/* NULL when out of memory.  The settings are copied. */
hmq_engine *hmq_engine_new(const hmq_engine_settings *settings, const hmq_allocator *allocator);
void hmq_engine_free(hmq_engine *engine);
const hmq_engine_counters *hmq_engine_count(const hmq_engine *engine);

/* ---- connections ---- */

/* A client was accepted.  0 when out of memory. */
hmq_conn hmq_engine_attach(hmq_engine *engine);

/* Bytes from the client.  True: *event is set (its bytes may point into data) and has to be dealt with before
 * hmq_engine_continue is called for what follows in these bytes; false: all was taken. */
bool hmq_engine_receive(hmq_engine *engine, hmq_conn conn, const uint8_t *data, size_t len, int64_t now_ms,
                        hmq_engine_event *event);
bool hmq_engine_continue(hmq_engine *engine, hmq_conn conn, int64_t now_ms, hmq_engine_event *event);
/* Did the last hmq_engine_receive bring a whole packet (or is one with the owner, so that nobody looked)?  Bytes alone are
 * no sign of life. */
bool hmq_engine_took(const hmq_engine *engine);

/* The session is open: packets are taken from now on, deliveries on `inbox` go to this connection.  The connection of
 * this process that had the inbox before is returned (0: none); it gets nothing any more and has to be ended.  Then
 * call hmq_engine_continue.  False in *ok when out of memory (then nothing has changed). */
hmq_conn hmq_engine_open(hmq_engine *engine, hmq_conn conn, const hmq_engine_session *session, hmq_slice session_key,
                         int64_t now_ms, bool *ok);
/* What the client may publish to; may be called again at any time.  False when out of memory. */
bool hmq_engine_rules(hmq_engine *engine, hmq_conn conn, const hmq_engine_rule *rules, size_t count,
                      bool denied_otherwise);
/* Which topics may be sent to it: the others are acknowledged to the queue without being sent.  As above. */
bool hmq_engine_receive_rules(hmq_engine *engine, hmq_conn conn, const hmq_engine_rule *rules, size_t count,
                              bool denied_otherwise);
/* A packet of the owner's for the client, behind everything that was to be sent to it.  False when out of memory. */
bool hmq_engine_send(hmq_engine *engine, hmq_conn conn, const uint8_t *data, size_t len);
/* The client's socket takes no more, or takes it again. */
void hmq_engine_writable(hmq_engine *engine, hmq_conn conn, bool writable);
/* `replays`: the session reads history, what is pushed counts as its backlog.  `wants_room`: once nothing is behind, half of
 * the ready line is free and the client takes bytes, ROOM tells so; once for each call. */
void hmq_engine_replays(hmq_engine *engine, hmq_conn conn, bool replays, bool wants_room);
/* Has this client's last hmq_engine_receive or hmq_engine_continue left whole packets, because one call takes so many at
 * most?  A hmq_engine_receive without bytes takes more of them. */
bool hmq_engine_has_more(const hmq_engine *engine, hmq_conn conn);
/* Bytes of the client that wait for an earlier packet of it to be dealt with. */
size_t hmq_engine_unread(const hmq_engine *engine, hmq_conn conn);
/* An hmq_engine_backlog: what waits for this client's acknowledgements. */
uint8_t hmq_engine_backlog_of(const hmq_engine *engine, hmq_conn conn);
/* Should the client not be read now?  RELIEF tells when that is over. */
bool hmq_engine_rests(hmq_engine *engine, hmq_conn conn);
/* The serial of the last message that was sent to the client, for SESSION.CLOSE ... SENT; 0: none. */
uint64_t hmq_engine_sent_serial(const hmq_engine *engine, hmq_conn conn);
/* The connection is over: after this call the handle is not known any more.  Acknowledgements that gathered are still
 * sent; publishes that the server has not answered yet are not sent again if it is lost (nobody was told that they were
 * taken).  The owner's SESSION.CLOSE comes behind all of them. */
void hmq_engine_close(hmq_engine *engine, hmq_conn conn);

/* ---- the server ---- */

/* A command of the owner's, as RESP.  `replies`: whether one reply will come (not to SUBSCRIBE and UNSUBSCRIBE, which are
 * confirmed by pushes); then it comes as a REPLY event with the token.  conn may be 0.  False when out of memory. */
bool hmq_engine_command(hmq_engine *engine, hmq_conn conn, uint64_t token, bool replies, const uint8_t *data,
                        size_t len);
/* Bytes from the server.  1: *event is set, call hmq_engine_replies again with len 0; 0: all was taken; -1: the bytes are
 * not what was asked for, the connection to the server has to be made anew. */
int hmq_engine_replies(hmq_engine *engine, const uint8_t *data, size_t len, int64_t now_ms, hmq_engine_event *event);
/* Acknowledgements and fetches that gathered become commands; retries that are due are sent. */
void hmq_engine_flush(hmq_engine *engine, int64_t now_ms);
/* Events that have no bytes behind them, made by flush or by the server's loss.  As above: false: none. */
bool hmq_engine_next_event(hmq_engine *engine, hmq_engine_event *event);
/* Commands not yet written, and that so many bytes of them (of what was handed out last) are written now. */
hmq_slice hmq_engine_server_output(hmq_engine *engine);
void hmq_engine_server_written(hmq_engine *engine, size_t bytes);
bool hmq_engine_congested(const hmq_engine *engine);
/* Commands without a reply, and publishes whose acknowledgements are withheld. */
size_t hmq_engine_outstanding(const hmq_engine *engine);
/* Publishes of this client that the server has not answered; 0 too if the connection is not known. */
uint32_t hmq_engine_unanswered(const hmq_engine *engine, hmq_conn conn);

/* The same as work of the server: one more for each KiB, and several times as much while publishes go to many sessions. */
size_t hmq_engine_owed(const hmq_engine *engine);

/* What waits for clients now. */
typedef struct hmq_engine_levels {
    uint64_t messages_inflight; /* of QoS 1 and 2, sent and not acknowledged */
    uint64_t messages_ready; /* here, behind a full window or a full socket */
    uint64_t clients_behind; /* with more in their queues at the server */
    uint64_t bytes_unsent; /* of packets that no socket has taken from the engine */
    uint64_t acknowledgements_withheld; /* of publishes that the server took and wait_replicas have not confirmed */
} hmq_engine_levels;

/* O(connections): for whoever looks now and then. */
void hmq_engine_look(const hmq_engine *engine, hmq_engine_levels *levels);

/* What one connection has published and was sent, since it was opened. */
typedef struct hmq_engine_traffic {
    hmq_conn conn;
    uint64_t received, bytes_received; /* PUBLISH packets, and bytes of their payloads */
    uint64_t sent, bytes_sent;
    uint32_t inflight; /* sent and not acknowledged */
    uint32_t ready; /* here, behind a full window or a full socket */
    uint32_t received_lately, sent_lately; /* between the last two measurements */
} hmq_engine_traffic;

/* Measures a part of the open connections: those of so many places from `from` on.  The loudest of them are put into
 * `loudest`, which has `count` rows of `most`, sorted; a pass begins with from and *count 0 and hands both on.  Returns
 * the place to go on from, 0 at the end.  O(places). */
uint32_t hmq_engine_measure(hmq_engine *engine, uint32_t from, uint32_t places, hmq_engine_traffic *loudest,
                            uint32_t *count, uint32_t most);
/* At most `most` open connections, from the place `from` on.  Returns the place to go on from, 0 at the end. */
uint32_t hmq_engine_list(const hmq_engine *engine, uint32_t from, hmq_engine_traffic *rows, uint32_t *count,
                         uint32_t most);
/* The open connection that has an inbox.  False: none has. */
bool hmq_engine_traffic_of(const hmq_engine *engine, hmq_slice inbox, hmq_engine_traffic *row);
/* Is something waiting for the time to pass (a retry, a limited replay)?  Then flush has to be called a little later. */
bool hmq_engine_waits(const hmq_engine *engine);
/* Would flush do something at once?  So it may be after output was handed out: what it held is acknowledged. */
bool hmq_engine_wants_flush_now(const hmq_engine *engine);

/* No reply will come to anything.  The owner's commands are forgotten: it has to send them again. */
void hmq_engine_server_lost(hmq_engine *engine);
/* The server is there (again); the owner has sent its SUBSCRIBE commands before. */
void hmq_engine_server_restored(hmq_engine *engine, int64_t now_ms);

/* ---- bytes for clients ---- */

/* The next connection that has bytes to be written; they are taken off and stay valid until the next call.  False: none
 * has.  Bytes of a connection that is not writable are handed out, too: what is in here was promised. */
bool hmq_engine_next_output(hmq_engine *engine, hmq_conn *conn, hmq_slice *bytes);
/* cffi-end */

#endif
