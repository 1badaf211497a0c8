/* push.h - sends messages: to one client or to all.
 *
 * To one client by the server's internal functions (server/internals.h).  Where they are missing, or the client's id is not known
 * (7.0), a receiver without id stands for "the only subscriber", who is reached by a publish. */
#ifndef HMQ_PUSH_H
#define HMQ_PUSH_H

#include "server/state.h"

typedef enum push_kind { PUSH_CHANNEL, PUSH_PATTERN, PUSH_SHARD } push_kind;

typedef struct receiver {
    uint64_t client; /* 0: whoever is the only subscriber */
    push_kind kind;
    server_string *pattern; /* of PUSH_PATTERN */
} receiver;

/* After the capabilities are known. */
void push_start(void);

/* To all receivers here and, by the server's own PUBLISH, to those of the replicas.  Returns the receivers here. */
int push_to_all(server_ctx *ctx, server_string *channel, server_string *message, bool sharded);

/* The same by the server's own PUBLISH in any case: what MONITOR and INFO commandstats show is what they would show without
 * the module. */
int push_as_stock(server_ctx *ctx, server_string *channel, server_string *message, bool sharded);

/* Channels and patterns the client is subscribed to; -1 if it is gone. */
long push_subscriptions(uint64_t client);

/* Writes a message of the channel, as message, pmessage or smessage. */
void push(const receiver *to, server_string *channel, server_string *message);

/* Bytes that may be written to it now, so that no output buffer limit cuts it off.  *idle: nothing waits to be written, so
 * that a message may go out that alone is larger. */
size_t push_room(const receiver *to, bool *idle);

/* What the server tells of a client's output: bytes that its buffer holds, and all that was ever written to it (0: the
 * server does not tell).  False if the client is gone, or the server tells neither. */
bool push_output(uint64_t client, size_t *held, unsigned long long *written);

/* The limits are read once a second at most; each time in a turn of the event loop in which they may be changed. */
void push_begin_turn(void);
void push_limits_may_change(void);

/* Is the client about to be closed?  Nothing that leaves the list may be written to it then. */
bool push_is_closing(uint64_t client);

/* Subscribers of a (shard) channel on this server; patterns known to it.  -1 if the server does not tell. */
long push_channel_subscribers(push_kind kind, server_string *channel);
void push_count_subscribers(push_kind kind, server_string **channels, size_t count, long *counts);
long push_pattern_count(void);

#endif
