/* engine.h - the hot path of an MQTT front end, without sockets: bytes of clients become commands for the server, and
 * the server's replies and pushes become bytes for clients.
 *
 *      client bytes ──► hmq_engine_receive ──┐                  ┌──► hmq_engine_next_output    bytes for clients
 *                                            ├── hmq_engine ────┼──► hmq_engine_server_output  commands for the server
 *      server bytes ──► hmq_engine_replies ──┘                  └──► events                    what the owner decides
 *
 * One engine holds the client connections of one process, and its links: RESP3 connections to servers with the module.  A
 * single server has one link, numbered 0.  In a cluster each node has one, and a session has that of its slot's node.  The
 * engine owns links and connections; the owner connects sockets and says which session has which link.
 *
 * It handles frequent packets and commands itself: PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, PINGREQ; TOPIC.PUBLISH,
 * SESSION.ACK, RELEASE, COMPLETE, FETCH, SENT and the deliveries on inbox channels.  It hands rare packets (CONNECT,
 * SUBSCRIBE, UNSUBSCRIBE, DISCONNECT, AUTH) to the owner as events.  The owner sends its commands and packets through the
 * engine, so that their order is kept.
 *
 *      NEW ──CONNECT event──► HELD ──hmq_engine_open──► OPEN ──hmq_engine_close──► (gone)
 *       └────────────────── an ERROR or ENDED event: no more packets either way ────┘
 *
 * Invariants
 *  1. A PUBACK or PUBREC leaves after the server's reply to that publish, a PUBCOMP after the reply to SESSION.COMPLETE,
 *     a PUBREL after the reply to SESSION.RELEASE; for one client in the order of its packets.
 *  2. Unacknowledged publishes of a client are sent to the server again after a loss of the server, or after a temporary
 *     refusal (out of memory, read-only, loading ...), in their order: QoS 1 at least once, QoS 2 exactly once (by its
 *     packet identifier), QoS 0 never a second time.
 *  3. Messages of a session's queue are sent in the order of their serials, none left out; at most `window` of them are
 *     unacknowledged.  A push whose serial follows the last sent message is sent immediately.  After a gap the queue is
 *     fetched page by page until it is empty.  A message is acknowledged to the server only if this very message was sent.
 *     The server knows a bound (WINDOW of SESSION.OPEN and SESSION.SENT).  No message of QoS 1 or 2 is sent while that many
 *     earlier ones are, by the replies, still in the queue: so the server knows what a killed process may have sent.
 *     The bound is `window`, or `places` for a client that acknowledges faster than the server replies.
 *     A message of QoS 0 takes no place in the window, and is acknowledged once its bytes are handed out.
 *  4. The settings bound all memory: unread bytes of a client by max_packet_bytes, ready messages by max_ready and
 *     max_ready_bytes, commands without a reply by max_client_outstanding per client (hmq_engine_pauses_reading) and by
 *     max_outstanding in total (hmq_engine_congested).
 *  5. Consecutive publishes that have not been handed out yet go to the server as one command:
 *
 *         TOPIC.PIPELINE <TOPIC.PUBLISH ...><TOPIC.PUBLISH ...>...     one argument: 2 or more commands, as RESP
 *
 *     The reply is an array with one reply per publish, or one error: then none was published.  If the server does not
 *     have this command (or does not permit it), these and all later publishes are sent one by one.  All other invariants, the
 *     settings and the counters apply to the single publish.
 *  6. A publish that had no reply at two losses of the server is sent by itself from then on, one at a time for all
 *     clients.  After HMQ_PUBLISH_ATTEMPTS losses it is refused (5.0), or its client is disconnected (3.1.1): a publish
 *     that breaks the connection must not do so forever.
 *  7. With wait_replicas, an acknowledgement of a publish (invariant 1) also waits for that many replicas.  One WAIT after the
 *     commands of a turn asks them.  While fewer have confirmed, the acknowledgement is withheld and WAIT is repeated.
 *  8. Each link has its own order of commands, replies and pushes, its own WAITs, and its own losses: "the server" in these
 *     invariants is that of the session's link.  The loss of a link affects no session of another one.  The bounds of
 *     invariant 4 count all links together; max_fetches and max_fetch_bytes count for each link.
 *  9. A session changes its link (hmq_engine_move) only after all its commands on the former link were answered or lost.
 *     Its unacknowledged publishes are kept in their order meanwhile.  With several links MOVED and ASK are temporary
 *     refusals.  Deliveries from a link that is not the session's are ignored: its queue has the messages.
 * 10. The engine has no clock and no randomness: each call brings the time (ms since 1970, the server's unit).
 * 11. Nothing is traced before hmq_engine_trace.  Then at most `rate` traces of each kind begin per second, and none
 *     lasts longer than HMQ_TRACE_MOST_MS: that bounds their memory.  Traces change no other behaviour, except that
 *     with `adds_context` a traced publish gets another user property.
 * 12. With `cluster`, publishes cross nodes: see "publishes over a cluster" below.
 * 13. With `cluster`, a connection may have further sessions, its members: see "members" below.  What is said here of a
 *     session's queue, link and commands is true for each of them.  Bytes for the client, its window, its aliases, its
 *     rules and its socket are those of the connection.
 *
 * Events are handed out one at a time, in order.  The bytes of an event belong to the engine or to the caller's input,
 * and stay valid until the next call.  Any input is safe.  Nothing here is thread-safe. */
