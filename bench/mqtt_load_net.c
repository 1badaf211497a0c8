/* mqtt_load_net.c - see mqtt_load_net.h. */
#include "mqtt_load_net.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "mqtt_load_measure.h"

#define READ_BYTES 65536
#define EVENTS 512     /* of a look at the connections */
#define LIVE_EVENTS 16 /* the same where nothing is gathered: each client answers for itself, at once */
#define REST_STEP_BYTES 512

void net_fail(load_net *net, const char *format, ...) {
    if (net->failed) return;
    net->failed = true;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(net->fault, sizeof net->fault, format, arguments);
    va_end(arguments);
}

static bool resolve(load_net *net, const char *host, const char *port, net_address *address) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int status = getaddrinfo(host, port, &hints, &found);
    if (status != 0) {
        net_fail(net, "host %s port %s: %s", host, port, gai_strerror(status));
        return false;
    }
    memcpy(&address->bytes, found->ai_addr, found->ai_addrlen);
    address->len = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

bool net_init(load_net *net, const char *host, const char *port, const char *source, size_t clients) {
    memset(net, 0, sizeof *net);
    net->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    net->dirty = calloc(clients, sizeof(net_client *));
    net->dirty_capacity = clients;
    net->input = malloc(READ_BYTES);
    if (net->epoll_fd < 0 || net->dirty == NULL || net->input == NULL) net_fail(net, "no memory or no epoll");
    return !net->failed && resolve(net, host, port, &net->address) &&
           (source == NULL || resolve(net, source, "0", &net->source));
}

void net_fini(load_net *net) {
    if (net->epoll_fd >= 0) close(net->epoll_fd);
    free((void *)net->dirty);
    free(net->input);
}

static bool is_open(const load_net *net, const net_client *client) {
    return client->fd >= 0 && !net->failed;
}

/* Invariant 2. */
static size_t answer_room(const net_client *client) {
    return client->out_capacity - (client->out_end - client->out_begin);
}

static bool has_unsent(const net_client *client) {
    return client->out_end > client->out_begin || client->framed_end > client->framed_begin;
}

static uint32_t wanted(const net_client *client) {
    return (answer_room(client) > client->rest_len ? (uint32_t)EPOLLIN : 0U) |
           (has_unsent(client) ? (uint32_t)EPOLLOUT : 0U);
}

static void follow(load_net *net, net_client *client, int operation) {
    uint32_t interest = wanted(client);
    if (operation == EPOLL_CTL_MOD && interest == client->interest) return;
    client->interest = interest;
    struct epoll_event event = {.events = interest, .data.ptr = client};
    if (epoll_ctl(net->epoll_fd, operation, client->fd, &event) != 0)
        net_fail(net, "%s: epoll: %s", client->name, strerror(errno));
}

/* The request for a WebSocket goes first; packets follow when it is accepted. */
static bool begin_frames(load_net *net, net_client *client) {
    memset(&client->frames, 0, sizeof client->frames);
    client->framed_begin = client->framed_end = 0;
    if (net->websocket == NULL) return true;
    if (client->framed == NULL) client->framed = malloc(FRAMES_GROWTH * client->out_capacity + FRAMES_REQUEST_BYTES);
    if (client->framed == NULL) return false;
    client->framed_end = frames_put_request((char *)client->framed, net->websocket);
    return client->framed_end > 0;
}

