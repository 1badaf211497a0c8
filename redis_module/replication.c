/* replication.c - knows whether anybody takes stock commands. */
#include "replication.h"

#include <string.h>

/* A replica is connected, synchronizing, or may come back for what is in the backlog. */
static bool replicas = true;
/* A replica asked to synchronize, or could without being seen: what is said of replicas later may be late. */
static bool may_come_unseen;
static unsigned long long doubts;
static unsigned promotions;

static bool is_known(server_ctx *ctx, const char *command) {
    server_reply *reply = sv.Call(ctx, "COMMAND", "cc", "INFO", command);
    server_reply *entry = reply == NULL ? NULL : sv.CallReplyArrayElement(reply, 0);
    bool known = entry != NULL && sv.CallReplyType(entry) == SERVER_REPLY_ARRAY;
    if (reply != NULL) sv.FreeCallReply(reply);
    return known;
}

static void look(server_ctx *ctx) {
    server_reply *info = sv.Call(ctx, "INFO", "c", "replication");
    size_t len = 0;
    const char *text = info == NULL ? NULL : sv.CallReplyStringPtr(info, &len);
    bool none = text != NULL && memmem(text, len, "role:master", 11) != NULL &&
                memmem(text, len, "connected_slaves:0\r", 19) != NULL &&
                memmem(text, len, "repl_backlog_active:0", 21) != NULL;
    replicas = !none;
    if (info != NULL) sv.FreeCallReply(info);
}

static void on_cron(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)event, (void)sub, (void)data;
    look(ctx);
}

static void on_replica_change(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)event, (void)sub, (void)data;
    look(ctx);
}

/* The role has changed, or something was loaded. */
static void on_doubt(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)sub, (void)data;
    replicas = true;
    doubts++;
}

static void on_new_role(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    promotions += sub == SERVER_ROLE_NOW_MASTER;
    on_doubt(ctx, event, sub, data);
}

void replication_start(server_ctx *ctx) {
    may_come_unseen = !is_known(ctx, "SYNC") || !is_known(ctx, "PSYNC");
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_CRON_LOOP, 1}, on_cron);
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_REPLICA_CHANGE, 1}, on_replica_change);
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_ROLE_CHANGED, 1}, on_new_role);
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_LOADING, 1}, on_doubt);
}

void replication_replica_comes(void) {
    replicas = true;
    may_come_unseen = true;
}

unsigned long long replication_doubts(void) {
    return doubts;
}

unsigned replication_promotions(void) {
    return promotions;
}

bool replication_has_replicas(void) {
    return replicas;
}

bool replication_taken_with(int context_flags) {
    return replicas || may_come_unseen || can.cluster || (context_flags & SERVER_CTX_AOF) != 0;
}

bool replication_taken(server_ctx *ctx) {
    return replication_taken_with(0) || (sv.GetContextFlags(ctx) & SERVER_CTX_AOF) != 0;
}