#ifndef HMQ_ENGINE_H
#define HMQ_ENGINE_H

#include "base/base.h"
#include "mqtt/mqtt.h"

/* cffi-begin */
typedef struct hmq_engine hmq_engine;

#define HMQ_LONG_QUEUE 2000 /* messages: a session that drains an older backlog slows publishers only above this */
#define HMQ_PUBLISH_ATTEMPTS                                                                                           \
    5 /* losses of the server after which a publish is refused that had no reply at any of them */

#define HMQ_MOST_LINKS 256

/* A connection: its place in the low 32 bits (from 1 on, reused), a generation in the others, so that a late reply never
 * reaches another client.  Never 0. */
typedef uint64_t hmq_conn;

typedef struct hmq_engine_settings {
    uint32_t max_packet_bytes; /* of a packet from a client (our Maximum Packet Size) */
    uint32_t max_connect_bytes; /* of a CONNECT; 0 means no bound, here and in the next three */
    uint32_t max_filters; /* of a SUBSCRIBE or UNSUBSCRIBE */
    uint32_t max_user_properties; /* of a packet */
    uint32_t max_user_property_bytes;
    uint32_t max_unread_connects; /* bytes held for all clients whose CONNECT is incomplete; 0: no bound */
    uint32_t max_client_outstanding; /* commands of one client without a reply; above it the client is not read */
    uint32_t max_client_outstanding_bytes; /* of these commands; a larger one is sent alone; 0: no bound */
    uint32_t max_outstanding; /* of all clients; above it the engine is congested */
    uint32_t max_outstanding_bytes;
    uint32_t max_ready; /* messages of one client kept while its window is full */
    uint32_t max_ready_bytes;
    uint32_t max_pipeline; /* publishes in one command; 0 or 1: each is sent by itself */
    uint32_t max_fetches; /* pages of queues under way at the same time */
    uint32_t max_fetch_bytes; /* of all these pages, and of those for one large message each; one is always fetched */
    uint32_t max_output_bytes; /* bytes the owner has not taken; above it no queued message is added */
    uint32_t message_expiry_s; /* of a publish that has none; 0: it does not expire */
    uint32_t max_message_expiry_s; /* the longest that a publish may have; 0: no bound */
    uint32_t retry_first_ms; /* pause before a temporarily refused command is sent again; doubles up to retry_most_ms */
    uint32_t retry_most_ms;
    uint32_t retry_total_ms; /* after refusals for this long the connection ends with FAILED */
    uint32_t wait_replicas; /* that must confirm a publish before it is acknowledged (WAIT); 0: none */
    uint32_t wait_timeout_ms; /* of one WAIT; until then the server takes nothing else from this connection */
    uint32_t links; /* connections to servers, numbered from 0; 0 means 1; at most HMQ_MOST_LINKS */
    uint32_t cluster; /* 1: the links are the nodes of a cluster, and publishes cross them */
    uint32_t max_answer_bytes; /* of the cached answers of one link; 0: none is kept */
    uint64_t inbox_seed[2]; /* random: otherwise an attacker could choose client ids that slow the table of inboxes */
} hmq_engine_settings;

