/* replication.c - knows whether a file or a replica takes stock commands. */
#include "server/replication.h"

#include <string.h>

#include "server/awake.h"
#include "server/data_set.h"
#include "server/listening.h"
#include "server/timers.h"
#include "server/turns.h"

/* A replica is connected, synchronizing, or may come back for what is in the backlog. */
static bool replicas = true;
/* SYNC and PSYNC are renamed on this server, so a replica may always connect unseen. */
static bool may_come_unseen;
/* Checks that must still find no replica before the last SYNC counts as refused.  (A SYNC from before the module was loaded
 * may be delayed, too.) */
#define LOOKS_AFTER_SYNC 3
static unsigned looks_left = LOOKS_AFTER_SYNC;
static bool is_primary;
static bool may_load; /* as a primary, later than at its start */
static bool may_change_role; /* as a primary, by a command that was seen or is not seen */
static unsigned long long doubts;
static unsigned promotions;

static void (*tell_role)(bool is_replica);

/* The first check may be in the turn in which a delayed SYNC is released but has not run yet. */
#define LOOK_MS 100
static void look_again(server_ctx *ctx, void *data);
static module_timer next_look = {.fire = look_again};

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
    is_primary = is_field(info, "role", "master");
    replicas = !(is_primary && is_field(info, "connected_slaves", "0") && is_field(info, "repl_backlog_active", "0"));
    sv.FreeServerInfo(ctx, info);
}

/* Nothing but SYNC and a new role brings replicas to a server without any. */
static bool needs_look(void) {
    return replicas || looks_left > 0 || may_come_unseen;
}

static void on_new_role(server_ctx *ctx, server_event event, uint64_t sub, void *data);
static event_listener roles = {.event = SERVER_EVENT_ROLE_CHANGED, .handler = on_new_role};

static void look_again(server_ctx *ctx, void *data) {
    (void)data;
    look(ctx);
    if (is_primary && !may_load && !can.has_other_modules) data_set_may_change_unseen(false);
    if (is_primary) tell_role(false);
    if (is_primary && !may_change_role) listening_set(&roles, false);
    if (looks_left > 0 && !sv.AvoidReplicaTraffic()) looks_left--; /* while the server is paused, SYNC may be delayed */
    if (needs_look()) timers_arm(&next_look, LOOK_MS);
}

void replication_before_sleep(void) {
    if (needs_look() && !next_look.armed) timers_arm(&next_look, LOOK_MS);
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
    turns_request();
}

static void on_new_role(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    promotions += sub == SERVER_ROLE_NOW_MASTER;
    on_doubt(ctx, event, sub, data);
    if (sub == SERVER_ROLE_NOW_MASTER) return;
    data_set_may_change_unseen(true);
    tell_role(true);
}

/* No SYNC has been seen before. */
static void follow(void) {
    static event_listener replica_changes = {.event = SERVER_EVENT_REPLICA_CHANGE, .handler = on_replica_change};
    if (may_come_unseen) listening_set(&replica_changes, true);
    listening_set(&roles, true);
    data_set_may_change_unseen(true);
    if (!(sv.GetContextFlags(detached) & SERVER_CTX_MASTER)) tell_role(true);
    replication_note_replica();
}

void replication_start(server_ctx *ctx, void (*on_role)(bool is_replica)) {
    tell_role = on_role;
    may_come_unseen = !is_known(ctx, "SYNC") || !is_known(ctx, "PSYNC");
    may_load = can.cluster || !can.debug_command || !can.module_command;
    may_change_role = can.cluster || !can.role_commands;
    data_set_on_load(on_doubt);
    awake_add_follower(follow);
}

void replication_note_replica(void) {
    replicas = true;
    looks_left = LOOKS_AFTER_SYNC;
    turns_request();
}

void replication_note_load(void) {
    may_load = true;
    data_set_may_change_unseen(true);
}

void replication_note_role_command(void) {
    may_change_role = true;
    listening_set(&roles, true);
}

unsigned long long replication_change_count(void) {
    return doubts;
}

unsigned replication_promotions(void) {
    return promotions;
}

bool replication_has_replicas(void) {
    return replicas || looks_left > 0;
}

bool replication_is_needed_with(int context_flags) {
    return replicas || looks_left > 0 || may_come_unseen || can.cluster || (context_flags & SERVER_CTX_AOF) != 0;
}

bool replication_is_needed(server_ctx *ctx) {
    return replication_is_needed_with(0) || (sv.GetContextFlags(ctx) & SERVER_CTX_AOF) != 0;
}
