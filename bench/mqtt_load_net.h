/* mqtt_load_net.h - many non-blocking connections on one epoll: bytes in, packets out, and the other way round.
 *
 * A step waits once, reads each ready connection once, hands its packets up, and then writes each touched connection
 * once: whatever came together is answered together.
 *
 * Invariants:
 *  1. No memory is taken per message: a connection's buffers stay with it, bytes that are read pass through one buffer.
 *  2. A connection is read only as far as its answers have room (an answer is never longer than its packet), and new
 *     messages take at most half of that room: so answers always fit, and neither side waits for the other for good.
 *  3. After a fault nothing more is sent or read; the first fault is the one that is told. */
#ifndef MQTT_LOAD_NET_H
#define MQTT_LOAD_NET_H

#include <netdb.h>

#include "mqtt_load_frames.h"
#include "mqtt_load_wire.h"

typedef struct net_address {
    struct sockaddr_storage bytes;
    socklen_t len; /* 0: none */
} net_address;

/* One connection; the first member of whatever the owner knows about it. */
typedef struct net_client {
    char name[WIRE_MAX_ID_BYTES + 1]; /* the client id, also for messages of faults */
    int fd;                           /* -1: not open */
    bool closing;                     /* an end of the connection is not a fault */
    bool dirty;                       /* in the list of those that are to be written */
    uint32_t interest;                /* of epoll */
    size_t out_begin, out_end, out_capacity;
    uint8_t *out;
    frames_state frames;
    size_t framed_begin, framed_end; /* over WebSocket: what is on its way of what was in `out` */
    uint8_t *framed;
    size_t rest_len, rest_capacity; /* the beginning of a packet whose end has not come */
    uint8_t *rest;
} net_client;

typedef struct load_net {
    int epoll_fd;
    net_address address, source; /* of the broker; of the clients */
    void *context; /* of the functions below */
    void (*on_packet)(void *context, net_client *client, const wire_packet *packet);
    /* Before a touched connection is written: may add to it.  True: there is more than fits. */
    bool (*on_writable)(void *context, net_client *client);
    void (*on_closed)(void *context, net_client *client);
    uint64_t now_ns; /* when the packets that are handed up were read */
    uint64_t last_packet_ns;
    const char *websocket; /* set by the caller: path of a WebSocket that carries MQTT; NULL: TCP does */
    uint64_t gather_ns; /* set by the caller: steps begin at least so far apart, so that more comes together */
    uint64_t last_step_ns;
    uint64_t reads, writes;
    size_t dirty_count, dirty_capacity;
    net_client **dirty;
    uint8_t *input;
    bool failed;
    char fault[300]; /* without double quotes and backslashes */
} load_net;

/* Room for `clients` connections, from the address `source` (NULL: as the kernel chooses).  The functions and the context
 * are set by the caller.  False: see `fault`. */
bool net_init(load_net *net, const char *host, const char *port, const char *source, size_t clients);
void net_fini(load_net *net);

/* Remembers the first fault. */
__attribute__((format(printf, 2, 3))) void net_fail(load_net *net, const char *format, ...);

/* Begins a connection; what is put into it meanwhile is sent when it stands. */
void net_open(load_net *net, net_client *client, size_t out_capacity);
void net_close(load_net *net, net_client *client);
void net_client_free(net_client *client);

/* `len` bytes to be filled in and sent, an answer or (half of the room) a new message; NULL: no room. */
uint8_t *net_answer_room(net_client *client, size_t len);
uint8_t *net_message_room(net_client *client, size_t len);
/* The connection has something to be sent, or on_writable has. */
void net_touch(load_net *net, net_client *client);

/* One step, which waits until something comes or the moment `until_ns`.  False: a fault. */
bool net_step(load_net *net, uint64_t until_ns);

#endif