typedef enum hmq_engine_event_kind {
    HMQ_EVENT_NONE = 0,
    HMQ_EVENT_PACKET = 1, /* conn; bytes: a complete packet for the owner, who must call hmq_engine_continue; code:
                                 0, or 0x91 if an unanswered publish has its packet identifier */
    HMQ_EVENT_ERROR = 2, /* conn; error: the client's fault; code: its reason code of 5.0 */
    HMQ_EVENT_REPLY = 3, /* token, conn; bytes: the reply to the owner's command, as RESP */
    HMQ_EVENT_PUSH = 4, /* bytes: a push that is not a delivery, as RESP */
    HMQ_EVENT_TAKEN_OVER = 5, /* conn; epoch: of the session's new owner; 0: the session no longer exists */
    HMQ_EVENT_FAILED = 6, /* conn; bytes: the server refused a command of this client for good */
    HMQ_EVENT_CONFLICT = 7, /* conn: the server was restored from an older state; the client must reconnect */
    HMQ_EVENT_RELIEF = 8, /* conn: it may be read again */
    HMQ_EVENT_REFUSED = 9, /* conn; bytes: the error of a temporary refusal, for the log; the engine retries */
    HMQ_EVENT_ROOM = 10, /* conn: there is room for more of its backlog; requested by hmq_engine_replays */
    HMQ_EVENT_DENIED = 11, /* conn; bytes: the topic of its first publish that its rules deny; the owner must call
                                 hmq_engine_continue */
    HMQ_EVENT_WITHHELD = 12, /* conn; bytes: the topic of the first queued message that its rules deny */
    HMQ_EVENT_ABANDONED = 13, /* conn; bytes, token: topic and size of a publish that invariant 6 refuses */
    HMQ_EVENT_UNCONFIRMED = 14, /* acknowledgements are withheld; token: replicas that confirmed; bytes: an error of
                                 the server; raised once until CONFIRMED */
    HMQ_EVENT_CONFIRMED = 15, /* token: replicas that confirmed; the withheld acknowledgements are sent */
    HMQ_EVENT_SLOT_MOVED = 16, /* token: a slot; link: a node that refused it; bytes: its error, MOVED
                                 host:port.  Once for each refusal of a slot on a link */
    HMQ_EVENT_ROUTES_MISSING = 17 /* code 0: the node of `link` is not fed (NOROUTES).  code 1: the node of `link` has
                                 not exported its routes to generation `token` of the node `bytes` (NOHOME).  At most
                                 once per second for each link and node */
} hmq_engine_event_kind;

typedef struct hmq_engine_event {
    uint8_t kind;
    uint8_t code; /* ERROR, PACKET: reason code of MQTT 5.0 */
    int32_t error; /* ERROR: an hmq_mqtt_error, or an hmq_engine_error */
    uint32_t link; /* REPLY, PUSH, UNCONFIRMED, CONFIRMED, SLOT_MOVED, ROUTES_MISSING */
    hmq_conn conn;
    uint64_t token; /* REPLY, SLOT_MOVED, ROUTES_MISSING */
    uint64_t epoch; /* TAKEN_OVER */
    hmq_slice bytes;
} hmq_engine_event;

/* Faults of a client that no single packet shows. */
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
    HMQ_ENGINE_CONNECTS_HELD = -110 /* too many bytes are held for clients whose CONNECT is incomplete */
} hmq_engine_error;

/* Text of an hmq_engine_error or hmq_mqtt_error.  Never NULL. */
const char *hmq_engine_error_text(int error);

/* The session, as the owner describes it once it is open. */
typedef struct hmq_engine_session {
    uint8_t version; /* 4 or 5 */
    bool resumed; /* there may be a queue to fetch */
    bool denied_otherwise; /* the verdict on publishing where no rule matches */
    uint16_t window; /* maximum unacknowledged messages to the client: the lower of its receive maximum and ours */
    uint16_t places; /* invariant 3: `window` or more; 0: no bound */
    uint16_t receive_maximum; /* ours, enforced for 5.0 only; 0: none */
    uint16_t alias_maximum_in; /* highest topic alias that the client may use */
    uint16_t alias_maximum_out; /* highest topic alias that we may use */
    uint32_t max_packet_out; /* the client's Maximum Packet Size; 0: none */
    uint32_t replay_rate; /* messages of its backlog per second; 0: as fast as it acknowledges */
    uint32_t publish_rate; /* messages per second that it may send (bursts of one second); 0: no bound */
    uint32_t link; /* of the node that has the session's slot */
    uint64_t epoch;
    hmq_slice client_id;
} hmq_engine_session;

/* Messages that one client has not acknowledged, or that wait because it has not. */
typedef enum hmq_engine_backlog {
    HMQ_BACKLOG_NONE = 0,
    HMQ_BACKLOG_WAITS = 1, /* some: its acknowledgements should be read soon */
    HMQ_BACKLOG_GROWS = 2 /* current publishes exceed what is kept ready for it: slow the publishers */
} hmq_engine_backlog;

