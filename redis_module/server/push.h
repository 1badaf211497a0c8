/* push.h - sends messages to one client or to all.
 *
 * One client is reached by internal functions of the server (server/internals.h).  If they are missing, or the client's id
 * is not known (7.0), a receiver without an id means "the only subscriber", who is reached by a publish. */
#ifndef HMQ_PUSH_H
#define HMQ_PUSH_H

#include "server/state.h"

typedef enum push_kind { PUSH_CHANNEL, PUSH_PATTERN, PUSH_SHARD } push_kind;

typedef struct receiver {
    uint64_t client; /* 0: the only subscriber */
    push_kind kind;
    server_string *pattern; /* of PUSH_PATTERN */
} receiver;

/* After the capabilities are known. */
void push_start(void);

/* Sends to all receivers of this server and, by the server's own PUBLISH, to those of its replicas.  Returns how many this
 * server has. */
int push_to_all(server_ctx *ctx, server_string *channel, server_string *message, bool sharded);

/* Sends to all subscribers of this server, and not over the bus of its cluster, if the server has a function for that.
 * Returns how many there are. */
int push_to_node(server_ctx *ctx, server_string *channel, server_string *message);

/* The same as push_to_all, always by the server's own PUBLISH, so that MONITOR and INFO commandstats show what they would show
 * without the module. */
int push_by_server_command(server_ctx *ctx, server_string *channel, server_string *message, bool sharded);

/* Channels and patterns the client is subscribed to; -1 if it is gone. */
long push_subscriptions(uint64_t client);

/* Writes a message of the channel, as message, pmessage or smessage. */
void push(const receiver *to, server_string *channel, server_string *message);

/* Bytes that may be written to the receiver now without reaching an output buffer limit.  *idle: its buffer is empty, so
 * one larger message may be sent. */
size_t push_room(const receiver *to, bool *idle);

/* A client's output: the bytes in its buffer, and all bytes that were ever written to it (0: not known).  False if the
 * client is gone, or the server knows neither. */
bool push_output(uint64_t client, size_t *held, unsigned long long *written);

/* A turn of the event loop begins.  Output buffer limits are read once a second at most, and again after a turn in which
 * they may have changed. */
void push_begin_turn(void);
void push_limits_may_change(void);

/* Is the client about to be closed?  Then no message that is removed from the list may be written to it. */
bool push_is_closing(uint64_t client);

/* Subscribers of a (shard) channel on this server, and patterns that it knows.  -1 if that is not known. */
long push_channel_subscribers(push_kind kind, server_string *channel);
void push_count_subscribers(push_kind kind, server_string **channels, size_t count, long *counts);
long push_pattern_count(void);
/* Is no client subscribed to any channel, pattern or shard channel? */
bool push_nobody_subscribes(void);

#endif
