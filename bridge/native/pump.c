/* pump.c - see pump.h. */
#include "pump.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { PUMP_SOCKETS = 64, PUMP_READ_BYTES = 65536, FIRST_ROOM = 64, ROOM_SHARE = 4, MOST_LAST_READS = 16 };

/* Bytes that one call sends, waiting bytes that a turn sends to one socket, and to all of them. */
enum { MOST_SEND_BYTES = 1 << 20, WAITING_BYTES = 256 << 10, TURN_WAITING_BYTES = 1 << 20 };

/* Sockets that their clients have closed: so many end in a turn, and so often a turn looks for other sockets after them. */
enum { MOST_ENDS = 8, MOST_LOOKS = 16 };

#define TURN_NS 3000000 /* for reading OTHERS and BULK, and more than */
#define LEAST_HANDLED 8 /* of their sockets; then the owner's loop has its turn */
#define NORMAL_CLOSURE 1000 /* RFC 6455, 7.4.1 */

enum {
    CLASSES = 4,
    LIGHT = 20,
    HEAVY = 50,
    BYTES_OF_A_PACKET = 1024,
    SESSIONS_OF_A_PACKET = 8,
    SLOW_READ_BYTES = 2048
};

static const double WEIGHT_INTERVAL_S = 0.1;      /* the interval in which a client's input is counted */
static const double QUIET_AFTER_S = 0.5;          /* the time after which a client that sends little is quiet */
static const double RECEIVING_S = 0.1;     /* a client stays a receiver this long after its backlog is gone */
static const double SLOWING_RATE = 3000;  /* acknowledgements a second with which a receiver slows publishers */
static const double MAX_SLOWING_S = 0.1; /* after the receiver was read */
static const double DOUBT_S = 0.3;         /* a queue that has become long slows publishers this long */
static const double DOUBT_EVERY_S = 3;     /* at most once in this time, for all receivers together */

typedef struct peer peer;

typedef struct line_place {
    peer *before, *after;
} line_place;

struct peer {
    int fd;
    uint32_t number;
    uint32_t serial;   /* in the kernel's events: identifies an event for a former socket of this number */
    uint32_t interest; /* as the kernel knows it */
    uint8_t class;
    bool reads, closing, full, broken;
    bool gone;      /* its client has closed it: the kernel reports nothing more, and it ends in a later turn */
    uint8_t fault;  /* of a WebSocket, and */
    int error;      /* of the kernel: how it was closed */
    bool in_line;   /* the engine has further packets of it */
    bool publishes; /* in these WEIGHT_INTERVAL_S */
    hmq_conn conn;  /* 0: detached */
    double heard_s;
    double begun_s; /* when it was read first; 0: never */
    double weight_since_s;               /* the beginning of `weight` */
    uint32_t weight, weight_before; /* and that of the interval before */
    double backlog_seen_s;          /* when a backlog was last seen */
    double slows_until_s;               /* its backlog slows publishers until then */
    line_place line, slowing, going;
    uint8_t *waiting; /* from begin to end: unsent */
    size_t begin, end, room;
    hmq_websocket *websocket; /* NULL: TCP */
};

/* A class of sockets, and those that are ready. */
typedef struct socket_class {
    int epoll_fd;
    struct epoll_event ready[PUMP_SOCKETS];
    int ready_count, at;
    uint32_t peer_count;
} socket_class;

typedef struct peer_list {
    peer *first, *last;
    uint32_t count;
} peer_list;

struct hmq_pump {
    hmq_pump_engine engine;
    const hmq_engine_counters *count;
    size_t high_water, hard_limit;
    socket_class classes[CLASSES];
    peer_list line;     /* sockets with further packets in the engine */
    peer_list slowing; /* receivers that slow publishers */
    peer_list going;    /* sockets that are gone */
    uint64_t relieved;  /* all messages that they have acknowledged */
    uint64_t outgrown;  /* queues that had become long at the last check */
    double doubt_ends_s, next_doubt_s;
    peer **peers; /* by number */
    uint32_t *free_numbers; /* of the same size */
    uint32_t *numbers; /* number + 1 by a connection's place, the low 32 bits of its handle; 0: no socket */
    uint64_t sent;
    uint32_t serial, peer_count, peer_room, free_count, place_room;
    /* The turn. */
    uint32_t turn;      /* its classes, as bits */
    uint32_t line_left; /* sockets of the line that are still to be handled */
    uint32_t ends_left, looks_left;
    bool line_first;    /* before bulk; alternates */
    bool slows;         /* publishers are slowed: they are read in small pieces */
    bool congested;
    size_t owed; /* by the server when it began */
    size_t most; /* that the server may owe */
    size_t waiting_left; /* bytes that wait for sockets, and that this turn may still send */
    int64_t now_ms;
    double now_s;
    uint32_t handled; /* sockets of OTHERS and BULK */
    int64_t ends_ns; /* of monotonic_ns: no further socket of OTHERS and BULK is read then */
    uint8_t input[PUMP_READ_BYTES];
};

