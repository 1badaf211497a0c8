/* module.c - loads the module: finds the API, starts every part, logs what is on.  Refuses to be unloaded. */
#include <errno.h>
#include <string.h>

#include "server/awake.h"
#include "server/listening.h"
#include "server/push.h"
#include "server/replication.h"
#include "server/resources.h"
#include "server/slots.h"
#include "server/state.h"
#include "server/timers.h"
#include "server/unloading.h"
#include "index/channels.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/retained.h"
#include "index/session_hash.h"
#include "index/sessions.h"
#include "cluster/life.h"
#include "cluster/own.h"
#include "queue/kind.h"
#include "queue/queue.h"
#include "queue/totals.h"
#include "history/kind.h"
#include "history/live.h"
#include "routing/fan_out.h"
#include "routing/retained_cursors.h"
#include "routing/share_replay_keys.h"
#include "session/life.h"
#include "session/outbox.h"
#include "session/owner.h"
#include "queue/sweep.h"
#include "channel/drain.h"
#include "channel/handoff.h"
#include "channel/intercept.h"
#include "channel/store.h"
#include "commands.h"
#include "config.h"
#include "due.h"
#include "end_of_turn.h"
#include "info.h"

#define OLDEST_SERVER 0x070000

/* Redis 7.0 then forgets the module's commands and settings, but would call what listens to keys and events. */
static int refuse(server_ctx *ctx, const char *why, const char *what) {
    if (sv.Log != NULL) sv.Log(ctx, "warning", "holdmq is not loaded: %s%s", why, what);
    if (detached != NULL) sv.FreeThreadSafeContext(detached);
    return SERVER_ERR;
}

static bool knows_command(server_ctx *ctx, const char *name) {
    server_reply *reply = sv.Call(ctx, "COMMAND", "cc", "INFO", name);
    server_reply *first = reply == NULL ? NULL : sv.CallReplyArrayElement(reply, 0);
    bool knows = first != NULL && sv.CallReplyType(first) == SERVER_REPLY_ARRAY;
    if (reply != NULL) sv.FreeCallReply(reply);
    return knows;
}

static void find_capabilities(server_ctx *ctx) {
    can.valkey = server_is_valkey();
    can.version = sv.GetServerVersion();
    can.filter_client = sv.CommandFilterGetClientId != NULL;
    can.post_jobs = sv.AddPostNotificationJob != NULL;
    can.cluster = (sv.GetContextFlags(ctx) & SERVER_CTX_CLUSTER) != 0;
    can.module_command = knows_command(ctx, "MODULE");
    can.debug_command = knows_command(ctx, "DEBUG");
    can.flush_commands = knows_command(ctx, "FLUSHALL") && knows_command(ctx, "FLUSHDB");
    can.swap_command = knows_command(ctx, "SWAPDB");
    can.role_commands =
        knows_command(ctx, "REPLICAOF") && knows_command(ctx, "SLAVEOF") && knows_command(ctx, "FAILOVER");
    can.set_many = knows_command(ctx, "MSETEX");
}

/* From 9.0 on, Valkey moves slots only if every module declares that it copes.  The indexes do: all that they know comes
 * from keys and their notifications. */
static void set_options(server_ctx *ctx) {
    /* index_notify signals real changes only; a replica may serve while it loads (index/events.c). */
    int options = SERVER_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED | SERVER_OPTION_HANDLE_REPL_ASYNC_LOAD;
    if (can.valkey) options |= SERVER_OPTION_VALKEY_ATOMIC_SLOT_MIGRATION;
    sv.SetModuleOptions(ctx, options);
}

static bool holds_keys(server_ctx *ctx) {
    server_reply *reply = sv.Call(ctx, "INFO", "c", "keyspace");
    size_t len = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len);
    bool found = text != NULL && memmem(text, len, "keys=", 5) != NULL;
    if (reply != NULL) sv.FreeCallReply(reply);
    return found;
}

