/* pump.h - reads and writes the sockets of many clients without calling Python for each of them.
 *
 *      sockets ──epoll──► hmq_pump_next ──recv──► (unframe) ──► engine     rare things become an event
 *      sockets ◄──send─── hmq_pump_write ◄── (frame) ◄───────── engine
 *
 * A socket is one of TCP or of a WebSocket (mqtt/websocket.h).  The request of a WebSocket becomes an event.  When the
 * owner has answered it, frames are removed after recv and added before send.
 *
 * The owner's event loop watches one descriptor for each class of sockets (hmq_pump_fd), not one for each client.  When
 * a descriptor is readable, the owner calls hmq_pump_poll once, then hmq_pump_next until it returns false, flushes the
 * engine, and calls hmq_pump_write until it returns false.  The owner decides who may connect, what a CONNECT means,
 * deadlines, when to close, and which classes a turn reads:
 *
 *      QUIET       clients that send at most LIGHT in WEIGHT_INTERVAL_S, and have done so since QUIET_AFTER_S
 *      RECEIVERS   messages wait for the acknowledgements of these clients
 *      OTHERS      all others, and every client at first
 *      BULK        clients that send more than HEAVY
 *
 * What a client sends is counted in packets, and one more for each KiB, and for each 8 sessions that a publish reaches.
 *
 * A socket changes its class when it is read or written: with steady traffic that costs nothing.
 *
 * The core has no I/O and is another extension module.  So the engine's functions come as pointers.  The frames of
 * WebSockets, which do not use the engine, are compiled in.
 *
 * Invariants
 *  1. A turn handles at most PUMP_SOCKETS sockets of a class, and reads each once, at most PUMP_READ_BYTES.  The engine
 *     takes a bounded number of packets of each.  Sockets with further packets wait in a line, which each turn goes
 *     through once.  A turn ends early when the server owes `most`, or has taken TURN_NS; the next one begins with the socket
 *     at which it ended.  So no client delays the others for long, and the server gets commands while further sockets are read.
 *  2. A socket that is not read is not in the kernel's set for reading: its bytes stay in the kernel, and TCP slows the
 *     peer.
 *  3. Bytes that a socket does not take are kept in order, and sent before anything else.  FULL: more than high_water
 *     waits (the owner then adds nothing that can wait).  ROOM: at most a quarter of that waits.  A turn sends at most
 *     WAITING_BYTES to each socket and TURN_WAITING_BYTES to all, so that large messages delay nobody.  Above hard_limit the
 *     socket is not read either, so that a peer that reads nothing cannot make us answer forever.
 *  4. A socket that was added ends once: by CLOSED, or by a hmq_pump_close that returned true.  Then its number is free.
 *  5. After hmq_pump_detach no byte of the socket reaches the engine, and no output of the engine the socket.
 *  6. A pong is sent when nothing else waits.  Until then only the most recent ping is remembered, so that a peer that
 *     pings and does not read costs nothing.  After a close frame nothing is sent; the socket ends in the next turn.
 *
 * Memory: a socket's structure exists from hmq_pump_add until its descriptor is closed.  There is a buffer only while
 * bytes wait.  Everything is O(1) for a socket or an event, except hmq_pump_free.  Not thread-safe. */
#ifndef HMQ_PUMP_H
#define HMQ_PUMP_H

#include "engine/engine.h"
#include "mqtt/websocket.h"

/* cffi-begin */
typedef struct hmq_pump hmq_pump;

/* The engine, and the functions of it that are called here (explained in engine/engine.h). */
typedef struct hmq_pump_engine {
    hmq_engine *engine;
    bool (*receive)(hmq_engine *, hmq_conn, const uint8_t *, size_t, int64_t, hmq_engine_event *);
    bool (*completed_packet)(const hmq_engine *);
    bool (*pauses_reading)(hmq_engine *, hmq_conn);
    bool (*congested)(const hmq_engine *);
    bool (*next_output)(hmq_engine *, hmq_conn *, hmq_slice *);
    bool (*has_more)(const hmq_engine *, hmq_conn);
    uint8_t (*backlog_of)(const hmq_engine *, hmq_conn);
    size_t (*owed)(const hmq_engine *);
    uint32_t (*reach_of)(const hmq_engine *, hmq_conn);
    const hmq_engine_counters *(*count)(const hmq_engine *);
} hmq_pump_engine;

typedef enum hmq_pump_class {
    HMQ_PUMP_QUIET = 0,
    HMQ_PUMP_RECEIVERS = 1,
    HMQ_PUMP_OTHERS = 2,
    HMQ_PUMP_BULK = 3
} hmq_pump_class;

