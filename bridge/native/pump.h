/* pump.h - many sockets of clients, read and written without a word of Python for each: the bridge's plain side.
 *
 *      sockets ──epoll──► hmq_pump_next ──recv──► (frames off) ──► engine     what is rare comes out as an event
 *      sockets ◄──send─── hmq_pump_write ◄── (frames on) ◄──────── engine
 *
 * A socket is one of TCP, or of a WebSocket (mqtt/websocket.h).  That one's request comes out as an event; from the owner's
 * answer on, its frames are taken off and put on between recv and the engine.
 *
 * The owner's event loop watches a descriptor for each class of sockets (hmq_pump_fd) in place of one for each client.
 * When one is readable, the owner calls hmq_pump_poll once and hmq_pump_next until there is nothing more to tell, then
 * flushes the engine and calls hmq_pump_write likewise.  Who may connect, what a CONNECT means, deadlines and when to close
 * are the owner's, and which classes a turn reads:
 *
 *      RECEIVERS   messages wait for the acknowledgements of these clients
 *      OTHERS      everybody else, and everybody at first
 *      BULK        clients that bring more than HEAVY in WEIGHING_S: packets, and a packet for each KiB
 *
 * A socket changes its class when it is read or written, so that one with steady traffic costs nothing for it.
 *
 * The core has no I/O and is another extension module: the engine's functions come as pointers, the frames of WebSockets,
 * which know nothing of the engine, are compiled in.
 *
 * Invariants
 *  1. A turn looks at PUMP_SOCKETS sockets of a class at most and reads each once, PUMP_READ_BYTES at most; the engine takes
 *     a bounded number of packets of them, and the rest waits in a line that each turn goes through once.  A turn ends
 *     early when the server owes as much as the owner said; the next one goes on with the socket at which it ended.
 *     So nobody keeps the others waiting, and the server gets its commands while further sockets are read.
 *  2. A socket that is not read is not in the kernel's set for reading: its bytes stay in the kernel, TCP slows the peer.
 *  3. What a socket does not take is kept in order and sent before anything else.  FULL tells that more than high_water
 *     waits (the owner then lets nothing be added that can wait), ROOM that no more than a quarter of that does; above
 *     hard_limit the socket is not read either, so that a peer who reads nothing cannot make us answer for ever.
 *  4. A socket that was added ends once: by CLOSED, or by a hmq_pump_close that returned true.  Then its number is free.
 *  5. After hmq_pump_detach no byte of the socket reaches the engine, and none of the engine's the socket.
 *  6. A pong is sent when nothing else waits: until then one is owed, for the most recent ping, so that a peer who pings
 *     and does not read costs nothing.  After a close frame nothing is sent; the socket ends in the next turn.
 *
 * Memory: a socket's structure is made when it is added and freed when its descriptor is closed; bytes have a buffer only
 * while they wait.  Everything is O(1) for a socket or an event, but hmq_pump_free.  Not thread-safe. */
#ifndef HMQ_PUMP_H
#define HMQ_PUMP_H

#include "engine/engine.h"
#include "mqtt/websocket.h"

/* cffi-begin */
typedef struct hmq_pump hmq_pump;

/* The engine, and those of its functions that are called from here (engine/engine.h says what they do). */
typedef struct hmq_pump_engine {
    hmq_engine *engine;
    bool (*receive)(hmq_engine *, hmq_conn, const uint8_t *, size_t, int64_t, hmq_engine_event *);
    bool (*took)(const hmq_engine *);
    bool (*rests)(hmq_engine *, hmq_conn);
    bool (*congested)(const hmq_engine *);
    bool (*next_output)(hmq_engine *, hmq_conn *, hmq_slice *);
    bool (*has_more)(const hmq_engine *, hmq_conn);
    uint8_t (*backlog_of)(const hmq_engine *, hmq_conn);
    size_t (*owed)(const hmq_engine *);
    const hmq_engine_counters *(*count)(const hmq_engine *);
} hmq_pump_engine;

typedef enum hmq_pump_class { HMQ_PUMP_RECEIVERS = 0, HMQ_PUMP_OTHERS = 1, HMQ_PUMP_BULK = 2 } hmq_pump_class;