static void on_swap(void) {
    drain_forget_all();
    queue_forget_hints();
}

/* What the index is made of, in the order in which a key is looked at, and in which HOLDMQ.CHECK reports. */
static const index_kind *const kinds[] = {
    &own_routes_kind,       &index_filters_kind,
    &index_sessions_kind,   &session_facts_kind,
    &retained_cursors_kind, &fan_outs_kind,
    &history_kind,          &share_replays_kind,
    &owners_kind,           &index_retained_kind,
    &index_channels_kind,   &queues_kind,
    &outboxes_kind,         NULL,
};

static void log_mode(server_ctx *ctx) {
    sv.Log(ctx, "notice", "holdmq %d.%d.%d: interception %s, %zu policy rules, hand-off to %s, server %s",
           HMQ_MODULE_VERSION / 10000, HMQ_MODULE_VERSION / 100 % 100, HMQ_MODULE_VERSION % 100,
           settings.intercept ? "on" : "off", hmq_policy_count(settings.policy), info_handoff_mode(),
           can.valkey ? "valkey" : "redis");
    if (!can.direct_push) {
        sv.Log(ctx, "notice", "held messages reach only the first subscriber of a channel: this server %s",
               can.filter_client ? "does not export its push functions" : "is older than 7.2");
    }
}

__attribute__((visibility("default"))) int RedisModule_OnLoad(server_ctx *ctx, server_string **argv, int argc);

int RedisModule_OnLoad(server_ctx *ctx, server_string **argv, int argc) {
    const char *since = NULL;
    const char *missing = server_api_load(ctx, &since);
    if (missing != NULL) return refuse(ctx, "the server is too old: it lacks ", missing);
    if (sv.IsModuleNameBusy(HMQ_MODULE_NAME)) return SERVER_ERR;
    sv.SetModuleAttribs(ctx, HMQ_MODULE_NAME, HMQ_MODULE_VERSION, SERVER_API_VERSION);
    if (sv.GetServerVersion() < OLDEST_SERVER)
        return refuse(ctx, "the server is too old; expected version 7.0 or later", "");
    find_capabilities(ctx);
    set_options(ctx);
    detached = sv.GetDetachedThreadSafeContext(ctx);
    const char *wrong = commands_start(ctx);
    if (wrong != NULL) return refuse(ctx, "the server refused the command ", wrong);
    wrong = config_start(ctx, argv, argc);
    if (wrong != NULL) return refuse(ctx, wrong, "");
    if (!timers_start()) return refuse(ctx, "no timer file: ", strerror(errno));
    /* Nothing below may fail. */
    listening_start();
    if (can.cluster) awake_now();
    own_routes_start();
    index_start(ctx, holds_keys(ctx), kinds);
    index_watch(
        (index_watcher){queue_message_gone, sweep_note_expired, on_swap, queue_forget_hints, session_notify_dropped});
    push_start();
    store_watch_trims(drain_note_trimmed);
    replication_start(ctx, index_expect_async_load);
    handoff_start();
    slots_start(ctx);
    route_life_start();
    due_start();
    queue_totals_start();
    resources_start(ctx);
    end_of_turn_start();
    info_start(ctx);
    intercept_start();
    awake_start();
    log_mode(ctx);
    return SERVER_OK;
}

/* Unloaded code would still be called by the command filter and by what is under way.  Only a sleeping module has neither.
 * Some servers unload their modules on the way out: then nothing is called any more. */
__attribute__((visibility("default"))) int RedisModule_OnUnload(server_ctx *ctx);

int RedisModule_OnUnload(server_ctx *ctx) {
    if (is_awake && unloading_may_be_asked_for()) {
        sv.Log(
            ctx, "warning",
            "holdmq cannot be unloaded: set holdmq.intercept to no to switch it off, or restart the server without it");
        return SERVER_ERR;
    }
    timers_end();
    if (!is_awake) sv.FreeThreadSafeContext(detached);
    return SERVER_OK;
}
