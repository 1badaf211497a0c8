/* push.c - sends messages to one client or to all. */
#include "push.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "replication.h"

/* What a client is given ahead at most, whatever its limits allow. */
#define MOST_AHEAD (1u << 20)
/* The part of its limits that is used: replies take more memory than their bytes. */
#define SOFT_PART 4
#define HARD_PART 4

typedef struct server_client server_client;

static struct {
    server_client *(*lookup)(uint64_t id);
    void (*message)(server_client *, server_string *channel, server_string *message, server_string *kind);
    void (*pattern_message)(server_client *, server_string *pattern, server_string *channel, server_string *message);
    int (*subscriptions)(server_client *);
    size_t (*output_bytes)(server_client *);
} internal;

static server_string *message_kind, *shard_message_kind;

/* Replicating it ourselves would count as a change of the data set. */
int push_to_all(server_ctx *ctx, server_string *channel, server_string *message, bool sharded) {
    if (!replication_has_replicas() || can.cluster) {
        return sharded ? sv.PublishMessageShard(ctx, channel, message) : sv.PublishMessage(ctx, channel, message);
    }
    server_reply *reply = sv.Call(ctx, sharded ? "SPUBLISH" : "PUBLISH", "!ss", channel, message);
    int receivers = reply == NULL ? 0 : (int)sv.CallReplyInteger(reply);
    if (reply != NULL) sv.FreeCallReply(reply);
    return receivers;
}

void push_start(void) {
    static const struct {
        const char *name;
        void *slot;
    } functions[] = {{"lookupClientByID", &internal.lookup},
                     {"addReplyPubsubMessage", &internal.message},
                     {"addReplyPubsubPatMessage", &internal.pattern_message},
                     {"clientTotalPubSubSubscriptionCount", &internal.subscriptions},
                     {"getClientOutputBufferMemoryUsage", &internal.output_bytes}};
    bool all = true;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *found = dlsym(RTLD_DEFAULT, functions[i].name);
        memcpy(functions[i].slot, &found, sizeof found);
        all = all && found != NULL;
    }
    can.direct_push = all && can.filter_client;
    message_kind = sv.CreateString(NULL, "$7\r\nmessage\r\n", 13);
    shard_message_kind = sv.CreateString(NULL, "$8\r\nsmessage\r\n", 14);
}

long push_subscriptions(uint64_t client) {
    server_client_info info = {.version = 1};
    if (sv.GetClientInfoById(&info, client) != SERVER_OK) return -1;
    if (!(info.flags & SERVER_CLIENT_PUBSUB)) return 0; /* the server's function may be asked of subscribers only */
    server_client *c = internal.lookup(client);
    return c == NULL ? -1 : internal.subscriptions(c);
}

void push(const receiver *to, server_string *channel, server_string *message) {
    counters.handed_over++;
    if (to->client == 0) {
        sv.PublishMessage(detached, channel, message);
        return;
    }
    server_client *client = internal.lookup(to->client);
    if (client == NULL) return;
    if (to->kind == PUSH_PATTERN)
        internal.pattern_message(client, to->pattern, channel, message);
    else
        internal.message(client, channel, message, to->kind == PUSH_SHARD ? shard_message_kind : message_kind);
}

/* "... pubsub 33554432 8388608 60": the part of the limits that may be used. */
static size_t allowance(void) {
    server_reply *reply = sv.Call(detached, "CONFIG", "cc", "GET", "client-output-buffer-limit");
    size_t allowed = MOST_AHEAD, len = 0;
    server_reply *value = reply == NULL ? NULL : sv.CallReplyArrayElement(reply, 1);
    const char *text = value == NULL ? NULL : sv.CallReplyStringPtr(value, &len);
    const char *found = text == NULL ? NULL : memmem(text, len, "pubsub ", 7);
    if (found != NULL) {
        char numbers[64] = {0}, *end;
        size_t rest = (size_t)(text + len - found) - 7;
        memcpy(numbers, found + 7, rest < sizeof numbers - 1 ? rest : sizeof numbers - 1);
        unsigned long long hard = strtoull(numbers, &end, 10), soft = strtoull(end, NULL, 10);
        if (hard > 0 && hard / HARD_PART < allowed) allowed = hard / HARD_PART;
        if (soft > 0 && soft / SOFT_PART < allowed) allowed = soft / SOFT_PART;
    }
    if (reply != NULL) sv.FreeCallReply(reply);
    return allowed;
}

/* The largest "omem=" among the subscribers: who among them is the receiver is not known. */
static size_t largest_output(void) {
    server_reply *reply = sv.Call(detached, "CLIENT", "ccc", "LIST", "TYPE", "pubsub");
    size_t len = 0, largest = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len);
    for (const char *at = text; at != NULL && (at = memmem(at, len - (size_t)(at - text), " omem=", 6)) != NULL;
         at += 6) {
        size_t bytes = strtoull(at + 6, NULL, 10); /* the text goes on behind the number */
        if (bytes > largest) largest = bytes;
    }
    if (reply != NULL) sv.FreeCallReply(reply);
    return largest;
}

size_t push_room(const receiver *to, bool *idle) {
    size_t used, allowed = allowance();
    *idle = false;
    if (to->client == 0) {
        used = largest_output();
    } else {
        server_client *client = internal.lookup(to->client);
        if (client == NULL) return 0;
        used = internal.output_bytes(client);
    }
    *idle = used == 0;
    return used < allowed ? allowed - used : 0;
}

bool push_is_closing(uint64_t client) {
    server_reply *reply = sv.Call(detached, "CLIENT", "ccl", "LIST", "ID", (long long)client);
    size_t len = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len);
    const char *flags = text == NULL ? NULL : memmem(text, len, " flags=", 7);
    const char *end = flags == NULL ? NULL : memchr(flags + 1, ' ', len - (size_t)(flags + 1 - text));
    /* c: after its replies, A: as soon as possible */
    bool closing = end == NULL || memchr(flags + 7, 'c', (size_t)(end - flags - 7)) != NULL ||
                   memchr(flags + 7, 'A', (size_t)(end - flags - 7)) != NULL;
    if (reply != NULL) sv.FreeCallReply(reply);
    return closing;
}

long push_channel_subscribers(push_kind kind, server_string *channel) {
    server_reply *reply = sv.Call(detached, "PUBSUB", "cs", kind == PUSH_SHARD ? "SHARDNUMSUB" : "NUMSUB", channel);
    long count = -1;
    if (reply != NULL && sv.CallReplyLength(reply) == 2)
        count = (long)sv.CallReplyInteger(sv.CallReplyArrayElement(reply, 1));
    if (reply != NULL) sv.FreeCallReply(reply);
    return count;
}

long push_pattern_count(void) {
    server_reply *reply = sv.Call(detached, "PUBSUB", "c", "NUMPAT");
    long count = reply == NULL ? -1 : (long)sv.CallReplyInteger(reply);
    if (reply != NULL) sv.FreeCallReply(reply);
    return count;
}
