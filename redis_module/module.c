/* module.c - loads the module: finds the API, starts every part, says what is on. */
#include <string.h>

#include "server/replication.h"
#include "server/slots.h"
#include "server/state.h"
#include "server/timers.h"
#include "server/turns.h"
#include "index/channels.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/retained.h"
#include "index/session_hash.h"
#include "index/sessions.h"
#include "queue/kind.h"
#include "queue/queue.h"
#include "queue/totals.h"
#include "history/kind.h"
#include "history/live.h"
#include "history/ticks.h"
#include "routing/fan_out.h"
#include "routing/push_budget.h"
#include "routing/retained_cursors.h"
#include "routing/share_replay_keys.h"
#include "session/life.h"
#include "session/owner.h"
#include "queue/sweep.h"
#include "channel/drain.h"
#include "channel/handoff.h"
#include "channel/intercept.h"
#include "channel/pattern_walk.h"
#include "channel/store.h"
#include "commands.h"
#include "config.h"
#include "due.h"
#include "info.h"

#define OLDEST_SERVER 0x070000

static int refuse(server_ctx *ctx, const char *why, const char *what) {
    if (sv.Log != NULL) sv.Log(ctx, "warning", "holdmq is not loaded: %s%s", why, what);
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
    can.set_many = knows_command(ctx, "MSETEX");
}

/* Valkey from 9.0 on moves slots only if every module says that it can cope: all that the indexes know comes from
 * keys and their notifications, so they follow. */
static void set_options(server_ctx *ctx) {
    /* index_notify signals what really changed; a replica may serve while it loads (index/events.c). */
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

static bool shutting_down;

static void on_shutdown(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)event, (void)sub, (void)data;
    shutting_down = true;
    timers_stop(ctx);
    turns_wanted();
}

static void on_swap(void) {
    drain_forget_all();
    queue_forget_hints();
}

/* What the index is made of, in the order in which a key is looked at and a check tells. */
static const index_kind *const kinds[] = {
    &index_filters_kind,  &index_sessions_kind, &session_facts_kind, &retained_cursors_kind,
    &fan_outs_kind,       &history_kind,        &share_replays_kind, &owners_kind,
    &index_retained_kind, &index_channels_kind, &queues_kind,        NULL,
};

/* The end of a turn of the event loop, before replies are written. */
static void on_end_of_turn(server_ctx *ctx) {
    if (!shutting_down) timers_resume(ctx);
    index_before_sleep();
    if (handoff_pending()) handoff_before_sleep();
    push_budget_before_sleep();
    drain_before_sleep();
    retained_cursors_before_sleep();
    fan_out_before_sleep();
    walk_before_sleep();
    store_before_sleep();
    slots_before_sleep();
    sweep_before_sleep();
    history_before_sleep();
    history_ticks_before_sleep(ctx);
}

/* Is there something to do at the end of later turns?  (On a node of a cluster there always may be.) */
static bool has_more(void) {
    return can.cluster || handoff_pending() || drain_any() || walk_any() || retained_cursors_any_due() ||
           fan_out_any_due() || sweep_any() || store_any_claimed() || (timers_are_stopped() && !shutting_down);
}

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
    if (sv.GetServerVersion() < OLDEST_SERVER) return refuse(ctx, "server 7.0 or later expected", "");
    find_capabilities(ctx);
    set_options(ctx);
    detached = sv.GetDetachedThreadSafeContext(ctx);
    const char *wrong = commands_start(ctx);
    if (wrong != NULL) return refuse(ctx, "the server refused the command ", wrong);
    wrong = config_start(ctx, argv, argc);
    if (wrong != NULL) return refuse(ctx, wrong, "");
    index_start(ctx, holds_keys(ctx), kinds);
    index_watch((index_watcher){queue_message_gone, sweep_note, on_swap, queue_forget_hints, session_notify_dropped});
    push_start();
    store_watch_trims(drain_trimmed);
    replication_start(ctx);
    handoff_start(ctx);
    slots_start(ctx);
    due_start(ctx);
    queue_totals_start(ctx);
    turns_start(on_end_of_turn, has_more);
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_SHUTDOWN, 1}, on_shutdown);
    info_start(ctx);
    if (!intercept_start(ctx)) return refuse(ctx, "the server refused the command filter", "");
    log_mode(ctx);
    return SERVER_OK;
}

/* The server would call into unmapped code from the filter, notifications and events.  A MODULE UNLOAD gets here only
 * because channel/intercept.c stops the timers before it: else the server names them as the reason, and they never end. */
__attribute__((visibility("default"))) int RedisModule_OnUnload(server_ctx *ctx);

int RedisModule_OnUnload(server_ctx *ctx) {
    if (shutting_down) return SERVER_OK; /* some servers unload their modules on the way out */
    sv.Log(ctx, "warning",
           "holdmq cannot be unloaded: set holdmq.intercept to no to switch it off, or restart the server without it");
    return SERVER_ERR;
}