hmq_pump *hmq_pump_new(const hmq_pump_engine *engine, size_t high_water, size_t hard_limit) {
    hmq_pump *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->engine = *engine;
    p->count = engine->count(engine->engine);
    p->high_water = high_water;
    p->hard_limit = hard_limit;
    for (int i = 0; i < CLASSES; i++) {
        p->classes[i].epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (p->classes[i].epoll_fd >= 0) continue;
        while (i-- > 0) (void)close(p->classes[i].epoll_fd);
        free(p);
        return NULL;
    }
    return p;
}

static void free_peer(peer *s) {
    if (s->websocket != NULL) hmq_websocket_free(s->websocket);
    free(s->waiting);
    free(s);
}

static void release(peer *s) {
    (void)close(s->fd);
    free_peer(s);
}

void hmq_pump_free(hmq_pump *p) {
    for (uint32_t i = 0; i < p->peer_count; i++)
        if (p->peers[i] != NULL) release(p->peers[i]);
    for (int i = 0; i < CLASSES; i++) (void)close(p->classes[i].epoll_fd);
    free((void *)p->peers);
    free(p->free_numbers);
    free(p->numbers);
    free(p);
}

int hmq_pump_fd(const hmq_pump *p, hmq_pump_class of) {
    return p->classes[of].epoll_fd;
}

uint64_t hmq_pump_sent(const hmq_pump *p) {
    return p->sent;
}

/* Of a turn; never set back. */
static int64_t monotonic_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t hmq_pump_clock_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- sockets ---------------------------------------------------------------------------------------------------- */

static peer *find(const hmq_pump *p, uint32_t number) {
    return number < p->peer_count ? p->peers[number] : NULL;
}

static uint32_t place_of(hmq_conn conn) {
    return (uint32_t)conn;
}

static bool room_for_peer(hmq_pump *p) {
    if (p->free_count > 0 || p->peer_count < p->peer_room) return true;
    uint32_t room = p->peer_room == 0 ? FIRST_ROOM : p->peer_room * 2;
    peer **peers = realloc((void *)p->peers, room * sizeof *peers);
    if (peers == NULL) return false;
    p->peers = peers;
    uint32_t *free_numbers = realloc(p->free_numbers, room * sizeof *free_numbers);
    if (free_numbers == NULL) return false;
    p->free_numbers = free_numbers;
    p->peer_room = room;
    return true;
}

static bool room_for_place(hmq_pump *p, uint32_t place) {
    if (place < p->place_room) return true;
    uint32_t room = p->place_room == 0 ? FIRST_ROOM : p->place_room;
    while (room <= place) room *= 2;
    uint32_t *numbers = realloc(p->numbers, room * sizeof *numbers);
    if (numbers == NULL) return false;
    memset(numbers + p->place_room, 0, (room - p->place_room) * sizeof *numbers);
    p->numbers = numbers;
    p->place_room = room;
    return true;
}

/* Updates the kernel's interest in the socket; false: out of memory.  A socket in the line is not read. */
static bool update_interest(hmq_pump *p, uint32_t number, peer *s, int operation) {
    if (s->gone) return true;
    uint32_t reading = s->reads && !s->closing && !s->in_line ? EPOLLIN : 0;
    uint32_t writing = s->end > s->begin ? EPOLLOUT : 0;
    if (operation == EPOLL_CTL_MOD && (reading | writing) == s->interest) return true;
    struct epoll_event event = {.events = reading | writing, .data.u64 = (uint64_t)s->serial << 32 | number};
    if (epoll_ctl(p->classes[s->class].epoll_fd, operation, s->fd, &event) != 0) return false;
    s->interest = reading | writing;
    return true;
}

/* Output for the socket is lost: its next event in the kernel will be its end. */
static void break_socket(peer *s) {
    s->broken = true;
    (void)shutdown(s->fd, SHUT_RDWR);
}

static void update_interest_or_break(hmq_pump *p, uint32_t number, peer *s) {
    if (!update_interest(p, number, s, EPOLL_CTL_MOD)) break_socket(s);
}

/* ---- the line, and receivers that slow publishers --------------------------------------------------------------- */

/* A list's place in a peer: the peer before it is NULL for the first one. */
static line_place *place_in(const hmq_pump *p, const peer_list *list, peer *s) {
    if (list == &p->going) return &s->going;
    return list == &p->line ? &s->line : &s->slowing;
}