/* One rule for publishing or receiving; the first one that matches decides. */
typedef struct hmq_engine_rule {
    bool allow;
    hmq_slice filter;
} hmq_engine_rule;

/* Counters only increase. */
typedef struct hmq_engine_counters {
    uint64_t packets_received, bytes_received; /* all decoded packets */
    uint64_t packets_sent; /* all packets written for clients */
    uint64_t publishes_received[3]; /* by QoS */
    uint64_t publishes_acknowledged;
    uint64_t publishes_denied, publishes_unheard, publishes_refused, publishes_repeated;
    uint64_t refusals[12]; /* commands that the server refused, by hmq_engine_refusal_code */
    uint64_t acknowledged_ms; /* when the last publish was acknowledged (the engine's clock) */
    uint64_t publishes_abandoned; /* refused after HMQ_PUBLISH_ATTEMPTS losses of the server */
    uint64_t publishes_dropped_qos0; /* not accepted by the server, or without a reply when it was lost */
    uint64_t waits_unconfirmed; /* WAITs that too few replicas confirmed */
    uint64_t messages_sent[3], messages_sent_again, messages_acknowledged;
    uint64_t messages_dropped_qos0; /* the client does not read its socket */
    uint64_t messages_dropped_oversized, messages_dropped_expired, messages_unreadable;
    uint64_t messages_denied; /* not sent: the client may not receive their topics */
    uint64_t acknowledgements_unknown;
    uint64_t packets_malformed, protocol_errors;
    uint64_t packets_over_limits; /* limits on size or number of parts */
    uint64_t commands_sent, replies_received; /* each publish of a TOPIC.PIPELINE counts as one */
    uint64_t deliveries_received, pages_fetched;
    uint64_t backlogs_outgrown; /* times that live messages made a receiver's queue longer than HMQ_LONG_QUEUE */
    uint64_t latency_ms_sum, latency_count; /* from publish to send, without messages of a backlog */
    uint64_t latency_below_ms[12]; /* 1 2 5 10 20 50 100 200 500 1000 5000, and no bound */
    uint64_t routes_asked, routes_checked, routes_changed; /* answers: none was cached, OK, another set of slots */
    uint64_t visits_sent; /* publishes to nodes; several for a publish with subscribers on several nodes */
    uint64_t acknowledge_ms_sum; /* from the arrival of a publish to its acknowledgement; one per client at a time */
    uint64_t acknowledge_below_ms[12]; /* the same bounds */
    uint64_t traces_limited; /* publishes and deliveries not traced because of hmq_engine_tracing's rate */
} hmq_engine_counters;

/* The error code that refusals[index] counts; "other" for the last index; NULL beyond it. */
const char *hmq_engine_refusal_code(size_t index);

/* NULL when out of memory, or for too many links.  The settings are copied. */
hmq_engine *hmq_engine_new(const hmq_engine_settings *settings, const hmq_allocator *allocator);
void hmq_engine_free(hmq_engine *engine);
const hmq_engine_counters *hmq_engine_count(const hmq_engine *engine);

/* ---- connections ---- */

/* Registers an accepted client.  0 when out of memory. */
hmq_conn hmq_engine_attach(hmq_engine *engine);

/* Takes bytes from the client.  True: *event is set (its bytes may point into data); the owner handles it and then calls
 * hmq_engine_continue for the remaining bytes.  False: all bytes were taken. */
bool hmq_engine_receive(hmq_engine *engine, hmq_conn conn, const uint8_t *data, size_t len, int64_t now_ms,
                        hmq_engine_event *event);
bool hmq_engine_continue(hmq_engine *engine, hmq_conn conn, int64_t now_ms, hmq_engine_event *event);
/* Did the last hmq_engine_receive complete a packet?  True also while the owner handles one, since nothing is decoded
 * then.  Incomplete packets are not a sign of life. */
bool hmq_engine_completed_packet(const hmq_engine *engine);

/* Opens the session: packets are taken from now on, and deliveries on its inbox go to this connection.  Returns the
 * connection of this process that had the inbox before (0: none); it gets nothing from then on, and the owner must end it.
 * hmq_engine_continue must follow.  False in *ok when out of memory: nothing has changed then. */
hmq_conn hmq_engine_open(hmq_engine *engine, hmq_conn conn, const hmq_engine_session *session, hmq_slice session_key,
                         int64_t now_ms, bool *ok);