typedef enum hmq_pump_event_kind {
    HMQ_PUMP_PACKET = 1,  /* the engine's event is in *event; the owner looks whether the socket is to rest */
    HMQ_PUMP_PARTIAL = 2, /* bytes came, but no whole packet */
    HMQ_PUMP_RESTS = 3,   /* it is read no more until hmq_pump_read; partial: as above */
    HMQ_PUMP_FULL = 4,
    HMQ_PUMP_ROOM = 5,
    HMQ_PUMP_CLOSED = 6,  /* error: errno, or 0 for the peer's end of the stream, or if the owner wanted it; fault: of
                             its WebSocket */
    HMQ_PUMP_FOREIGN = 7, /* conn; bytes: output of the engine for somebody who has no socket here */
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

/* NULL: errno says why.  The limits are bytes that wait for one socket. */
hmq_pump *hmq_pump_new(const hmq_pump_engine *engine, size_t high_water, size_t hard_limit);
/* Closes all sockets, whatever waits. */
void hmq_pump_free(hmq_pump *pump);
/* To be watched for reading; then hmq_pump_poll. */
int hmq_pump_fd(const hmq_pump *pump, hmq_pump_class of);

/* Takes the descriptor over and reads it from now on; returns the socket's number.  max_message_bytes: of a WebSocket's
 * messages; 0: it is one of TCP.  Below 0: it was not taken, and this is -errno. */
int64_t hmq_pump_add(hmq_pump *pump, int fd, hmq_conn conn, uint64_t max_message_bytes);
/* Answers the request of a WebSocket, which speaks in frames from now on, or (not accepted) is to be closed. */
void hmq_pump_upgrade(hmq_pump *pump, uint32_t number, const uint8_t *answer, size_t len, bool accepted);
/* The connection is over for the engine; what waits is still sent. */
void hmq_pump_detach(hmq_pump *pump, uint32_t number);
/* Closes when all that waits is sent (and a WebSocket's close frame), or at once.  True: it is closed now; false: CLOSED will tell. */
bool hmq_pump_close(hmq_pump *pump, uint32_t number, bool at_once);
/* Whether the socket is read. */
void hmq_pump_read(hmq_pump *pump, uint32_t number, bool reads);
/* The owner has dealt with a packet: if there are more behind it, they get a place in the line. */
void hmq_pump_line_up(hmq_pump *pump, uint32_t number);
/* Whether anybody stands in the line, so that there has to be another turn. */
bool hmq_pump_has_more(const hmq_pump *pump);
/* Whether publishers are to be slowed: the backlog of a receiver grows that acknowledges quickly, PRESSING_RATE messages a
 * second or more; or it has just become long (HMQ_LONG_QUEUE), and nobody can know yet how quickly it acknowledges. */
bool hmq_pump_is_pressed(hmq_pump *pump, double now_s);
/* What such receivers have acknowledged, ever: publishers that are slowed bring less than that. */
uint64_t hmq_pump_relieved(const hmq_pump *pump);
/* Bytes that wait to be sent. */
size_t hmq_pump_waiting(const hmq_pump *pump, uint32_t number);
/* When the last whole packet came (the now_s of its turn); 0: none has. */
double hmq_pump_heard(const hmq_pump *pump, uint32_t number);
/* Has the client closed, and is nothing of it unread?  For one that is not read: else its end is told anyway. */
bool hmq_pump_is_gone(const hmq_pump *pump, uint32_t number);
/* Bytes sent by all, ever. */
uint64_t hmq_pump_sent(const hmq_pump *pump);

/* Begins a turn over some classes: 1 << RECEIVERS | ...  most: what the server may owe (hmq_engine_owed) when a socket is read
 * (of a receiver: of one that publishes, too).  now_ms: the engine's clock; now_s: the owner's; congested: whoever is read rests
 * afterwards.  Returns how many there are to be looked at, or -errno. */
int hmq_pump_poll(hmq_pump *pump, uint32_t classes, size_t most, int64_t now_ms, double now_s, bool congested);
/* Goes on with it until there is something to tell; false: the turn is over. */
bool hmq_pump_next(hmq_pump *pump, hmq_pump_event *told, hmq_engine_event *event);
/* Sends what the engine has for clients until there is something to tell; false: there is nothing more. */
bool hmq_pump_write(hmq_pump *pump, hmq_pump_event *told);
/* cffi-end */

#endif