void net_open(load_net *net, net_client *client, size_t out_capacity) {
    if (client->out == NULL) {
        client->out = malloc(out_capacity);
        client->out_capacity = out_capacity;
    }
    client->out_begin = client->out_end = client->rest_len = 0;
    client->closing = false;
    client->fd = socket(net->address.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int yes = 1;
    if (client->out == NULL || !begin_frames(net, client) || client->fd < 0 ||
        setsockopt(client->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) != 0) {
        net_fail(net, "%s: no socket: %s", client->name, strerror(errno));
        return;
    }
    if (net->source.len > 0 && (setsockopt(client->fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes) != 0 ||
                                bind(client->fd, (struct sockaddr *)&net->source.bytes, net->source.len) != 0)) {
        net_fail(net, "%s: cannot come from that address: %s", client->name, strerror(errno));
        return;
    }
    if (connect(client->fd, (struct sockaddr *)&net->address.bytes, net->address.len) != 0 && errno != EINPROGRESS) {
        net_fail(net, "%s: cannot connect: %s", client->name, strerror(errno));
        return;
    }
    follow(net, client, EPOLL_CTL_ADD);
}

void net_close(load_net *net, net_client *client) {
    if (client->fd < 0) return;
    close(client->fd);
    client->fd = -1;
    net->on_closed(net->context, client);
}

void net_client_free(net_client *client) {
    if (client->fd >= 0) close(client->fd);
    free(client->out);
    free(client->framed);
    free(client->rest);
}

uint8_t *net_answer_room(net_client *client, size_t len) {
    if (answer_room(client) < len) return NULL;
    if (client->out_capacity - client->out_end < len) {
        memmove(client->out, client->out + client->out_begin, client->out_end - client->out_begin);
        client->out_end -= client->out_begin;
        client->out_begin = 0;
    }
    client->out_end += len;
    return client->out + client->out_end - len;
}

uint8_t *net_message_room(net_client *client, size_t len) {
    return answer_room(client) < len + client->out_capacity / 2 ? NULL : net_answer_room(client, len);
}

void net_touch(load_net *net, net_client *client) {
    if (client->dirty || client->fd < 0) return;
    client->dirty = true;
    net->dirty[net->dirty_count++] = client;
}

static void lost(load_net *net, net_client *client, const char *why) {
    if (!client->closing) net_fail(net, "%s: the connection was lost: %s", client->name, why);
    net_close(net, client);
}

static void keep_rest(load_net *net, net_client *client, const uint8_t *data, size_t len) {
    if (len > client->rest_capacity) {
        size_t capacity = (len + REST_STEP_BYTES - 1) / REST_STEP_BYTES * REST_STEP_BYTES;
        uint8_t *grown = realloc(client->rest, capacity);
        if (grown == NULL) {
            net_fail(net, "%s: no memory", client->name);
            return;
        }
        client->rest = grown;
        client->rest_capacity = capacity;
    }
    if (len > 0) memcpy(client->rest, data, len);
    client->rest_len = len;
}

static void hand_up(load_net *net, net_client *client, size_t len) {
    size_t at = 0;
    wire_packet packet;
    int64_t used = 0;
    while (is_open(net, client) && (used = wire_next(net->input + at, len - at, &packet)) > 0) {
        at += (size_t)used;
        net->on_packet(net->context, client, &packet);
    }
    if (used < 0) net_fail(net, "%s: got what is no MQTT packet", client->name);
    if (is_open(net, client)) keep_rest(net, client, net->input + at, len - at);
}

static void receive(load_net *net, net_client *client) {
    size_t most = answer_room(client) < READ_BYTES ? answer_room(client) : READ_BYTES;
    if (most <= client->rest_len) return; /* until the answers are written */
    if (client->rest_len > 0) memcpy(net->input, client->rest, client->rest_len);
    net->reads++;
    ssize_t got = recv(client->fd, net->input + client->rest_len, most - client->rest_len, 0);
    if (got == 0) {
        lost(net, client, "the broker closed it");
    } else if (got < 0) {
        if (errno != EAGAIN && errno != EINTR) lost(net, client, strerror(errno));
    } else {
        net->last_packet_ns = net->now_ns;
        if (net->websocket != NULL)
            got = (ssize_t)frames_read(&client->frames, net->input + client->rest_len, (size_t)got);
        if (got < 0) {
            lost(net, client, "the WebSocket was refused or closed");
            return;
        }
        hand_up(net, client, client->rest_len + (size_t)got);
        net_touch(net, client);
    }
}

/* Sends from *begin on, and notes how far it came. */
static void send_from(load_net *net, net_client *client, const uint8_t *data, size_t *begin, size_t *end) {
    if (*begin == *end) return;
    net->writes++;
    ssize_t sent = send(client->fd, data + *begin, *end - *begin, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        lost(net, client, strerror(errno));
        return;
    }
    if (sent > 0) *begin += (size_t)sent;
    if (*begin == *end) *begin = *end = 0;
}

static void transmit(load_net *net, net_client *client) {
    if (net->websocket == NULL) {
        send_from(net, client, client->out, &client->out_begin, &client->out_end);
        return;
    }
    if (client->framed_end == 0 && client->frames.is_open) {
        const uint8_t *packets = client->out + client->out_begin;
        client->framed_end = frames_put_packets(client->framed, packets, client->out_end - client->out_begin);
        client->out_begin = client->out_end = 0;
    }
    send_from(net, client, client->framed, &client->framed_begin, &client->framed_end);
}

/* Those that have more than fits, and could write all, stay in the list. */
static void transmit_all(load_net *net) {
    size_t kept = 0;
    for (size_t i = 0; i < net->dirty_count; i++) {
        net_client *client = net->dirty[i];
        client->dirty = false;
        if (!is_open(net, client)) continue;
        bool more = net->on_writable(net->context, client);
        transmit(net, client);
        if (!is_open(net, client)) continue;
        follow(net, client, EPOLL_CTL_MOD);
        if (!more || has_unsent(client)) continue;
        client->dirty = true;
        net->dirty[kept++] = client;
    }
    net->dirty_count = kept;
}

static int wait_for_events(load_net *net, struct epoll_event *events, uint64_t until_ns) {
    uint64_t now = load_now_ns();
    uint64_t wait_ns = net->dirty_count > 0 || until_ns <= now ? 0 : until_ns - now;
    struct timespec timeout = {.tv_sec = (time_t)(wait_ns / NS_PER_S), .tv_nsec = (long)(wait_ns % NS_PER_S)};
    int most = net->gather_ns > 0 ? EVENTS : LIVE_EVENTS;
    int count = epoll_pwait2(net->epoll_fd, events, most, &timeout, NULL);
    if (count < 0 && errno != EINTR) net_fail(net, "epoll: %s", strerror(errno));
    return count;
}

static void gather(load_net *net) {
    uint64_t next_ns = net->last_step_ns + net->gather_ns;
    struct timespec next = {.tv_sec = (time_t)(next_ns / NS_PER_S), .tv_nsec = (long)(next_ns % NS_PER_S)};
    if (net->gather_ns > 0 && next_ns > load_now_ns())
        (void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
}

bool net_step(load_net *net, uint64_t until_ns) {
    struct epoll_event events[EVENTS];
    gather(net);
    int count = wait_for_events(net, events, until_ns);
    for (int i = 0; i < count; i++) {
        net_client *client = events[i].data.ptr;
        if (!is_open(net, client)) continue;
        net->now_ns = load_now_ns();
        if (events[i].events & ~(uint32_t)EPOLLOUT) receive(net, client);
        if (events[i].events & EPOLLOUT) net_touch(net, client);
    }
    net->now_ns = net->last_step_ns = load_now_ns();
    transmit_all(net);
    return !net->failed;
}