/* Sets the topics that the client may publish to; may be called again at any time.  False when out of memory. */
bool hmq_engine_rules(hmq_engine *engine, hmq_conn conn, const hmq_engine_rule *rules, size_t count,
                      bool denied_otherwise);
/* Sets the topics that may be sent to the client, in the same way.  Other messages are acknowledged to the server unsent. */
bool hmq_engine_receive_rules(hmq_engine *engine, hmq_conn conn, const hmq_engine_rule *rules, size_t count,
                              bool denied_otherwise);
/* Appends a packet of the owner to the client's output.  False when out of memory. */
bool hmq_engine_send(hmq_engine *engine, hmq_conn conn, const uint8_t *data, size_t len);
/* Says whether the client's socket accepts bytes. */
void hmq_engine_writable(hmq_engine *engine, hmq_conn conn, bool writable);
/* `replays`: the session reads history, and pushed messages count as its backlog.  `wants_room`: raise ROOM once the queue
 * is fetched, half of the ready line is free and the client accepts bytes; one event per call. */
void hmq_engine_replays(hmq_engine *engine, hmq_conn conn, bool replays, bool wants_room);
/* Did the client's last hmq_engine_receive or hmq_engine_continue leave complete packets?  One call takes a limited
 * number; hmq_engine_receive without bytes takes more of them. */
bool hmq_engine_has_more(const hmq_engine *engine, hmq_conn conn);
/* Bytes of the client that wait for the owner to handle an earlier packet. */
size_t hmq_engine_unread(const hmq_engine *engine, hmq_conn conn);
/* An hmq_engine_backlog. */
uint8_t hmq_engine_backlog_of(const hmq_engine *engine, hmq_conn conn);
/* Should the client not be read now?  RELIEF follows once it may be read again. */
bool hmq_engine_pauses_reading(hmq_engine *engine, hmq_conn conn);
/* The serial of the last message sent to the client, for SESSION.CLOSE ... SENT; 0: none. */
uint64_t hmq_engine_sent_serial(const hmq_engine *engine, hmq_conn conn);
/* Closes the connection, or the member; its handle is invalid afterwards.  Collected acknowledgements are still sent.
 * Unanswered publishes are not sent again if the server is lost: their clients got no acknowledgement.  The owner's SESSION.CLOSE
 * comes after all of them. */
void hmq_engine_close(hmq_engine *engine, hmq_conn conn);

/* ---- the server ---- */

/* Appends a command of the owner to the log of a link, as RESP.  `replies`: the command has one reply, which becomes a REPLY
 * event with the token.  SUBSCRIBE and UNSUBSCRIBE have none: pushes confirm them.  conn may be 0.  False when out of memory,
 * or if there is no such link. */
bool hmq_engine_command(hmq_engine *engine, uint32_t link, hmq_conn conn, uint64_t token, bool replies,
                        const uint8_t *data, size_t len);
/* Takes bytes from the server of a link.  1: *event is set; call hmq_engine_replies again with len 0.  0: all bytes were
 * taken.  -1: the bytes are not replies to the commands; the owner must connect to the server again. */
int hmq_engine_replies(hmq_engine *engine, uint32_t link, const uint8_t *data, size_t len, int64_t now_ms,
                       hmq_engine_event *event);
/* Turns collected acknowledgements and fetches into commands, and sends retries that are due. */
void hmq_engine_flush(hmq_engine *engine, int64_t now_ms);
/* The next event that hmq_engine_flush or a loss of the server has raised.  False: there is none. */
bool hmq_engine_next_event(hmq_engine *engine, hmq_engine_event *event);
/* The commands of a link that are not written yet; hmq_engine_server_written reports how many of these bytes were written. */
hmq_slice hmq_engine_server_output(hmq_engine *engine, uint32_t link);
void hmq_engine_server_written(hmq_engine *engine, uint32_t link, size_t bytes);
bool hmq_engine_congested(const hmq_engine *engine);
/* Commands without a reply, and publishes whose acknowledgements are withheld; of all links, and of one. */
size_t hmq_engine_outstanding(const hmq_engine *engine);
size_t hmq_engine_link_outstanding(const hmq_engine *engine, uint32_t link);
/* Publishes of this client that the server has not answered; also 0 for a closed connection. */
uint32_t hmq_engine_unanswered(const hmq_engine *engine, hmq_conn conn);

/* The commands without a reply as an amount of work: plus one per KiB, times a factor while publishes reach many sessions. */
size_t hmq_engine_owed(const hmq_engine *engine);
/* How many sessions a publish of this client reaches: a mean of the most recent ones; 0 before the first reply. */
uint32_t hmq_engine_reach_of(const hmq_engine *engine, hmq_conn conn);