static void append(hmq_pump *p, peer_list *list, peer *s) {
    *place_in(p, list, s) = (line_place){.before = list->last};
    if (list->last != NULL)
        place_in(p, list, list->last)->after = s;
    else
        list->first = s;
    list->last = s;
    list->count++;
}

static void leave(hmq_pump *p, peer_list *list, peer *s) {
    const line_place *place = place_in(p, list, s);
    if (place->before != NULL)
        place_in(p, list, place->before)->after = place->after;
    else
        list->first = place->after;
    if (place->after != NULL)
        place_in(p, list, place->after)->before = place->before;
    else
        list->last = place->before;
    list->count--;
}

static void set_in_line(hmq_pump *p, peer *s, bool in_line) {
    if (in_line && !s->in_line) append(p, &p->line, s);
    if (!in_line && s->in_line) leave(p, &p->line, s);
    s->in_line = in_line;
    update_interest_or_break(p, s->number, s);
}

static void slow_until(hmq_pump *p, peer *s, double until_s) {
    bool slows = until_s > 0;
    if (slows && s->slows_until_s <= 0) append(p, &p->slowing, s);
    if (!slows && s->slows_until_s > 0) leave(p, &p->slowing, s);
    s->slows_until_s = until_s;
}

/* Whether publishers are slowed because a queue has become long before its receiver could acknowledge, as when many
 * publishers begin at once: the queue would overflow before the first acknowledgement is read. */
static bool is_in_doubt(hmq_pump *p, double now_s) {
    if (p->outgrown != p->count->backlogs_outgrown) {
        p->outgrown = p->count->backlogs_outgrown;
        if (now_s >= p->next_doubt_s) {
            p->doubt_ends_s = now_s + DOUBT_S;
            p->next_doubt_s = now_s + DOUBT_EVERY_S;
        }
    }
    return now_s < p->doubt_ends_s;
}

bool hmq_pump_slows_publishers(hmq_pump *p, double now_s) {
    bool in_doubt = is_in_doubt(p, now_s);
    while (p->slowing.first != NULL && p->slowing.first->slows_until_s <= now_s) slow_until(p, p->slowing.first, 0);
    return in_doubt || p->slowing.first != NULL;
}

bool hmq_pump_has_quiet(const hmq_pump *p) {
    return p->classes[HMQ_PUMP_QUIET].peer_count > 0;
}

uint64_t hmq_pump_relieved(const hmq_pump *p) {
    return p->relieved;
}

bool hmq_pump_has_more(const hmq_pump *p) {
    return p->line.count > 0 || p->going.count > 0;
}

void hmq_pump_line_up(hmq_pump *p, uint32_t number) {
    peer *s = find(p, number);
    if (s != NULL && s->conn != 0 && !s->gone && p->engine.has_more(p->engine.engine, s->conn)) set_in_line(p, s, true);
}

/* ---- classes ---------------------------------------------------------------------------------------------------- */

