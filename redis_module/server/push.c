/* push.c - sends messages to one client or to all. */
#include "server/push.h"

#include <stdlib.h>
#include <string.h>

#include "server/internals.h"
#include "server/replication.h"
#include "server/turns.h"

/* The most that is written to a client ahead of its reading, whatever its limits allow. */
#define MOST_AHEAD (1u << 20)
/* The part of the limits that is used, because replies take more memory than their bytes. */
#define SOFT_PART 4
#define HARD_PART 4
#define LIMITS_REST_MS 1000 /* maximum age: changes without CONFIG are not seen */

static server_string *message_kind, *shard_message_kind;

/* If the module replicated the publish, it would count as a change of the data set. */
int push_to_all(server_ctx *ctx, server_string *channel, server_string *message, bool sharded) {
    if (!replication_has_replicas() || can.cluster) {
        return sharded ? sv.PublishMessageShard(ctx, channel, message) : sv.PublishMessage(ctx, channel, message);
    }
    server_reply *reply = sv.Call(ctx, sharded ? "SPUBLISH" : "PUBLISH", "!ss", channel, message);
    int receivers = reply == NULL ? 0 : (int)sv.CallReplyInteger(reply);
    if (reply != NULL) sv.FreeCallReply(reply);
    return receivers;
}

int push_to_node(server_ctx *ctx, server_string *channel, server_string *message) {
    int heard;
    if (can.cluster && internals_publish_here(channel, message, &heard)) return heard;
    return sv.PublishMessage(ctx, channel, message);
}

int push_by_server_command(server_ctx *ctx, server_string *channel, server_string *message, bool sharded) {
    server_reply *reply = sv.Call(ctx, sharded ? "SPUBLISH" : "PUBLISH", "!ss", channel, message);
    int receivers = reply == NULL ? 0 : (int)sv.CallReplyInteger(reply);
    if (reply != NULL) sv.FreeCallReply(reply);
    return receivers;
}

void push_start(void) {
    internals_start();
    message_kind = sv.CreateString(NULL, "$7\r\nmessage\r\n", 13);
    shard_message_kind = sv.CreateString(NULL, "$8\r\nsmessage\r\n", 14);
}

long push_subscriptions(uint64_t client) {
    server_client_info info = {.version = 1};
    if (sv.GetClientInfoById(&info, client) != SERVER_OK) return -1;
    if (!(info.flags & SERVER_CLIENT_PUBSUB)) return 0; /* the server's function is for subscribers only */
    server_client *c = internals_client(client);
    return c == NULL ? -1 : internals_subscriptions(c);
}

void push(const receiver *to, server_string *channel, server_string *message) {
    counters.handed_over++;
    if (to->client == 0) {
        sv.PublishMessage(detached, channel, message);
        return;
    }
    server_client *client = internals_client(to->client);
    if (client == NULL) return;
    if (to->kind == PUSH_PATTERN)
        internals_push_pattern(client, to->pattern, channel, message);
    else
        internals_push(client, channel, message, to->kind == PUSH_SHARD ? shard_message_kind : message_kind);
}

/* "... pubsub 33554432 8388608 60": the part of the limits that may be used. */
static size_t read_allowance(void) {
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

static size_t allowed_bytes;
static long long allowed_ms; /* when it was read; 0: read it before the next use */
static bool limits_may_change; /* in this turn of the event loop */

static size_t allowance(void) {
    long long now_ms = sv.Milliseconds();
    if (!limits_may_change && allowed_ms != 0 && now_ms - allowed_ms < LIMITS_REST_MS) return allowed_bytes;
    allowed_ms = now_ms;
    return allowed_bytes = read_allowance();
}

void push_limits_may_change(void) {
    limits_may_change = true;
    turns_request();
}

void push_begin_turn(void) {
    if (limits_may_change) allowed_ms = 0;
    limits_may_change = false;
}

/* The largest "omem=" of all subscribers, because it is not known which of them is the receiver. */
static size_t largest_output(void) {
    server_reply *reply = sv.Call(detached, "CLIENT", "ccc", "LIST", "TYPE", "pubsub");
    size_t len = 0, largest = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len);
    for (const char *at = text; at != NULL && (at = memmem(at, len - (size_t)(at - text), " omem=", 6)) != NULL;
         at += 6) {
        size_t bytes = strtoull(at + 6, NULL, 10); /* the text continues after the number */
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
        server_client *client = internals_client(to->client);
        if (client == NULL) return 0;
        used = internals_output_bytes(client);
    }
    *idle = used == 0;
    return used < allowed ? allowed - used : 0;
}

/* "... tot-net-out=4004975 ...": servers that report it may keep strings outside of their buffer count. */
static unsigned long long written_to(uint64_t client) {
    static bool is_unreported;
    static const char name[] = " tot-net-out=";
    if (is_unreported) return 0;
    server_reply *reply = sv.Call(detached, "CLIENT", "ccl", "LIST", "ID", (long long)client);
    size_t len = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len);
    const char *found = text == NULL ? NULL : memmem(text, len, name, sizeof name - 1);
    unsigned long long written = found == NULL ? 0 : strtoull(found + sizeof name - 1, NULL, 10);
    is_unreported = text != NULL && len > 0 && found == NULL;
    if (reply != NULL) sv.FreeCallReply(reply);
    return written;
}

bool push_output(uint64_t client, size_t *held, unsigned long long *written) {
    if (!internals_output_of(client, held)) return false;
    *written = *held == 0 ? 0 : written_to(client);
    return true;
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

void push_count_subscribers(push_kind kind, server_string **channels, size_t count, long *counts) {
    if (internals_nobody_subscribes(kind == PUSH_SHARD)) {
        memset(counts, 0, count * sizeof *counts);
        return;
    }
    server_reply *reply =
        sv.Call(detached, "PUBSUB", "cv", kind == PUSH_SHARD ? "SHARDNUMSUB" : "NUMSUB", channels, count);
    bool is_known = reply != NULL && sv.CallReplyLength(reply) == 2 * count;
    for (size_t i = 0; i < count; i++)
        counts[i] = is_known ? (long)sv.CallReplyInteger(sv.CallReplyArrayElement(reply, 2 * i + 1)) : -1;
    if (reply != NULL) sv.FreeCallReply(reply);
}

long push_channel_subscribers(push_kind kind, server_string *channel) {
    long count;
    push_count_subscribers(kind, &channel, 1, &count);
    return count;
}

/* In case the server's function is not known. */
static bool has_none(server_info_data *stats, const char *field) {
    const char *text = sv.ServerInfoGetFieldC(stats, field);
    return text == NULL || strtol(text, NULL, 10) == 0;
}

bool push_nobody_subscribes(void) {
    if (internals_nobody_subscribes(false) && internals_nobody_subscribes(true)) return true;
    server_info_data *info = sv.GetServerInfo(detached, "stats");
    bool nobody = has_none(info, "pubsub_channels") && has_none(info, "pubsub_patterns") &&
                  has_none(info, "pubsubshard_channels");
    sv.FreeServerInfo(detached, info);
    return nobody;
}

/* Not by PUBSUB NUMPAT, which MONITOR would show. */
long push_pattern_count(void) {
    if (internals_nobody_subscribes(false)) return 0;
    server_info_data *info = sv.GetServerInfo(detached, "stats");
    const char *text = sv.ServerInfoGetFieldC(info, "pubsub_patterns");
    long count = text == NULL ? -1 : strtol(text, NULL, 10);
    sv.FreeServerInfo(detached, info);
    return count;
}