/* Pending messages and bytes of all clients. */
typedef struct hmq_engine_levels {
    uint64_t messages_inflight; /* of QoS 1 and 2, sent and not acknowledged */
    uint64_t messages_ready; /* in the ready lines: the window or the socket is full */
    uint64_t clients_behind; /* clients with more messages in their queues at the server */
    uint64_t bytes_unsent; /* of packets that no socket has taken from the engine */
    uint64_t acknowledgements_withheld; /* of publishes that wait_replicas have not confirmed */
} hmq_engine_levels;

/* O(connections): call it rarely. */
void hmq_engine_look(const hmq_engine *engine, hmq_engine_levels *levels);

/* Messages from and to one connection since it was opened. */
typedef struct hmq_engine_traffic {
    hmq_conn conn;
    uint64_t received, bytes_received; /* PUBLISH packets, and bytes of their payloads */
    uint64_t sent, bytes_sent;
    uint32_t inflight; /* sent and not acknowledged */
    uint32_t ready; /* in the ready line: the window or the socket is full */
    uint32_t received_lately, sent_lately; /* between the last two measurements */
} hmq_engine_traffic;

/* Measures the open connections in `places` places from `from` on, and keeps those that published most (of equals: that
 * were sent most) in `loudest`: at most `most` rows, sorted, *count of them used.  A pass begins with `from` and *count 0,
 * and passes both on from call to call.  Returns the place to continue from, 0 at the end.  O(places). */
uint32_t hmq_engine_measure(hmq_engine *engine, uint32_t from, uint32_t places, hmq_engine_traffic *loudest,
                            uint32_t *count, uint32_t most);
/* Lists at most `most` open connections, from the place `from` on.  Returns the place to continue from, 0 at the end. */
uint32_t hmq_engine_list(const hmq_engine *engine, uint32_t from, hmq_engine_traffic *rows, uint32_t *count,
                         uint32_t most);
/* The traffic of the open connection with this inbox.  False: there is none. */
bool hmq_engine_traffic_of(const hmq_engine *engine, hmq_slice inbox, hmq_engine_traffic *row);
/* Does anything wait for time to pass (a retry, a limited replay)?  Then call hmq_engine_flush again soon. */
bool hmq_engine_waits_for_time(const hmq_engine *engine);
/* Has hmq_engine_flush something to do now?  Handing out output may cause that: messages in it are acknowledged. */
bool hmq_engine_flush_is_due(const hmq_engine *engine);

/* A link broke: no command on it gets a reply.  Commands of the owner are forgotten; it must send them again. */
void hmq_engine_server_lost(hmq_engine *engine, uint32_t link);
/* A link is connected (again).  The owner must have sent its SUBSCRIBE commands on it before. */
void hmq_engine_server_restored(hmq_engine *engine, uint32_t link, int64_t now_ms);

/* Moves an open session to another link, once all its commands on its present link have their replies or that link is lost.
 * Until then nothing new of the session is sent.  The owner must have sent the SUBSCRIBE for its inbox on the new link
 * before.  May be called again meanwhile: the last call counts.  False: no session is open, or there is no such link. */
bool hmq_engine_move(hmq_engine *engine, hmq_conn conn, uint32_t link);
/* The link of a session, or the one that it is about to get.  0 for a closed connection. */
uint32_t hmq_engine_link_of(const hmq_engine *engine, hmq_conn conn);

/* ---- members ----
 *
 * A client that is a member of a group ($share) has a session of its own for that, in the slot of the group.  It gives out
 * packet identifiers by itself, as the client's session does.  So on the connection each session has a range:
 *
 *      1 to 49407                      the client's session: p, or p - 49407 above
 *      49408 + 504 b to 49911 + 504 b  the member with block b: the first of these + (p - 1) mod 504
 *
 * A message waits while another one that the client has not acknowledged uses its place.  The identifier of a message is a
 * function of the session's, so it stays the same after a loss of the process.
 *
 * A member has a handle like a connection.  Events about its session carry it: TAKEN_OVER, FAILED, CONFLICT. */

#define HMQ_MEMBER_BLOCKS 32
#define HMQ_MEMBER_IDS 504

typedef struct hmq_engine_member {
    uint32_t link; /* of the node that has the group's slot */
    uint8_t block; /* below HMQ_MEMBER_BLOCKS; no other member of the connection has it */
    uint16_t window; /* as of a session; at most HMQ_MEMBER_IDS count */
    uint16_t places;
    uint64_t epoch;
} hmq_engine_member;