typedef enum hmq_pump_event_kind {
    HMQ_PUMP_PACKET = 1,  /* the engine's event is in *event; the owner decides whether the socket is still read */
    HMQ_PUMP_PARTIAL = 2, /* bytes arrived, but completed no packet */
    HMQ_PUMP_PAUSED = 3,  /* it is not read until hmq_pump_read; partial: as above */
    HMQ_PUMP_FULL = 4,
    HMQ_PUMP_ROOM = 5,
    HMQ_PUMP_CLOSED = 6,  /* error: errno, or 0 if the peer or the owner closed it; fault: of its WebSocket */
    HMQ_PUMP_FOREIGN = 7, /* conn; bytes: output of the engine for a connection without a socket here */
    HMQ_PUMP_UPGRADE = 8  /* bytes: the request of a WebSocket, to be answered by hmq_pump_upgrade */
} hmq_pump_event_kind;

/* Bytes are the engine's and stay valid until the next call. */
typedef struct hmq_pump_event {
    uint8_t kind;
    uint8_t fault; /* an hmq_websocket_fault */
    bool partial;
    int error;
    uint32_t number; /* of the socket */
    hmq_conn conn;   /* 0: detached */
    hmq_slice bytes;
} hmq_pump_event;

/* NULL: see errno.  The limits are bytes that wait for one socket. */
hmq_pump *hmq_pump_new(const hmq_pump_engine *engine, size_t high_water, size_t hard_limit);
/* Closes all sockets at once. */
void hmq_pump_free(hmq_pump *pump);
/* A descriptor to watch for reading; then call hmq_pump_poll. */
int hmq_pump_fd(const hmq_pump *pump, hmq_pump_class of);

/* Takes the descriptor and reads it from now on; returns the socket's number.  max_message_bytes: of a WebSocket's
 * messages; 0: a socket of TCP.  A result below 0 is -errno: the descriptor is still the caller's. */
int64_t hmq_pump_add(hmq_pump *pump, int fd, hmq_conn conn, uint64_t max_message_bytes);
/* Answers the request of a WebSocket, which uses frames from now on, or (not accepted) is to be closed. */
void hmq_pump_upgrade(hmq_pump *pump, uint32_t number, const uint8_t *answer, size_t len, bool accepted);
/* The connection has ended for the engine.  Waiting bytes are still sent. */
void hmq_pump_detach(hmq_pump *pump, uint32_t number);
/* Closes when all waiting bytes (and a WebSocket's close frame) are sent, or at once.  True: it is closed now; false:
 * CLOSED follows. */
bool hmq_pump_close(hmq_pump *pump, uint32_t number, bool at_once);
/* Whether the socket is read. */
void hmq_pump_read(hmq_pump *pump, uint32_t number, bool reads);
/* The owner has handled a packet: if there are more after it, the socket gets a place in the line. */
void hmq_pump_line_up(hmq_pump *pump, uint32_t number);
/* Whether the line is not empty: there has to be another turn. */
bool hmq_pump_has_more(const hmq_pump *pump);
/* Whether publishers are to be slowed: the backlog of a receiver grows although it acknowledges quickly (SLOWING_RATE
 * messages a second or more); or it has just become long (HMQ_LONG_QUEUE), and the rate is not known yet. */
bool hmq_pump_slows_publishers(hmq_pump *pump, double now_s);
/* Whether any client is quiet. */
bool hmq_pump_has_quiet(const hmq_pump *pump);
/* All messages that such receivers have acknowledged: slowed publishers may send fewer. */
uint64_t hmq_pump_relieved(const hmq_pump *pump);
/* Bytes that wait to be sent. */
size_t hmq_pump_waiting(const hmq_pump *pump, uint32_t number);
/* When the last whole packet arrived (the now_s of its turn); 0: none has. */
double hmq_pump_heard(const hmq_pump *pump, uint32_t number);
/* Whether the client has closed, and has no unread bytes.  For sockets that are not read: others raise CLOSED. */
bool hmq_pump_is_gone(const hmq_pump *pump, uint32_t number);
/* All bytes sent so far. */
uint64_t hmq_pump_sent(const hmq_pump *pump);

/* The time for traces (hmq_engine_tracing): nanoseconds since 1970. */
int64_t hmq_pump_clock_ns(void);

/* Begins a turn over some classes: 1 << RECEIVERS | ...  most: while the server owes this much (hmq_engine_owed), no socket
 * is read, except those of quiet clients and of receivers that do not publish.  now_ms: the engine's clock; now_s: the owner's; congested: a
 * socket that was read is then paused.  Returns the number of sockets to handle, or -errno. */
int hmq_pump_poll(hmq_pump *pump, uint32_t classes, size_t most, int64_t now_ms, double now_s, bool congested);
/* Continues the turn until there is an event; false: the turn is over. */
bool hmq_pump_next(hmq_pump *pump, hmq_pump_event *out, hmq_engine_event *event);
/* Sends the engine's output until there is an event; false: everything is sent. */
bool hmq_pump_write(hmq_pump *pump, hmq_pump_event *out);
/* cffi-end */

#endif
