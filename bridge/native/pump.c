/* pump.c - see pump.h. */
#include "pump.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PUMP_SOCKETS = 64, PUMP_READ_BYTES = 65536, FIRST_ROOM = 64, ROOM_SHARE = 4, MOST_LAST_READS = 16 };

typedef struct peer {
    int fd;
    uint32_t serial;   /* the kernel's events carry it: one for a former socket of this number is known by it */
    uint32_t interest; /* as the kernel knows it */
    bool reads, closing, full, broken;
    hmq_conn conn; /* 0: detached */
    double heard_s;
    uint8_t *waiting; /* from begin to end: not sent yet */
    size_t begin, end, room;
} peer;

struct hmq_pump {
    hmq_pump_engine engine;
    size_t high_water, hard_limit;
    int epoll_fd;
    uint32_t serial;
    peer **peers; /* by number */
    uint32_t peer_count, peer_room;
    uint32_t *free_numbers; /* as much room */
    uint32_t free_count;
    uint32_t *numbers; /* number + 1 by a connection's place, the low 32 bits of its handle; 0: no socket */
    uint32_t place_room;
    uint64_t sent;
    /* The turn. */
    struct epoll_event ready[PUMP_SOCKETS];
    int ready_count, at;
    int64_t now_ms;
    double now_s;
    bool congested;
    uint8_t input[PUMP_READ_BYTES];
};

hmq_pump *hmq_pump_new(const hmq_pump_engine *engine, size_t high_water, size_t hard_limit) {
    hmq_pump *p = calloc(1, sizeof *p);
    if (p == NULL) return NULL;
    p->engine = *engine;
    p->high_water = high_water;
    p->hard_limit = hard_limit;
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (p->epoll_fd >= 0) return p;
    free(p);
    return NULL;
}

static void release(peer *s) {
    (void)close(s->fd);
    free(s->waiting);
    free(s);
}

void hmq_pump_free(hmq_pump *p) {
    for (uint32_t i = 0; i < p->peer_count; i++)
        if (p->peers[i] != NULL) release(p->peers[i]);
    (void)close(p->epoll_fd);
    free((void *)p->peers);
    free(p->free_numbers);
    free(p->numbers);
    free(p);
}

int hmq_pump_fd(const hmq_pump *p) {
    return p->epoll_fd;
}