/* Adds an open session to the connection of a client.  Its queue is fetched.  The handle of the member; 0 without *ok: out of
 * memory, no such link, the block is in use, or the client has no open session.  *former: as hmq_engine_open returns it. */
hmq_conn hmq_engine_join(hmq_engine *engine, hmq_conn client, const hmq_engine_member *member, hmq_slice session_key,
                         int64_t now_ms, hmq_conn *former);

/* ---- publishes over a cluster ----
 *
 *      client ──► engine ──► link of its session    ROUTE.MCHECK node n  key topic epoch version ...    once per turn
 *                        ├─► links of the slots     TOPIC.PUBLISH ... SLOTS ... HOME node n             in parallel
 *                        ◄── OK, and all slots served: PUBACK
 *
 * For each link the engine keeps answers of its node: topic -> slots with subscribers.  A publish is sent by such an
 * answer, and the node is asked at the same time whether it still holds.  Without an answer the node is asked first.
 *
 * Invariants
 *  1. A PUBACK or PUBREC leaves after the node of the publisher's session confirmed, for this very publish, the set of
 *     slots that it was sent to (OK, or another set that it was then sent to), and all these slots took it.  A retained
 *     message was written before that check was sent.  PUBACKs and PUBRECs of a client leave in the order of its
 *     publishes, and PUBCOMPs in that of its PUBRELs.
 *  2. While an earlier publish of the same publisher is incomplete, a publish is sent by a different answer only if that
 *     answer is older than the beginning of the earlier publish.  (Complete: checked, and taken by all slots.)
 *  3. After a refusal, a changed set or a loss a publisher is disturbed: none of its publishes is sent until all that are
 *     under way have been answered or lost.  Then its publishes are completed one after the other, the oldest first.  Once
 *     one of them is checked there, so are all after it: a session that gets one also gets the next.
 *     When all that were begun are complete, it continues as before.
 *  4. After a slot was refused on a link, nothing is sent to it there until all visits sent there before the refusal have
 *     been answered.  ROUTE.RESUME precedes the next visit.
 *  5. After a slot got another link, nothing is sent to it there until all visits sent on the former link before
 *     hmq_engine_slots have been answered or lost.  All visits of a lost link without a reply are returned before any of
 *     them is sent again.
 *  6. QoS 0 is sent to each slot once.  A slot that refuses it, or is lost with it, does not get it.
 *  7. Publishes of QoS 1 that a slot took may be sent to it again after the loss of their reply, and also after an earlier
 *     one of the publisher was refused as a whole on the same link (invariant 2 of the engine).
 *  8. With wait_replicas, all visits of the publish were also confirmed by that many replicas of their nodes.  Those that
 *     were not when their link is lost are sent again, and the publish is checked again.
 *
 * QoS 2 is not exact yet, because the module has no numbers of QoS 2 that slots keep (docs/cluster-design.md): PACKET of
 * TOPIC.PUBLISH needs all sessions on one node.  A publish of QoS 2 reaches a session a second time if the reply to it, or
 * the confirmation by replicas, was lost with its link, or if the client sends it again because it was disconnected
 * before its PUBREC.  It never does after a refusal, a changed set or a moved slot: only slots that did not take it get it again.
 *
 * Bounds: answers by max_answer_bytes for each link; publishes that wait count as commands without a reply.  A command names
 * at most 1024 slots. */

#define HMQ_NO_LINK 0xFFFFFFFFU /* nobody has the slots */
#define HMQ_NODE_ID_BYTES 40

/* Says which link has the slots from `first` to `last`.  No slot has a link before.  False: no such slots or link, or out of
 * memory; nothing has changed then. */
bool hmq_engine_slots(hmq_engine *engine, uint32_t first, uint32_t last, uint32_t link);
/* Sets the node (CLUSTER MYID) to which a link leads.  If it is another one than before, the cached answers are dropped.
 * False: no such link, or the id is longer than HMQ_NODE_ID_BYTES or empty. */
bool hmq_engine_node(hmq_engine *engine, uint32_t link, hmq_slice node_id);
/* The node of the link was fed, or has exported its routes: publishes that wait for that are tried at the next flush. */
void hmq_engine_routes_fed(hmq_engine *engine, uint32_t link);
/* Bytes of the cached answers of a link. */
size_t hmq_engine_answer_bytes(const hmq_engine *engine, uint32_t link);

