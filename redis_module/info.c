/* info.c - INFO holdmq: what is on, and the counters. */
#include "info.h"

#include "server/listening.h"
#include "server/resources.h"
#include "index/index.h"
#include "index/sessions.h"
#include "queue/totals.h"
#include "routing/fan_out_pending.h"
#include "channel/dryrun.h"

/* Over all databases. */
typedef struct index_totals {
    size_t sessions, away, filters, trie_nodes, trie_bytes, retained, held, stale,
        fan_outs; /* away: opened, not connected */
} index_totals;

static index_totals count_all(void) {
    index_totals totals = {0};
    for (int db = 0; db < index_databases(); db++) {
        const index_t *index = index_peek(db);
        if (index == NULL) continue;
        totals.sessions += sv.DictSize(index->sessions);
        totals.away += session_index_count(index->opened) - session_index_connected(index->opened);
        totals.filters += hmq_trie_pairs(index->filters);
        totals.trie_nodes += hmq_trie_nodes(index->filters);
        totals.trie_bytes += hmq_trie_bytes(index->filters);
        totals.retained += sv.DictSize(index->retained_keys);
        totals.held += sv.DictSize(index->held);
        totals.stale += sv.DictSize(index->stale);
        totals.fan_outs += fan_out_count(index);
    }
    return totals;
}

const char *info_handoff_mode(void) {
    if (!settings.intercept) return "off";
    return can.direct_push ? "every-subscriber" : "first-subscriber";
}

static void add_mode(server_info_ctx *info) {
    sv.InfoAddSection(info, "mode");
    sv.InfoAddFieldULongLong(info, "module_version", HMQ_MODULE_VERSION);
    sv.InfoAddFieldCString(info, "server_family", can.valkey ? "valkey" : "redis");
    sv.InfoAddFieldCString(info, "intercept", settings.intercept ? "yes" : "no");
    sv.InfoAddFieldCString(info, "handoff", info_handoff_mode());
    sv.InfoAddFieldCString(info, "client_in_filter", can.filter_client ? "yes" : "no");
    sv.InfoAddFieldCString(info, "post_command_jobs", can.post_jobs ? "yes" : "no");
    sv.InfoAddFieldCString(info, "direct_push", can.direct_push ? "yes" : "no");
    sv.InfoAddFieldCString(info, "dry_run", dryrun_is_active() ? "yes" : "no");
    sv.InfoAddFieldULongLong(info, "policy_rules", hmq_policy_count(settings.policy));
    sv.InfoAddFieldULongLong(info, "server_events", listening_count());
    sv.InfoAddFieldULongLong(info, "outbox_limit_bytes", (unsigned long long)settings.outbox_bytes);
}

static void add_counters(server_info_ctx *info) {
    sv.InfoAddSection(info, "stats");
#define FIELD(name) sv.InfoAddFieldULongLong(info, #name, counters.name)
    FIELD(channel_published);
    FIELD(channel_held);
    FIELD(channel_trimmed);
    FIELD(channel_not_held_wrongtype);
    FIELD(channel_not_held_denied);
    FIELD(channel_superseded);
    FIELD(channel_stepped_aside);
    FIELD(turns_heard);
    FIELD(handed_over);
    FIELD(handoffs_cancelled);
    FIELD(topic_published);
    FIELD(fan_outs);
    FIELD(fan_outs_delayed);
    FIELD(fan_outs_refused);
    FIELD(topic_stored);
    FIELD(topic_pushed);
    FIELD(pushed_headers);
    FIELD(topic_refused);
    FIELD(qos0_queued);
    FIELD(qos0_dropped);
    FIELD(session_trimmed);
    FIELD(queue_references_searched);
    FIELD(queue_full_refused);
    FIELD(queue_full_delayed);
    FIELD(sessions_refused);
    FIELD(retained_refused);
    FIELD(user_sessions_refused);
    FIELD(user_retained_refused);
    FIELD(user_bytes_full);
    FIELD(queue_bytes_full);
    FIELD(disk_refused);
    FIELD(session_expired);
    FIELD(session_acked);
    FIELD(fenced);
    FIELD(identities_refused);
    FIELD(wills_published);
    FIELD(shared_delivered);
    FIELD(shared_queued);
    FIELD(shared_redistributed);
    FIELD(owners_lost);
    FIELD(sessions_lost);
    FIELD(history_appended);
    FIELD(history_refused);
    FIELD(history_learned);
    FIELD(history_switched);
    FIELD(replayed);
    FIELD(replays_missed);
    FIELD(replays_ended);
    FIELD(history_trimmed);
    FIELD(history_dropped);
    FIELD(history_holds_lost);
#undef FIELD
}

static void add_index(server_info_ctx *info) {
    index_totals totals = count_all();
    sv.InfoAddSection(info, "index");
    sv.InfoAddFieldULongLong(info, "sessions_subscribed", totals.sessions);
    sv.InfoAddFieldULongLong(info, "sessions_away", totals.away);
    sv.InfoAddFieldULongLong(info, "filters", totals.filters);
    sv.InfoAddFieldULongLong(info, "trie_nodes", totals.trie_nodes);
    sv.InfoAddFieldULongLong(info, "trie_bytes", totals.trie_bytes);
    sv.InfoAddFieldULongLong(info, "retained_topics", totals.retained);
    sv.InfoAddFieldULongLong(info, "held_lists", totals.held);
    sv.InfoAddFieldULongLong(info, "names_to_look_at", totals.stale);
    sv.InfoAddFieldULongLong(info, "fan_outs_pending", totals.fan_outs);
    sv.InfoAddFieldULongLong(info, "index_rebuilds", counters.index_rebuilds);
}

/* Omitted until it was counted. */
static void add_queues(server_info_ctx *info) {
    queue_totals totals = queue_totals_read();
    if (!totals.known) return;
    sv.InfoAddSection(info, "queues");
    sv.InfoAddFieldULongLong(info, "queued_messages", totals.messages);
    sv.InfoAddFieldULongLong(info, "longest_queue_messages", totals.longest);
    sv.InfoAddFieldULongLong(info, "queued_messages_age_seconds", totals.age_s);
}

static void add_resources(server_info_ctx *info) {
    resources now = resources_read();
    sv.InfoAddSection(info, "resources");
    sv.InfoAddFieldULongLong(info, "memory_limit", now.memory_limit);
    sv.InfoAddFieldULongLong(info, "memory_used", now.memory_used);
    sv.InfoAddFieldULongLong(info, "disk_total", now.disk_total);
    sv.InfoAddFieldULongLong(info, "disk_free", now.disk_free);
}

static void on_info(server_info_ctx *info, int for_crash_report) {
    add_mode(info);
    add_counters(info);
    add_resources(info);
    add_queues(info);
    if (!for_crash_report) add_index(info); /* walks memory that may be broken after a crash */
}

void info_start(server_ctx *ctx) {
    sv.RegisterInfoFunc(ctx, on_info);
}
