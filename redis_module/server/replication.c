/* replication.c - knows whether a file or a replica takes stock commands. */
#include "server/replication.h"

#include <string.h>

/* A replica is connected, synchronizing, or may come back for what is in the backlog. */
static bool replicas = true;
/* SYNC and PSYNC are renamed on this server, so a replica may always connect unseen. */
static bool may_come_unseen;
/* Looks that must still find no replica before the last SYNC counts as refused. */
static unsigned looks_left;
static unsigned long long doubts;
static unsigned promotions;

/* The first look may come in the turn in which a delayed SYNC is released but has not run yet. */
#define LOOKS_AFTER_SYNC 3

static bool is_known(server_ctx *ctx, const char *command) {
    server_reply *reply = sv.Call(ctx, "COMMAND", "cc", "INFO", command);
    server_reply *entry = reply == NULL ? NULL : sv.CallReplyArrayElement(reply, 0);
    bool known = entry != NULL && sv.CallReplyType(entry) == SERVER_REPLY_ARRAY;
    if (reply != NULL) sv.FreeCallReply(reply);
    return known;
}

static bool is_field(server_info_data *info, const char *field, const char *value) {
    const char *found = sv.ServerInfoGetFieldC(info, field);
    return found != NULL && strcmp(found, value) == 0;
}

/* Through the API, because a command would appear in MONITOR, SLOWLOG and the statistics. */
static void look(server_ctx *ctx) {
    server_info_data *info = sv.GetServerInfo(ctx, "replication");
    replicas = !(is_field(info, "role", "master") && is_field(info, "connected_slaves", "0") &&
                 is_field(info, "repl_backlog_active", "0"));
    sv.FreeServerInfo(ctx, info);
}

static void on_cron(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)event, (void)sub, (void)data;
    look(ctx);
    if (looks_left > 0 && !sv.AvoidReplicaTraffic()) looks_left--; /* while the server is paused, SYNC may be delayed */
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
    looks_left = LOOKS_AFTER_SYNC;
}

unsigned long long replication_doubts(void) {
    return doubts;
}

unsigned replication_promotions(void) {
    return promotions;
}

bool replication_has_replicas(void) {
    return replicas || looks_left > 0;
}

bool replication_taken_with(int context_flags) {
    return replicas || looks_left > 0 || may_come_unseen || can.cluster || (context_flags & SERVER_CTX_AOF) != 0;
}

bool replication_taken(server_ctx *ctx) {
    return replication_taken_with(0) || (sv.GetContextFlags(ctx) & SERVER_CTX_AOF) != 0;
}