/* A store of history: the slots of its shards get the messages of its topics. */
typedef struct hmq_engine_store {
    const hmq_slice *filters;
    size_t filter_count;
    uint64_t seed[2]; /* low and high, as of hmq_index_shard */
    uint32_t spread; /* shards that new messages go to; 1 to 64 */
    uint16_t slots[64]; /* of these shards */
} hmq_engine_store;
/* Sets the stores of history; all are copied.  A publish to a topic of one also visits the slot of its shard.  False when out
 * of memory, or for a spread outside 1 to 64. */
bool hmq_engine_stores(hmq_engine *engine, const hmq_engine_store *stores, size_t count);

/* ---- traces ----
 *
 * Two kinds.  A publish: its PUBLISH was taken, its command was handed out, the server replied, its acknowledgement was
 * handed out.  A delivery: the message arrived here, its PUBLISH was handed out, the client acknowledged it.
 *
 * The context of a message is its user property `traceparent` (W3C Trace Context, version 00): the trace and the span
 * that it belongs to, and whether that trace is sampled.  A publish with a context is traced if the context is sampled,
 * a publish without one by chance.  A delivery is traced if its message has a sampled context and is not sent with the
 * retain flag.  An invalid context, or two of them, are none. */

#define HMQ_TRACE_MOST_MS 10000
#define HMQ_TRACE_TOPIC_BYTES 200
#define HMQ_TRACE_CLIENT_BYTES 100
#define HMQ_TRACE_MOST_RATE 200

typedef struct hmq_engine_tracing {
    double sample; /* the share of publishes without a context that are traced: 0 to 1 */
    uint32_t rate; /* most traces per second of each: publishes by chance, publishes with a context, deliveries;
                      1 to HMQ_TRACE_MOST_RATE, bursts of one second */
    bool adds_context; /* a traced publish is passed on with its own span as its context */
    uint64_t seed[2]; /* random */
    int64_t (*clock_ns)(void); /* nanoseconds since 1970; called for traces only */
} hmq_engine_tracing;

typedef enum hmq_engine_trace_kind { HMQ_TRACE_PUBLISH = 1, HMQ_TRACE_DELIVERY = 2 } hmq_engine_trace_kind;

typedef enum hmq_engine_trace_outcome {
    HMQ_TRACE_DONE = 0,
    HMQ_TRACE_REFUSED = 1, /* the server refused the publish for good, or dropped one of QoS 0 */
    HMQ_TRACE_LOST = 2, /* the connection of the client ended, or that to the server broke */
    HMQ_TRACE_LATE = 3, /* it was not over after HMQ_TRACE_MOST_MS */
    HMQ_TRACE_SKIPPED = 4 /* the message was not sent: denied, expired, or too large for the client */
} hmq_engine_trace_outcome;

/* Times are nanoseconds since 1970; 0: it has not happened. */
typedef struct hmq_engine_trace_row {
    uint8_t kind, outcome;
    uint8_t qos; /* 0..2 */
    bool retain;
    bool has_parent; /* parent_id is valid; always for a delivery */
    bool was_queued; /* a delivery that was fetched from the queue */
    uint8_t attempts; /* of a publish: how often its command was handed out, at most 255 */
    uint8_t trace_id[16], parent_id[8];
    uint8_t span_id[8], server_span_id[8]; /* of the publish and of its command */
    uint64_t payload_bytes;
    int64_t sessions; /* that a publish reached; -1: unknown */
    int64_t began_ns, sent_ns, answered_ns, ended_ns;
    uint16_t topic_len, client_id_len; /* of the whole topic, and of the client id of the connection */
    uint8_t topic[HMQ_TRACE_TOPIC_BYTES], client_id[HMQ_TRACE_CLIENT_BYTES]; /* their beginnings */
} hmq_engine_trace_row;

/* Traces from now on; once for an engine, before its first connection.  False when out of memory. */
bool hmq_engine_trace(hmq_engine *engine, const hmq_engine_tracing *tracing);
/* Takes traces that are over; returns their number, at most `most`.  To be called every second or more often.
 * O(traces that are not over). */
uint32_t hmq_engine_take_traces(hmq_engine *engine, hmq_engine_trace_row *rows, uint32_t most);

/* ---- bytes for clients ---- */

/* The next connection with unwritten bytes.  The bytes are removed, and stay valid until the next call.  False: no
 * connection has any.  Also hands out bytes of connections that are not writable: they were promised. */
bool hmq_engine_next_output(hmq_engine *engine, hmq_conn *conn, hmq_slice *bytes);
/* cffi-end */

#endif
