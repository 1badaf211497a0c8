/* pump.h - many sockets of clients, read and written without a word of Python for each: the bridge's plain TCP side.
 *
 *      sockets ──epoll──► hmq_pump_next ──recv──► engine        what is rare comes out as an event
 *      sockets ◄──send─── hmq_pump_write ◄─────── engine
 *
 * The owner's event loop watches one descriptor (hmq_pump_fd) in place of one for each client.  When it is readable, the
 * owner calls hmq_pump_poll once and hmq_pump_next until there is nothing more to tell, then flushes the engine and calls
 * hmq_pump_write likewise.  Who may connect, what a CONNECT means, deadlines and when to close are the owner's.
 *
 * The core has no I/O and is another extension module: its functions come as pointers.
 *
 * Invariants
 *  1. A turn looks at PUMP_SOCKETS sockets at most and reads each once, PUMP_READ_BYTES at most: nobody keeps the others
 *     waiting, and the server gets its commands while further sockets are read.  epoll hands out the ready ones in turn.
 *  2. A socket that is not read is not in the kernel's set for reading: its bytes stay in the kernel, TCP slows the peer.
 *  3. What a socket does not take is kept in order and sent before anything else.  FULL tells that more than high_water
 *     waits (the owner then lets nothing be added that can wait), ROOM that no more than a quarter of that does; above
 *     hard_limit the socket is not read either, so that a peer who reads nothing cannot make us answer for ever.
 *  4. A socket that was added ends once: by CLOSED, or by a hmq_pump_close that returned true.  Then its number is free.
 *  5. After hmq_pump_detach no byte of the socket reaches the engine, and none of the engine's the socket.
 *
 * Memory: a socket's structure is made when it is added and freed when its descriptor is closed; bytes have a buffer only
 * while they wait.  Everything is O(1) for a socket or an event, but hmq_pump_free.  Not thread-safe. */
#ifndef HMQ_PUMP_H
#define HMQ_PUMP_H

#include "engine.h"

/* cffi-begin */
typedef struct hmq_pump hmq_pump;

/* The engine, and those of its functions that are called from here (engine.h says what they do). */
typedef struct hmq_pump_engine {
    hmq_engine *engine;
    bool (*receive)(hmq_engine *, hmq_conn, const uint8_t *, size_t, int64_t, hmq_engine_event *);
    bool (*took)(const hmq_engine *);
    bool (*rests)(hmq_engine *, hmq_conn);
    bool (*congested)(const hmq_engine *);
    bool (*next_output)(hmq_engine *, hmq_conn *, hmq_slice *);
} hmq_pump_engine;

typedef enum hmq_pump_event_kind {
    HMQ_PUMP_PACKET = 1,  /* the engine's event is in *event; the owner looks whether the socket is to rest */
    HMQ_PUMP_PARTIAL = 2, /* bytes came, but no whole packet */
    HMQ_PUMP_RESTS = 3,   /* it is read no more until hmq_pump_read; partial: as above */
    HMQ_PUMP_FULL = 4,
    HMQ_PUMP_ROOM = 5,
    HMQ_PUMP_CLOSED = 6,  /* error: errno, or 0 for the peer's end of the stream, or if the owner wanted it */
    HMQ_PUMP_FOREIGN = 7  /* conn; bytes: output of the engine for somebody who has no socket here */
} hmq_pump_event_kind;

/* Bytes are the engine's and stay valid until the next call. */
typedef struct hmq_pump_event {
    uint8_t kind;
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
int hmq_pump_fd(const hmq_pump *pump);

/* Takes the descriptor over and reads it from now on; returns the socket's number.  Below 0: it was not taken, and this is
 * -errno. */
int64_t hmq_pump_add(hmq_pump *pump, int fd, hmq_conn conn);
/* The connection is over for the engine; what waits is still sent. */
void hmq_pump_detach(hmq_pump *pump, uint32_t number);
/* Closes when all that waits is sent, or at once.  True: it is closed now; false: CLOSED will tell. */
bool hmq_pump_close(hmq_pump *pump, uint32_t number, bool at_once);
/* Whether the socket is read. */
void hmq_pump_read(hmq_pump *pump, uint32_t number, bool reads);
/* Bytes that wait to be sent. */
size_t hmq_pump_waiting(const hmq_pump *pump, uint32_t number);
/* When the last whole packet came (the now_s of its turn); 0: none has. */
double hmq_pump_heard(const hmq_pump *pump, uint32_t number);
/* Bytes sent by all, ever. */
uint64_t hmq_pump_sent(const hmq_pump *pump);

/* Begins a turn.  now_ms: the engine's clock; now_s: the owner's; congested: whoever is read rests afterwards.  Returns 0,
 * or -errno. */
int hmq_pump_poll(hmq_pump *pump, int64_t now_ms, double now_s, bool congested);
/* Goes on with it until there is something to tell; false: the turn is over. */
bool hmq_pump_next(hmq_pump *pump, hmq_pump_event *told, hmq_engine_event *event);
/* Sends what the engine has for clients until there is something to tell; false: there is nothing more. */
bool hmq_pump_write(hmq_pump *pump, hmq_pump_event *told);
/* cffi-end */

#endif