/* Without memory in the kernel, the socket stays in its class. */
static void change_class(hmq_pump *p, peer *s, hmq_pump_class class) {
    if (s->class == class || s->class >= CLASSES || s->broken) return;
    int former_epoll_fd = p->classes[s->class].epoll_fd;
    uint8_t was = s->class;
    s->class = (uint8_t)class;
    if (!update_interest(p, s->number, s, EPOLL_CTL_ADD)) {
        s->class = was;
        return;
    }
    (void)epoll_ctl(former_epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    p->classes[was].peer_count--;
    p->classes[class].peer_count++;
}

/* Counts a client's input, which decides between QUIET, OTHERS and BULK. */
static void count_input(hmq_pump *p, peer *s, uint64_t packets, uint64_t publishes, size_t bytes) {
    double passed_s = p->now_s - s->weight_since_s;
    if (passed_s >= WEIGHT_INTERVAL_S || passed_s < 0) {
        s->weight_before = passed_s < 2 * WEIGHT_INTERVAL_S ? s->weight : 0;
        s->weight = 0;
        s->publishes = false;
        s->weight_since_s = p->now_s;
    }
    uint64_t copies = publishes == 0 ? 0 : publishes * p->engine.reach_of(p->engine.engine, s->conn);
    s->weight += (uint32_t)(packets + bytes / BYTES_OF_A_PACKET + copies / SESSIONS_OF_A_PACKET);
    s->publishes |= publishes > 0;
    if (s->begun_s == 0) s->begun_s = p->now_s;
}

static bool is_heavy(const peer *s) {
    return s->weight > HEAVY || (s->class == HMQ_PUMP_BULK && s->weight_before > HEAVY / 2);
}

static bool is_quiet(const hmq_pump *p, const peer *s) {
    return s->weight <= LIGHT && s->weight_before <= LIGHT && p->now_s - s->begun_s >= QUIET_AFTER_S;
}

/* Each acknowledgement extends the time a little, so that only a high rate keeps publishers slowed. */
static void extend_slowing(hmq_pump *p, peer *s, uint64_t acknowledged) {
    double from_s = s->slows_until_s > p->now_s ? s->slows_until_s : p->now_s;
    double until_s = from_s + (double)acknowledged / SLOWING_RATE, latest_s = p->now_s + MAX_SLOWING_S;
    slow_until(p, s, until_s < latest_s ? until_s : latest_s);
    p->relieved += acknowledged;
}

/* A receiver was read, and has acknowledged this many messages. */
static void update_backlog(hmq_pump *p, peer *s, uint64_t acknowledged) {
    uint8_t backlog = p->engine.backlog_of(p->engine.engine, s->conn);
    if (backlog != HMQ_BACKLOG_NONE) s->backlog_seen_s = p->now_s;
    if (backlog != HMQ_BACKLOG_GROWS)
        slow_until(p, s, 0);
    else if (acknowledged > 0)
        extend_slowing(p, s, acknowledged);
}

static void update_class(hmq_pump *p, peer *s) {
    if (s->class == HMQ_PUMP_RECEIVERS && p->now_s - s->backlog_seen_s < RECEIVING_S && p->now_s >= s->backlog_seen_s)
        return;
    slow_until(p, s, 0);
    change_class(p, s, is_quiet(p, s) ? HMQ_PUMP_QUIET : is_heavy(s) ? HMQ_PUMP_BULK : HMQ_PUMP_OTHERS);
}

/* The client was written to: if messages now wait for its acknowledgements, it is a receiver. */
static void note_written(hmq_pump *p, peer *s) {
    if (s->class == HMQ_PUMP_RECEIVERS || s->conn == 0) return;
    if (p->engine.backlog_of(p->engine.engine, s->conn) == HMQ_BACKLOG_NONE) return;
    s->backlog_seen_s = p->now_s;
    change_class(p, s, HMQ_PUMP_RECEIVERS);
}

static peer *new_peer(int fd, hmq_conn conn, uint32_t serial, uint64_t max_message_bytes) {
    peer *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    *s = (peer){.fd = fd, .conn = conn, .serial = serial, .class = HMQ_PUMP_OTHERS, .reads = true};
    if (max_message_bytes == 0) return s;
    s->websocket = hmq_websocket_new(max_message_bytes, &hmq_libc_allocator);
    if (s->websocket != NULL) return s;
    free_peer(s);
    return NULL;
}

int64_t hmq_pump_add(hmq_pump *p, int fd, hmq_conn conn, uint64_t max_message_bytes) {
    if (!room_for_peer(p) || !room_for_place(p, place_of(conn))) return -ENOMEM;
    peer *s = new_peer(fd, conn, ++p->serial, max_message_bytes);
    if (s == NULL) return -ENOMEM;
    uint32_t number = p->free_count > 0 ? p->free_numbers[p->free_count - 1] : p->peer_count;
    s->number = number;
    if (!update_interest(p, number, s, EPOLL_CTL_ADD)) {
        int error = errno;
        free_peer(s);
        return -error;
    }
    if (p->free_count > 0)
        p->free_count--;
    else
        p->peer_count++;
    p->classes[s->class].peer_count++;
    p->peers[number] = s;
    p->numbers[place_of(conn)] = number + 1;
    return number;
}

void hmq_pump_detach(hmq_pump *p, uint32_t number) {
    peer *s = find(p, number);
    if (s == NULL || s->conn == 0) return;
    p->numbers[place_of(s->conn)] = 0;
    s->conn = 0;
    slow_until(p, s, 0);
    if (s->in_line) leave(p, &p->line, s);
    s->in_line = false;
}

static void end(hmq_pump *p, uint32_t number) {
    hmq_pump_detach(p, number);
    if (p->peers[number]->gone) leave(p, &p->going, p->peers[number]);
    p->classes[p->peers[number]->class].peer_count--;
    release(p->peers[number]); /* closing removes the descriptor from the kernel's set */
    p->peers[number] = NULL;
    p->free_numbers[p->free_count++] = number;
}

/* Reads first: closing a socket with unread bytes resets the connection, and loses bytes on their way to the peer. */
static void end_in_order(hmq_pump *p, uint32_t number) {
    int fd = p->peers[number]->fd, reads = 0;
    while (reads++ < MOST_LAST_READS && recv(fd, p->input, sizeof p->input, MSG_DONTWAIT) > 0) continue;
    end(p, number);
}

static void send_close_frame(hmq_pump *p, uint32_t number, peer *s);

bool hmq_pump_close(hmq_pump *p, uint32_t number, bool at_once) {
    peer *s = find(p, number);
    if (s == NULL) return false;
    s->closing = true;
    if (s->websocket != NULL && !at_once) send_close_frame(p, number, s);
    if (!at_once && !s->broken && s->end > s->begin && update_interest(p, number, s, EPOLL_CTL_MOD)) return false;
    if (at_once)
        end(p, number);
    else
        end_in_order(p, number);
    return true;
}

void hmq_pump_read(hmq_pump *p, uint32_t number, bool reads) {
    peer *s = find(p, number);
    if (s == NULL) return;
    s->reads = reads;
    if (reads) hmq_pump_line_up(p, number);
    update_interest_or_break(p, number, s);
}

size_t hmq_pump_waiting(const hmq_pump *p, uint32_t number) {
    const peer *s = find(p, number);
    return s == NULL ? 0 : s->end - s->begin;
}

double hmq_pump_heard(const hmq_pump *p, uint32_t number) {
    const peer *s = find(p, number);
    return s == NULL ? 0 : s->heard_s;
}

bool hmq_pump_is_gone(const hmq_pump *p, uint32_t number) {
    const peer *s = find(p, number);
    uint8_t byte;
    return s != NULL && (s->gone || recv(s->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0);
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static bool raise_event(hmq_pump_event *out, hmq_pump_event_kind kind, uint32_t number, const peer *s) {
    *out = (hmq_pump_event){.kind = (uint8_t)kind, .number = number, .conn = s->conn};
    return true;
}

/* The client has closed the socket.  To end it takes as long as to serve twenty others, so those come first: many clients
 * that close in the same moment delay nobody. */
static void note_gone(hmq_pump *p, peer *s, int error, uint8_t fault) {
    (void)epoll_ctl(p->classes[s->class].epoll_fd, EPOLL_CTL_DEL, s->fd, NULL);
    slow_until(p, s, 0);
    if (s->in_line) leave(p, &p->line, s);
    s->in_line = false;
    s->gone = s->broken = true;
    s->error = error;
    s->fault = fault;
    append(p, &p->going, s);
}

static bool is_temporary(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static bool should_pause_reading(const hmq_pump *p, const peer *s) {
    hmq_engine *engine = p->engine.engine;
    return p->congested || s->end - s->begin > p->hard_limit || p->engine.congested(engine) ||
           p->engine.pauses_reading(engine, s->conn);
}

static void send_owed(hmq_pump *p, uint32_t number, peer *s);

static bool is_over(const peer *s) {
    return s->websocket != NULL && hmq_websocket_state(s->websocket) == HMQ_WEBSOCKET_OVER;
}

/* Ends some of the sockets that are gone, one in each call. */
static bool next_gone(hmq_pump *p, hmq_pump_event *out) {
    peer *s = p->going.first;
    if (s == NULL || p->ends_left == 0) return false;
    p->ends_left--;
    *out = (hmq_pump_event){.kind = HMQ_PUMP_CLOSED, .number = s->number, .error = s->error, .fault = s->fault};
    if (is_over(s))
        end_in_order(p, s->number);
    else
        end(p, s->number);
    return true;
}

/* Moves the MQTT bytes to the front of the input; returns their number. */
static size_t take_frames_off(hmq_pump *p, uint32_t number, peer *s, size_t len) {
    size_t kept = hmq_websocket_read(s->websocket, p->input, len);
    if (hmq_websocket_has_answer(s->websocket)) send_owed(p, number, s);
    if (is_over(s)) (void)shutdown(s->fd, SHUT_RD); /* so that the next turn ends it */
    return kept;
}

static bool raise_request(uint32_t number, const peer *s, hmq_pump_event *out) {
    raise_event(out, HMQ_PUMP_UPGRADE, number, s);
    out->bytes = hmq_websocket_request(s->websocket);
    return out->bytes.len > 0;
}

/* The functions below that return bool: true if there is an event. */

static uint64_t publishes_of(const hmq_engine_counters *count) {
    return count->publishes_received[0] + count->publishes_received[1] + count->publishes_received[2];
}

/* Passes bytes of the client to the engine; without bytes, the engine takes further packets that it has. */
static bool pass_to_engine(hmq_pump *p, uint32_t number, peer *s, size_t len, hmq_pump_event *out,
                           hmq_engine_event *event) {
    hmq_engine *engine = p->engine.engine;
    const uint64_t packets = p->count->packets_received, acknowledged = p->count->messages_acknowledged;
    const uint64_t publishes = publishes_of(p->count);
    bool raised = p->engine.receive(engine, s->conn, p->input, len, p->now_ms, event);
    bool is_whole = raised || p->engine.completed_packet(engine);
    if (is_whole) s->heard_s = p->now_s;
    count_input(p, s, p->count->packets_received - packets, publishes_of(p->count) - publishes, 0);
    if (s->class == HMQ_PUMP_RECEIVERS) update_backlog(p, s, p->count->messages_acknowledged - acknowledged);
    update_class(p, s);
    set_in_line(p, s, p->engine.has_more(engine, s->conn));
    if (raised) return raise_event(out, HMQ_PUMP_PACKET, number, s);
    if (should_pause_reading(p, s)) {
        s->reads = false;
        update_interest_or_break(p, number, s);
        raise_event(out, HMQ_PUMP_PAUSED, number, s);
        out->partial = !is_whole;
        return true;
    }
    return !is_whole && raise_event(out, HMQ_PUMP_PARTIAL, number, s);
}

static bool receive(hmq_pump *p, uint32_t number, peer *s, hmq_pump_event *out, hmq_engine_event *event) {
    if (is_over(s)) {
        note_gone(p, s, 0, (uint8_t)hmq_websocket_failure(s->websocket));
        return false;
    }
    bool is_slowed = p->slows && s->class != HMQ_PUMP_RECEIVERS;
    ssize_t got = recv(s->fd, p->input, is_slowed ? SLOW_READ_BYTES : sizeof p->input, MSG_DONTWAIT);
    if (got < 0 && is_temporary(errno)) return false;
    if (got <= 0) {
        note_gone(p, s, got < 0 ? errno : 0, 0);
        return false;
    }
    size_t len = s->websocket == NULL ? (size_t)got : take_frames_off(p, number, s, (size_t)got);
    count_input(p, s, 0, 0, (size_t)got);
    if (len > 0) return pass_to_engine(p, number, s, len, out, event);
    update_class(p, s);
    return raise_request(number, s, out);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* How much the socket took.  Nothing if it is broken: its next event in the kernel says why. */
static size_t count_sent(hmq_pump *p, peer *s, ssize_t sent) {
    if (sent < 0) {
        if (!is_temporary(errno)) break_socket(s);
        return 0;
    }
    p->sent += (uint64_t)sent;
    return (size_t)sent;
}

static size_t transmit(hmq_pump *p, peer *s, const uint8_t *data, size_t len) {
    if (len > MOST_SEND_BYTES) len = MOST_SEND_BYTES;
    return s->broken ? 0 : count_sent(p, s, send(s->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static size_t transmit_both(hmq_pump *p, peer *s, hmq_slice first, hmq_slice second) {
    if (first.len == 0) return transmit(p, s, second.data, second.len);
    if (second.len > MOST_SEND_BYTES) second.len = MOST_SEND_BYTES;
    struct iovec parts[] = {{(void *)(uintptr_t)first.data, first.len}, {(void *)(uintptr_t)second.data, second.len}};
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    return s->broken ? 0 : count_sent(p, s, sendmsg(s->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

static bool buffer_unsent(peer *s, const uint8_t *data, size_t len) {
    if (len == 0) return true;
    if (s->begin > 0 && s->room - s->end < len) {
        memmove(s->waiting, s->waiting + s->begin, s->end - s->begin);
        s->end -= s->begin;
        s->begin = 0;
    }
    if (s->room - s->end < len) {
        size_t room = (s->end + len) * 2;
        uint8_t *grown = realloc(s->waiting, room);
        if (grown == NULL) return false;
        s->waiting = grown;
        s->room = room;
    }
    memcpy(s->waiting + s->end, data, len);
    s->end += len;
    return true;
}

static bool send_waiting(hmq_pump *p, uint32_t number, peer *s, hmq_pump_event *out) {
    size_t most = p->waiting_left < WAITING_BYTES ? p->waiting_left : WAITING_BYTES, waiting = s->end - s->begin;
    size_t sent = transmit(p, s, s->waiting + s->begin, waiting < most ? waiting : most);
    p->waiting_left -= sent;
    s->begin += sent;
    if (s->begin == s->end) {
        free(s->waiting);
        s->waiting = NULL;
        s->begin = s->end = s->room = 0;
    }
    if (s->end == 0 && s->websocket != NULL) send_owed(p, number, s);
    if (s->closing && s->end == 0) {
        end_in_order(p, number);
        *out = (hmq_pump_event){.kind = HMQ_PUMP_CLOSED, .number = number};
        return true;
    }
    update_interest_or_break(p, number, s);
    if (!s->full || s->end - s->begin > p->high_water / ROOM_SHARE) return false;
    s->full = false;
    return raise_event(out, HMQ_PUMP_ROOM, number, s);
}

/* Sends both in succession, and keeps what the socket does not take. */
static void send_or_buffer(hmq_pump *p, uint32_t number, peer *s, hmq_slice first, hmq_slice second) {
    size_t taken = s->end > s->begin ? 0 : transmit_both(p, s, first, second);
    if (taken == first.len + second.len || s->broken) return;
    size_t of_first = taken < first.len ? taken : first.len, of_second = taken - of_first;
    if (buffer_unsent(s, first.data + of_first, first.len - of_first) &&
        buffer_unsent(s, second.data + of_second, second.len - of_second))
        update_interest_or_break(p, number, s);
    else
        break_socket(s);
}

/* Sends output of the engine: for a WebSocket as one message, or not at all before and after it uses frames. */
static bool send_output(hmq_pump *p, uint32_t number, peer *s, hmq_slice bytes, hmq_pump_event *out) {
    uint8_t header[HMQ_WEBSOCKET_HEADER_BYTES];
    hmq_slice first = {header, 0};
    note_written(p, s);
    if (s->websocket != NULL) {
        if (hmq_websocket_state(s->websocket) != HMQ_WEBSOCKET_OPEN) return false;
        first.len = hmq_websocket_header(header, bytes.len);
    }
    send_or_buffer(p, number, s, first, bytes);
    if (s->full || s->broken || s->end - s->begin <= p->high_water) return false;
    s->full = true;
    return raise_event(out, HMQ_PUMP_FULL, number, s);
}

/* Sends control frames of a WebSocket when nothing else waits.  Until then their number does not grow. */
static void send_owed(hmq_pump *p, uint32_t number, peer *s) {
    uint8_t frames[HMQ_WEBSOCKET_ANSWER_BYTES];
    if (s->end > s->begin) return;
    hmq_slice owed = {frames, hmq_websocket_answer(s->websocket, frames)};
    if (owed.len > 0) send_or_buffer(p, number, s, (hmq_slice){frames, 0}, owed);
}

static void send_close_frame(hmq_pump *p, uint32_t number, peer *s) {
    uint8_t frame[HMQ_WEBSOCKET_ANSWER_BYTES];
    hmq_slice close = {frame, hmq_websocket_close(s->websocket, NORMAL_CLOSURE, frame)};
    if (close.len > 0) send_or_buffer(p, number, s, (hmq_slice){frame, 0}, close);
}

void hmq_pump_upgrade(hmq_pump *p, uint32_t number, const uint8_t *answer, size_t len, bool accepted) {
    peer *s = find(p, number);
    if (s == NULL || s->websocket == NULL) return;
    hmq_websocket_answered(s->websocket, accepted);
    send_or_buffer(p, number, s, (hmq_slice){answer, 0}, (hmq_slice){answer, len});
}

bool hmq_pump_write(hmq_pump *p, hmq_pump_event *out) {
    hmq_conn conn;
    hmq_slice bytes;
    while (p->engine.next_output(p->engine.engine, &conn, &bytes)) {
        uint32_t place = place_of(conn), number = place < p->place_room ? p->numbers[place] : 0;
        peer *s = number > 0 ? find(p, number - 1) : NULL;
        if (s == NULL || s->conn != conn) {
            *out = (hmq_pump_event){.kind = HMQ_PUMP_FOREIGN, .conn = conn, .bytes = bytes};
            return true;
        }
        if (send_output(p, number - 1, s, bytes, out)) return true;
    }
    return false;
}

/* ---- the turn --------------------------------------------------------------------------------------------------- */

/* Sockets that were ready when the last turn over this class ended come first. */
static int find_ready(socket_class *class) {
    if (class->at < class->ready_count) return 0;
    class->at = 0;
    class->ready_count = epoll_wait(class->epoll_fd, class->ready, PUMP_SOCKETS, 0);
    if (class->ready_count >= 0) return 0;
    class->ready_count = 0;
    return errno == EINTR ? 0 : -errno;
}

int hmq_pump_poll(hmq_pump *p, uint32_t classes, size_t most, int64_t now_ms, double now_s, bool congested) {
    p->now_ms = now_ms;
    p->now_s = now_s;
    p->congested = congested;
    p->turn = classes;
    p->most = most;
    p->slows = hmq_pump_slows_publishers(p, now_s);
    p->owed = p->engine.owed(p->engine.engine);
    p->line_left = p->line.count;
    p->line_first = !p->line_first;
    p->waiting_left = TURN_WAITING_BYTES;
    p->ends_left = MOST_ENDS;
    p->looks_left = MOST_LOOKS;
    p->ends_ns = monotonic_ns() + TURN_NS;
    p->handled = 0;
    int found = (int)(p->line.count + p->going.count);
    for (uint32_t i = 0; i < CLASSES; i++) {
        int error = classes >> i & 1 ? find_ready(&p->classes[i]) : 0;
        if (error != 0) return error;
        if (classes >> i & 1) found += p->classes[i].ready_count - p->classes[i].at;
    }
    return found;
}

static int error_of(const peer *s) {
    int error = 0;
    socklen_t len = sizeof error;
    (void)getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    return error;
}

/* A receiver that also publishes waits with the publishers while the server owes enough. */
static bool has_to_wait(hmq_pump *p, peer *s) {
    if (s->class == HMQ_PUMP_QUIET || p->engine.owed(p->engine.engine) < p->most) return false;
    if (s->class == HMQ_PUMP_RECEIVERS && s->publishes) change_class(p, s, HMQ_PUMP_BULK);
    return s->class != HMQ_PUMP_RECEIVERS;
}

static bool handle_ready(hmq_pump *p, const struct epoll_event *ready, hmq_pump_event *out, hmq_engine_event *event) {
    uint32_t number = (uint32_t)ready->data.u64;
    peer *s = find(p, number);
    if (s == NULL || s->gone || s->serial != (uint32_t)(ready->data.u64 >> 32)) return false; /* closed in this turn */
    bool reads = ready->events & EPOLLIN && s->reads && !s->closing && !s->in_line && s->conn != 0;
    if (reads) return !has_to_wait(p, s) && receive(p, number, s, out, event);
    if (ready->events & (EPOLLHUP | EPOLLERR)) note_gone(p, s, error_of(s), 0);
    return false;
}

/* Sends waiting bytes first, which may raise an event.  The same ready event is then handled again for the rest. */
static bool send_if_ready(hmq_pump *p, struct epoll_event *ready, hmq_pump_event *out) {
    uint32_t number = (uint32_t)ready->data.u64;
    peer *s = find(p, number);
    bool sends = ready->events & EPOLLOUT && s != NULL && s->serial == (uint32_t)(ready->data.u64 >> 32);
    ready->events &= ~(uint32_t)EPOLLOUT;
    return sends && p->waiting_left > 0 && s->end > s->begin && send_waiting(p, number, s, out);
}

/* OTHERS leave a quarter of what a turn may take to BULK, if that is read, too: no class may starve. */
static bool is_spent(const hmq_pump *p, uint32_t class) {
    size_t most = p->most;
    if (class == HMQ_PUMP_OTHERS && p->turn >> HMQ_PUMP_BULK & 1 && most > p->owed)
        most = p->owed + (most - p->owed + 3) / 4 * 3;
    return p->engine.owed(p->engine.engine) >= most;
}

/* However long quiet clients and receivers took, some of the others have their turn. */
static bool has_time(const hmq_pump *p) {
    return p->handled < LEAST_HANDLED || monotonic_ns() <= p->ends_ns;
}

/* The next sockets, if at least half of those before were gone.  The kernel reports sockets in the order in which they
 * became ready: those of clients that have sent something are after all that were closed before. */
static bool look_again(hmq_pump *p, socket_class *class, uint32_t gone_before) {
    if (p->going.count - gone_before < PUMP_SOCKETS / 2 || p->looks_left == 0) return false;
    if (--p->looks_left == 0) p->ends_left = 1;
    return find_ready(class) == 0 && class->ready_count > 0;
}

static bool next_of_class(hmq_pump *p, uint32_t number, hmq_pump_event *out, hmq_engine_event *event) {
    socket_class *class = &p->classes[number];
    uint32_t gone_before = p->going.count;
    while (number < HMQ_PUMP_OTHERS || (!is_spent(p, number) && has_time(p))) {
        if (class->at == class->ready_count) {
            if (!look_again(p, class, gone_before)) return false;
            gone_before = p->going.count;
        }
        struct epoll_event *ready = &class->ready[class->at];
        if (send_if_ready(p, ready, out)) return true;
        class->at++;
        p->handled += number >= HMQ_PUMP_OTHERS;
        if (handle_ready(p, ready, out, event)) return true;
    }
    return false;
}

/* Handles sockets that were in the line when the turn began, each once. */
static bool next_in_line(hmq_pump *p, hmq_pump_event *out, hmq_engine_event *event) {
    while (p->line_left > 0 && p->line.first != NULL && !is_spent(p, HMQ_PUMP_BULK) && has_time(p)) {
        peer *s = p->line.first;
        p->line_left--;
        p->handled++;
        leave(p, &p->line, s);
        s->in_line = p->turn >> s->class & 1 ? false : s->reads;
        if (s->in_line)
            append(p, &p->line, s);
        else if (s->reads && !s->closing && pass_to_engine(p, s->number, s, 0, out, event))
            return true;
    }
    return false;
}

bool hmq_pump_next(hmq_pump *p, hmq_pump_event *out, hmq_engine_event *event) {
    for (uint32_t i = 0; i < HMQ_PUMP_BULK; i++)
        if (p->turn >> i & 1 && next_of_class(p, i, out, event)) return true;
    if (p->line_first && next_in_line(p, out, event)) return true;
    if (p->turn >> HMQ_PUMP_BULK & 1 && next_of_class(p, HMQ_PUMP_BULK, out, event)) return true;
    return next_in_line(p, out, event) || next_gone(p, out);
}