uint64_t hmq_pump_sent(const hmq_pump *p) {
    return p->sent;
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

/* Tells the kernel what is of interest; false: it cannot take that (out of memory). */
static bool follow(hmq_pump *p, uint32_t number, peer *s, int operation) {
    uint32_t reading = s->reads && !s->closing ? EPOLLIN : 0, writing = s->end > s->begin ? EPOLLOUT : 0;
    if (operation == EPOLL_CTL_MOD && (reading | writing) == s->interest) return true;
    struct epoll_event event = {.events = reading | writing, .data.u64 = (uint64_t)s->serial << 32 | number};
    if (epoll_ctl(p->epoll_fd, operation, s->fd, &event) != 0) return false;
    s->interest = reading | writing;
    return true;
}

/* The kernel's next event for it is its end: what it should have got cannot be sent any more. */
static void give_up(peer *s) {
    s->broken = true;
    (void)shutdown(s->fd, SHUT_RDWR);
}

static void follow_or_give_up(hmq_pump *p, uint32_t number, peer *s) {
    if (!follow(p, number, s, EPOLL_CTL_MOD)) give_up(s);
}

int64_t hmq_pump_add(hmq_pump *p, int fd, hmq_conn conn) {
    if (!room_for_peer(p) || !room_for_place(p, place_of(conn))) return -ENOMEM;
    peer *s = calloc(1, sizeof *s);
    if (s == NULL) return -ENOMEM;
    *s = (peer){.fd = fd, .conn = conn, .serial = ++p->serial, .reads = true};
    uint32_t number = p->free_count > 0 ? p->free_numbers[p->free_count - 1] : p->peer_count;
    if (!follow(p, number, s, EPOLL_CTL_ADD)) {
        int error = errno;
        free(s);
        return -error;
    }
    if (p->free_count > 0)
        p->free_count--;
    else
        p->peer_count++;
    p->peers[number] = s;
    p->numbers[place_of(conn)] = number + 1;
    return number;
}

void hmq_pump_detach(hmq_pump *p, uint32_t number) {
    peer *s = find(p, number);
    if (s == NULL || s->conn == 0) return;
    p->numbers[place_of(s->conn)] = 0;
    s->conn = 0;
}

static void end(hmq_pump *p, uint32_t number) {
    hmq_pump_detach(p, number);
    release(p->peers[number]); /* closing takes the descriptor out of the kernel's set */
    p->peers[number] = NULL;
    p->free_numbers[p->free_count++] = number;
}

/* Closing a socket with unread bytes resets the connection, and what is under way to the peer is lost with it. */
static void end_in_order(hmq_pump *p, uint32_t number) {
    int fd = p->peers[number]->fd, reads = 0;
    while (reads++ < MOST_LAST_READS && recv(fd, p->input, sizeof p->input, MSG_DONTWAIT) > 0) continue;
    end(p, number);
}

bool hmq_pump_close(hmq_pump *p, uint32_t number, bool at_once) {
    peer *s = find(p, number);
    if (s == NULL) return false;
    s->closing = true;
    if (!at_once && !s->broken && s->end > s->begin && follow(p, number, s, EPOLL_CTL_MOD)) return false;
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
    follow_or_give_up(p, number, s);
}

size_t hmq_pump_waiting(const hmq_pump *p, uint32_t number) {
    const peer *s = find(p, number);
    return s == NULL ? 0 : s->end - s->begin;
}

double hmq_pump_heard(const hmq_pump *p, uint32_t number) {
    const peer *s = find(p, number);
    return s == NULL ? 0 : s->heard_s;
}

/* ---- reading ---------------------------------------------------------------------------------------------------- */

static bool tell(hmq_pump_event *told, hmq_pump_event_kind kind, uint32_t number, const peer *s) {
    *told = (hmq_pump_event){.kind = (uint8_t)kind, .number = number, .conn = s->conn};
    return true;
}

static bool lose(hmq_pump *p, uint32_t number, int error, hmq_pump_event *told) {
    *told = (hmq_pump_event){.kind = HMQ_PUMP_CLOSED, .number = number, .error = error};
    end(p, number);
    return true;
}

static bool passing(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static bool should_rest(const hmq_pump *p, const peer *s) {
    hmq_engine *engine = p->engine.engine;
    return p->congested || s->end - s->begin > p->hard_limit || p->engine.congested(engine) ||
           p->engine.rests(engine, s->conn);
}

/* Each of those below that returns bool: true if something is to be told. */
static bool receive(hmq_pump *p, uint32_t number, peer *s, hmq_pump_event *told, hmq_engine_event *event) {
    ssize_t got = recv(s->fd, p->input, sizeof p->input, MSG_DONTWAIT);
    if (got < 0 && passing(errno)) return false;
    if (got <= 0) return lose(p, number, got < 0 ? errno : 0, told);
    bool raised = p->engine.receive(p->engine.engine, s->conn, p->input, (size_t)got, p->now_ms, event);
    bool whole = raised || p->engine.took(p->engine.engine);
    if (whole) s->heard_s = p->now_s;
    if (raised) return tell(told, HMQ_PUMP_PACKET, number, s);
    if (should_rest(p, s)) {
        s->reads = false;
        follow_or_give_up(p, number, s);
        tell(told, HMQ_PUMP_RESTS, number, s);
        told->partial = !whole;
        return true;
    }
    return !whole && tell(told, HMQ_PUMP_PARTIAL, number, s);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

/* How much the socket took.  Nothing, if it is broken: the kernel's next event for it says why. */
static size_t transmit(hmq_pump *p, peer *s, const uint8_t *data, size_t len) {
    if (s->broken) return 0;
    ssize_t sent = send(s->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (!passing(errno)) give_up(s);
        return 0;
    }
    p->sent += (uint64_t)sent;
    return (size_t)sent;
}

static bool keep(peer *s, const uint8_t *data, size_t len) {
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

static bool send_waiting(hmq_pump *p, uint32_t number, peer *s, hmq_pump_event *told) {
    s->begin += transmit(p, s, s->waiting + s->begin, s->end - s->begin);
    if (s->begin == s->end) {
        free(s->waiting);
        s->waiting = NULL;
        s->begin = s->end = s->room = 0;
    }
    if (s->closing && s->end == 0) {
        end_in_order(p, number);
        *told = (hmq_pump_event){.kind = HMQ_PUMP_CLOSED, .number = number};
        return true;
    }
    follow_or_give_up(p, number, s);
    if (!s->full || s->end - s->begin > p->high_water / ROOM_SHARE) return false;
    s->full = false;
    return tell(told, HMQ_PUMP_ROOM, number, s);
}

static bool give(hmq_pump *p, uint32_t number, peer *s, hmq_slice bytes, hmq_pump_event *told) {
    size_t taken = s->end > s->begin ? 0 : transmit(p, s, bytes.data, bytes.len);
    if (taken == bytes.len || s->broken) return false;
    if (!keep(s, bytes.data + taken, bytes.len - taken)) {
        give_up(s);
        return false;
    }
    follow_or_give_up(p, number, s);
    if (s->full || s->end - s->begin <= p->high_water) return false;
    s->full = true;
    return tell(told, HMQ_PUMP_FULL, number, s);
}

bool hmq_pump_write(hmq_pump *p, hmq_pump_event *told) {
    hmq_conn conn;
    hmq_slice bytes;
    while (p->engine.next_output(p->engine.engine, &conn, &bytes)) {
        uint32_t place = place_of(conn), number = place < p->place_room ? p->numbers[place] : 0;
        peer *s = number > 0 ? find(p, number - 1) : NULL;
        if (s == NULL || s->conn != conn) {
            *told = (hmq_pump_event){.kind = HMQ_PUMP_FOREIGN, .conn = conn, .bytes = bytes};
            return true;
        }
        if (give(p, number - 1, s, bytes, told)) return true;
    }
    return false;
}

/* ---- the turn --------------------------------------------------------------------------------------------------- */

int hmq_pump_poll(hmq_pump *p, int64_t now_ms, double now_s, bool congested) {
    p->now_ms = now_ms;
    p->now_s = now_s;
    p->congested = congested;
    p->at = 0;
    p->ready_count = epoll_wait(p->epoll_fd, p->ready, PUMP_SOCKETS, 0);
    if (p->ready_count >= 0) return 0;
    p->ready_count = 0;
    return errno == EINTR ? 0 : -errno;
}

static int error_of(const peer *s) {
    int error = 0;
    socklen_t len = sizeof error;
    (void)getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &len);
    return error;
}

static bool look(hmq_pump *p, const struct epoll_event *ready, hmq_pump_event *told, hmq_engine_event *event) {
    uint32_t number = (uint32_t)ready->data.u64;
    peer *s = find(p, number);
    if (s == NULL || s->serial != (uint32_t)(ready->data.u64 >> 32)) return false; /* it was closed in this turn */
    if (ready->events & EPOLLIN && s->reads && !s->closing && s->conn != 0) return receive(p, number, s, told, event);
    return ready->events & (EPOLLHUP | EPOLLERR) && lose(p, number, error_of(s), told);
}

/* What waits goes first, and what that has to tell, too: the same event is looked at again for the rest. */
static bool look_to_send(hmq_pump *p, struct epoll_event *ready, hmq_pump_event *told) {
    uint32_t number = (uint32_t)ready->data.u64;
    peer *s = find(p, number);
    bool sends = ready->events & EPOLLOUT && s != NULL && s->serial == (uint32_t)(ready->data.u64 >> 32);
    ready->events &= ~(uint32_t)EPOLLOUT;
    return sends && s->end > s->begin && send_waiting(p, number, s, told);
}

bool hmq_pump_next(hmq_pump *p, hmq_pump_event *told, hmq_engine_event *event) {
    for (; p->at < p->ready_count; p->at++) {
        if (look_to_send(p, &p->ready[p->at], told)) return true;
        if (look(p, &p->ready[p->at], told, event)) {
            p->at++;
            return true;
        }
    }
    return false;
}
