/* intercept.c - sees every command before it runs: keeps messages of PUBLISH, notes SUBSCRIBE, follows changes of
 * access.
 *
 * The filter runs for each command of each client (inside MULTI when it is queued), for commands of scripts and other
 * modules, for the replication stream and while the AOF is loaded; always before authentication and ACL.  It must
 * cost other commands next to nothing: it returns after a look at two letters of their name. */
#include "channel/intercept.h"

#include <assert.h>
#include <string.h>
#include <strings.h>

#include "topic/slot.h"
#include "server/access.h"
#include "server/awake.h"
#include "server/data_set.h"
#include "server/earlier_clients.h"
#include "server/filter_unit.h"
#include "server/internals.h"
#include "server/keyspace.h"
#include "server/memory.h"
#include "server/no_touch.h"
#include "server/push.h"
#include "server/replication.h"
#include "server/slots.h"
#include "server/timers.h"
#include "server/unloading.h"
#include "index/channels.h"
#include "channel/channel.h"
#include "channel/drain.h"
#include "channel/dryrun.h"
#include "channel/facts.h"
#include "channel/handoff.h"
#include "channel/leave.h"
#include "channel/pattern_walk.h"
#include "channel/read.h"

static server_string *channel_publish_name, *channel_spublish_name, *queued_spublish_name, *read_name;

static uint64_t client_of(server_filter_ctx *filter) {
    return can.filter_client ? sv.CommandFilterGetClientId(filter) : 0;
}

static bool is_connected(uint64_t client) {
    server_client_info info = {.version = 1};
    return sv.GetClientInfoById(&info, client) == SERVER_OK;
}

/* Is a script of another client running?  The server then refuses a connection's command, with few exceptions (AUTH, DISCARD,
 * HELLO, MULTI, RESET and others for which nothing here writes). */
static bool is_refused_as_busy(uint64_t client, int flags) {
    return (flags & SERVER_CTX_LUA) && (!can.filter_client || is_connected(client));
}

static bool is_busy_for(uint64_t client) {
    return is_refused_as_busy(client, sv.GetContextFlags(detached));
}

/* One bit for each client id modulo its size: a client without it has never sent MULTI. */
static uint64_t sent_multi[64];

static void note_multi(uint64_t client) {
    awake_follow();
    sent_multi[client / 64 % 64] |= 1ULL << (client % 64);
}

/* The same for clients that have sent MONITOR or SYNC: the server refuses their PUBLISH. */
static uint64_t sent_monitor[64];

static void note_monitor(uint64_t client) {
    sent_monitor[client / 64 % 64] |= 1ULL << (client % 64);
}

static bool may_be_monitor(uint64_t client) {
    earlier_clients_look(client);
    return (sent_monitor[client / 64 % 64] & (1ULL << (client % 64))) != 0;
}

/* Commands that a client queues in MULTI run later, when everything may have changed. */
static bool is_in_multi(uint64_t client) {
    server_client_info info = {.version = 1};
    earlier_clients_look(client);
    if (!(sent_multi[client / 64 % 64] & (1ULL << (client % 64)))) return false;
    return sv.GetClientInfoById(&info, client) != SERVER_OK || (info.flags & SERVER_CLIENT_MULTI) != 0;
}

/* The message will have a receiver, and would be kept only without one: the server's own PUBLISH is enough. */
static bool may_leave_to_server(uint64_t client, hmq_slice channel) {
    if (!can.filter_client || !channel_is_heard(channel) || handoff_pending() || drain_any_active()) return false;
    if (dryrun_keeps_heard()) return false;
    return !is_in_multi(client) &&
           !sv.AvoidReplicaTraffic(); /* while writes are paused it would wait, and perhaps be unheard then */
}

/* The database of a client, remembered until a client selects another one, because the server looks up the client's
 * address each time that it is asked. */
static struct {
    uint64_t client, selects;
    int db;
} databases[256];
#define MOST_PAUSE_MS (365LL * 86400 * 1000)
#define MOST_PAUSE_OF_ANYBODY_MS 60000LL /* if the client is not known */
static long long queued_pause_ms; /* of a CLIENT PAUSE that is queued in a transaction */
static uint64_t selects = 1;
static bool config_is_queued; /* a CONFIG SET is queued in a transaction */

static bool database_of(uint64_t client, int *db) {
    size_t at = client % (sizeof databases / sizeof databases[0]);
    if (databases[at].client != client || databases[at].selects != selects) {
        server_client_info info = {.version = 1};
        if (sv.GetClientInfoById(&info, client) != SERVER_OK) return false;
        databases[at].client = client;
        databases[at].selects = selects;
        databases[at].db = info.db;
    }
    *db = databases[at].db;
    return true;
}

/* Will this client's command run directly after the filter, unchanged?  Not in a transaction or script, not while the
 * server is paused or busy, and not if the client must still authenticate or is a monitor.  Only if keys may be looked at
 * for the client. */
static bool runs_now(uint64_t client, int flags, int *db) {
    if (client == 0 || handoff_pending() || drain_any_active() || (flags & SERVER_CTX_LUA) || sv.AvoidReplicaTraffic())
        return false;
    if (!no_touch_may_look(client) || may_be_monitor(client)) return false;
    return internals_is_authenticated(client) && !is_in_multi(client) && database_of(client, db);
}

static void replace_name(server_filter_ctx *filter, server_string *name) {
    sv.RetainString(NULL, name);
    sv.CommandFilterArgReplace(filter, 0, name);
}

/* The command for a message that may be kept.  EXEC of Valkey runs a transaction with a shard message although its slot
 * has begun to move, if the command is marked as one of pub/sub. */
static void replace_publish(server_filter_ctx *filter, uint64_t client, server_string *channel, bool sharded) {
    server_string *name = sharded ? channel_spublish_name : channel_publish_name;
    bool is_queued = sharded && can.cluster && can.valkey && client != 0 && is_in_multi(client);
    replace_name(filter, is_queued && access_may_queue(client, channel) ? queued_spublish_name : name);
}

/* A message of a user whose publishes cannot be kept (no right to CHANNEL.PUBLISH). */
static void leave(uint64_t client, server_string *channel, bool sharded, bool is_now) {
    if (!is_now || !channel_index_keeps_anywhere(slice_of(channel))) return;
    if (access_may_publish_as(client, channel, sharded)) channel_note_not_stored(channel);
}

/* The same for a dry run: counts the message.  True if nothing else is needed, because CHANNEL.PUBLISH will count it,
 * or because it cannot be counted.  `db`: -1 if the command runs later. */
static bool dry_run(server_filter_ctx *filter, uint64_t client, int db, bool sharded, bool may) {
    server_string *channel = sv.CommandFilterArgGet(filter, 1);
    if (!may) return dryrun_count_skipped(), true;
    if (db >= 0 && channel_dry_run_first(client, db, channel, sv.CommandFilterArgGet(filter, 2), sharded)) return false;
    if (sharded && channel_slot_is_moving(channel)) return false;
    replace_publish(filter, client, channel, sharded);
    return true;
}

/* No rule, nothing kept, no dry run: as on a server without the module. */
static bool has_nothing_to_do(void) {
    return hmq_policy_count(settings.policy) == 0 && !drain_any_active() && !walk_any_active() &&
           channel_index_keeps_nothing() && !dryrun_is_active();
}

/* PUBLISH, where this server may keep messages.  It stays unchanged if the message could be kept, or need not be.
 * Otherwise it becomes CHANNEL.PUBLISH, with the same arguments in the same places. */
static void publish(server_filter_ctx *filter, bool sharded) {
    if (!settings.intercept || sv.CommandFilterArgsCount(filter) != 3) return; /* else the server's own arity error */
    if (has_nothing_to_do()) return;
    uint64_t client = client_of(filter);
    server_string *channel = sv.CommandFilterArgGet(filter, 1);
    bool may_walk = no_touch_may_look(client), is_walked = walk_any_active() && !is_busy_for(client);
    if (is_walked && may_walk) walk_before_publish(channel, sharded);
    if (can.cluster && !sharded) return; /* receivers on other nodes are not counted: "unheard" cannot be known */
    if (!sharded && (may_walk || !is_walked) && may_leave_to_server(client, slice_of(channel))) return;
    int flags = sv.GetContextFlags(detached), db = 0;
    if (!(flags & SERVER_CTX_MASTER) || (flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING))) return;
    const hmq_rule *rule = channel_rule(channel);
    if (client != 0 && access_is_resp2_subscriber(client)) return;
    bool is_now = runs_now(client, flags, &db);
    bool is_dry_run = dryrun_is_active();
    bool supersedes = rule == NULL && !is_now && channel_index_keeps_anywhere(slice_of(channel));
    bool may = (rule != NULL || supersedes || is_dry_run) && access_may_intercept(client, channel, sharded);
    if (rule == NULL || !may) leave(client, channel, sharded, is_now);
    if (is_dry_run && dry_run(filter, client, is_now ? db : -1, sharded, may)) return;
    if (supersedes && may && !(sharded && channel_slot_is_moving(channel)))
        replace_publish(filter, client, channel, sharded);
    if (rule == NULL || !may) return;
    awake_follow();
    if (is_now &&
        channel_store_before_publish(client, db, channel, sv.CommandFilterArgGet(filter, 2), sharded) == CHANNEL_STOCK)
        return;
    bool is_kept = rule->hold != HMQ_HOLD_NONE || rule->last || is_walked || drain_any_active() ||
                   channel_index_holds_anywhere(slice_of(channel));
    if (!is_kept || (sharded && channel_slot_is_moving(channel))) return;
    replace_publish(filter, client, channel, sharded);
}

/* LRANGE, LLEN, LINDEX on the name of a channel that holds messages: HOLDMQ.READ decides when it runs. */
static void read_list(server_filter_ctx *filter, hmq_slice name) {
    int count = sv.CommandFilterArgsCount(filter);
    if (!settings.intercept || count < 2) return;
    server_string *channel = sv.CommandFilterArgGet(filter, 1);
    if (!channel_index_shows_anywhere(slice_of(channel)) || !channel_is_list_read(name, count)) return;
    uint64_t client = client_of(filter);
    if (sv.GetContextFlags(detached) & SERVER_CTX_LUA) return; /* a list of the application */
    server_client_info info = {.version = 1};
    if (client != 0 && sv.GetClientInfoById(&info, client) != SERVER_OK) return;
    bool is_now = client != 0 && !(info.flags & SERVER_CLIENT_MULTI) && no_touch_may_look(client);
    if (is_now && !channel_shows_held(detached, info.db, channel)) return;
    if (access_is_resp2_subscriber(client) || !access_may_see_held(client, channel)) return;
    server_string *command = sv.HoldString(NULL, sv.CommandFilterArgGet(filter, 0));
    replace_name(filter, read_name);
    sv.CommandFilterArgInsert(filter, 2, command);
}

/* The names of a command that (un)subscribes: the arguments after its own name. */
static void with_names(server_filter_ctx *filter, push_kind kind,
                       void (*use)(uint64_t, push_kind, server_string **, int)) {
    enum { MOST_ON_STACK = 64 };
    int count = sv.CommandFilterArgsCount(filter) - 1;
    server_string *small[MOST_ON_STACK];
    server_string **names = scratch_alloc(small, sizeof small, (size_t)count * sizeof *names);
    for (int i = 0; i < count; i++) names[i] = sv.CommandFilterArgGet(filter, i + 1);
    use(client_of(filter), kind, names, count);
    scratch_free(names, small);
}

static void subscribe(server_filter_ctx *filter, push_kind kind) {
    awake_follow();
    channel_subscriber_joined();
    access_note_subscribe(client_of(filter));
    if (!settings.intercept || sv.CommandFilterArgsCount(filter) < 2) return;
    if (is_busy_for(client_of(filter))) return;
    with_names(filter, kind, handoff_note);
}

static void unsubscribe(server_filter_ctx *filter, push_kind kind) {
    uint64_t client = client_of(filter);
    channel_subscriber_left();
    if (!can.filter_client || (!drain_any_active() && !walk_any_active()) || is_busy_for(client)) return;
    if (access_may_unsubscribe(client, kind)) with_names(filter, kind, is_in_multi(client) ? leave_later : leave_now);
}

/* AUTH or HELLO: the next verdict must be new; inside MULTI it is not known yet. */
static void user_changes(uint64_t client) {
    server_client_info info = {.version = 1};
    access_forget_client(client);
    if (client == 0) access_transaction_changes_users(); /* what it does cannot be known */
    if (client != 0 && sv.GetClientInfoById(&info, client) == SERVER_OK && (info.flags & SERVER_CLIENT_MULTI)) {
        access_user_may_change(client);
        access_transaction_changes_users();
    }
}

/* ACL. */
static void users_change(uint64_t client) {
    access_forget_all();
    if (client == 0 || is_in_multi(client)) access_transaction_changes_users();
}

static void transaction_ends(uint64_t client) {
    channel_subscriber_left(); /* RESET */
    handoff_transaction(client, false);
    leave_transaction(client, false);
    access_transaction_ends(client);
}

static void resets(uint64_t client) {
    transaction_ends(client);
    access_forget_client(client);
    selects++;
    for (int kind = PUSH_CHANNEL; kind <= PUSH_SHARD; kind++) walk_unsubscribes(client, (push_kind)kind, NULL, 0);
}

/* EXEC: queued commands may change any user's rights, and run scripts. */
static void transaction_runs(uint64_t client) {
    earlier_clients_look(client);
    channel_subscriber_left();
    channel_subscriber_joined();
    selects++;
    handoff_transaction(client, true);
    leave_transaction(client, true);
    access_transaction_ends(client);
    access_forget_all();
    if (queued_pause_ms > 0) access_note_pause(queued_pause_ms);
    if (config_is_queued) push_limits_may_change();
    access_script_caller(client);
    slots_note_exec();
}

static bool argument_is(server_filter_ctx *filter, int at, const char *word) {
    return slice_is(slice_of(sv.CommandFilterArgGet(filter, at)), word);
}

/* CLIENT NO-TOUCH <ON or OFF>, CLIENT PAUSE <ms> ...  Inside MULTI it runs with a later EXEC. */
static void note_client_command(server_filter_ctx *filter, uint64_t client) {
    long long ms;
    if (sv.CommandFilterArgsCount(filter) == 3 && argument_is(filter, 1, "NO-TOUCH")) no_touch_note(client);
    if (sv.CommandFilterArgsCount(filter) < 3 || !argument_is(filter, 1, "PAUSE")) return;
    if (sv.StringToLongLong(sv.CommandFilterArgGet(filter, 2), &ms) != SERVER_OK || ms < 0) return;
    if (client != 0 && !access_may_pause(client)) return; /* it will be refused */
    long long most_ms = client != 0 ? MOST_PAUSE_MS : MOST_PAUSE_OF_ANYBODY_MS;
    if (ms > most_ms) ms = most_ms;
    access_note_pause(ms);
    if ((client == 0 || is_in_multi(client)) && ms > queued_pause_ms) queued_pause_ms = ms;
}

/* CONFIG SET ...; inside MULTI it runs with a later EXEC. */
static void note_config_command(server_filter_ctx *filter, uint64_t client) {
    if (sv.CommandFilterArgsCount(filter) < 4 || !argument_is(filter, 1, "SET")) return;
    push_limits_may_change();
    if (client == 0 || is_in_multi(client)) config_is_queued = true;
}

/* CLUSTER: most of its subcommands only read. */
static void note_cluster_command(server_filter_ctx *filter, uint64_t client) {
    static const char *const asking[] = {"INFO",    "NODES", "SLOTS",           "SHARDS",       "MYID",
                                         "KEYSLOT", "LINKS", "COUNTKEYSINSLOT", "GETKEYSINSLOT"};
    if (sv.CommandFilterArgsCount(filter) < 2) return;
    for (size_t i = 0; i < sizeof asking / sizeof asking[0]; i++) {
        if (argument_is(filter, 1, asking[i])) return;
    }
    slots_note_command(is_in_multi(client));
}

/* MODULE LOAD: another module may be loaded.  MODULE UNLOAD of this module: the server asks the module, which says why it
 * refuses, only if it holds no timer. */
static void note_module_command(server_filter_ctx *filter) {
    if (sv.CommandFilterArgsCount(filter) < 3) return; /* MODULE LIST, MODULE HELP */
    keyspace_note_module_command();
    replication_note_load();
    unloading_note_command();
    timers_take_back();
}

/* EVAL and related commands: <script> <number of keys> <key> ... */
static void note_script(server_filter_ctx *filter) {
    enum { FIRST_KEY = 3, MOST = 64 };
    server_string *keys[MOST];
    long long count = 0;
    int given = sv.CommandFilterArgsCount(filter) - FIRST_KEY;
    access_script_caller(client_of(filter));
    if (given < 0 || sv.StringToLongLong(sv.CommandFilterArgGet(filter, 2), &count) != SERVER_OK) return;
    if (sv.GetContextFlags(detached) & SERVER_CTX_LUA) return; /* a script runs: this one is refused */
    if (count > given) count = given;
    if (count > MOST) count = MOST;
    for (int i = 0; i < (int)count; i++) keys[i] = sv.CommandFilterArgGet(filter, FIRST_KEY + i);
    channel_index_script(keys, count < 0 ? 0 : (size_t)count);
}

static bool is(hmq_slice name, const char *word) {
    return strlen(word) == name.len && strncasecmp((const char *)name.data, word, name.len) == 0;
}

/* PUBLISH must be recognised quickly: its seven letters are compared as two words that overlap. */
static bool is_publish(hmq_slice name) {
    if (name.len != 7) return false;
    const uint32_t lower = 0x20202020;
    uint32_t begin, end, publ, lish;
    memcpy(&begin, name.data, sizeof begin);
    memcpy(&end, name.data + 3, sizeof end);
    memcpy(&publ, "publ", sizeof publ);
    memcpy(&lish, "lish", sizeof lish);
    return (begin | lower) == publ && (end | lower) == lish;
}

/* What the filter reads for each command: together, so that a command takes two lines of the processor's cache.
 *
 * `letters`: the commands that matter, by first and third letter.  For nearly all others the filter returns at once. */
#define FIRST(upper) ((upper) & 31)
#define THIRD(upper) (1u << ((upper) & 31))
static struct {
    server_string *(*argument)(server_filter_ctx *filter, int position);
    const char *(*text)(const server_string *string, size_t *length);
    bool is_due; /* a subscription is to be settled */
    uint32_t letters[32];
} hot __attribute__((aligned(64))) = {
    .letters =
        {
            [FIRST('A')] = THIRD('L') | THIRD('T'), /* ACL, AUTH */
            [FIRST('C')] = THIRD('I') | THIRD('U') | THIRD('N'), /* CLIENT, CLUSTER, CONFIG */
            [FIRST('D')] = THIRD('S') | THIRD('B'), /* DISCARD, DEBUG */
            [FIRST('E')] = THIRD('A') | THIRD('E'), /* EVAL and related commands, EXEC */
            [FIRST('F')] =
                THIRD('A') | THIRD('I') | THIRD('U'), /* FCALL and related commands, FAILOVER, FLUSHALL, FLUSHDB */
            [FIRST('H')] = THIRD('L'), /* HELLO */
            [FIRST('L')] = THIRD('A') | THIRD('E') | THIRD('N'), /* LRANGE, LLEN, LINDEX */
            [FIRST('M')] = THIRD('L') | THIRD('D') | THIRD('N'), /* MULTI, MODULE, MONITOR */
            [FIRST('P')] =
                THIRD('B') | THIRD('N') | THIRD('U') | THIRD('Y'), /* PUBLISH, PUNSUBSCRIBE, PSUBSCRIBE, PSYNC */
            [FIRST('R')] = THIRD('P') | THIRD('S'), /* REPLICAOF, RESET */
            /* SELECT, SHUTDOWN, SLAVEOF, SPUBLISH, SSUBSCRIBE, SUBSCRIBE, SUNSUBSCRIBE, SWAPDB, SYNC */
            [FIRST('S')] = THIRD('A') | THIRD('L') | THIRD('U') | THIRD('B') | THIRD('N'),
            [FIRST('U')] = THIRD('S'), /* UNSUBSCRIBE */
        },
};

/* A connection's command: earlier subscribers have completed.  A script's command: perhaps not yet. */
static __attribute__((noinline)) void settle(server_filter_ctx *filter) {
    uint64_t client = client_of(filter);
    if (is_busy_for(client) || !no_touch_may_look(client)) return;
    filter_unit_client(client);
    bool is_unit = filter_unit_begin();
    handoff_settle(!can.filter_client || is_connected(sv.CommandFilterGetClientId(filter)));
    if (is_unit) filter_unit_end();
    filter_unit_no_client();
    hot.is_due = handoff_pending();
}

static void note_replica(uint64_t client) {
    note_monitor(client);
    replication_note_replica();
}

/* REPLICAOF NO ONE makes no replica. */
static void note_role_command(server_filter_ctx *filter) {
    if (sv.CommandFilterArgsCount(filter) == 3 && argument_is(filter, 1, "NO") && argument_is(filter, 2, "ONE")) return;
    replication_note_role_command();
}

static bool is_script(hmq_slice name) {
    return is(name, "EVAL") || is(name, "EVALSHA") || is(name, "FCALL") || is(name, "EVAL_RO") ||
           is(name, "EVALSHA_RO") || is(name, "FCALL_RO");
}

static void dispatch(server_filter_ctx *filter, hmq_slice name) {
    uint64_t client = client_of(filter);
    if (is(name, "SPUBLISH"))
        publish(filter, true);
    else if (is(name, "LRANGE") || is(name, "LLEN") || is(name, "LINDEX"))
        read_list(filter, name);
    else if (is(name, "CONFIG"))
        note_config_command(filter, client);
    else if (is(name, "CLIENT"))
        note_client_command(filter, client);
    else if (is(name, "SELECT"))
        selects++;
    else if (is(name, "SUBSCRIBE"))
        subscribe(filter, PUSH_CHANNEL);
    else if (is(name, "PSUBSCRIBE"))
        subscribe(filter, PUSH_PATTERN);
    else if (is(name, "SSUBSCRIBE"))
        subscribe(filter, PUSH_SHARD);
    else if (is(name, "UNSUBSCRIBE"))
        unsubscribe(filter, PUSH_CHANNEL);
    else if (is(name, "PUNSUBSCRIBE"))
        unsubscribe(filter, PUSH_PATTERN);
    else if (is(name, "SUNSUBSCRIBE"))
        unsubscribe(filter, PUSH_SHARD);
    else if (is(name, "MULTI"))
        note_multi(client);
    else if (is(name, "EXEC"))
        transaction_runs(client);
    else if (is(name, "DISCARD"))
        transaction_ends(client);
    else if (is(name, "RESET"))
        resets(client);
    else if (is(name, "AUTH") || is(name, "HELLO"))
        user_changes(client);
    else if (is_script(name))
        note_script(filter);
    else if (is(name, "SYNC") || is(name, "PSYNC"))
        note_replica(client);
    else if (is(name, "MONITOR"))
        note_monitor(client);
    else if (is(name, "ACL"))
        users_change(client);
    else if (is(name, "CLUSTER"))
        note_cluster_command(filter, client);
    else if (is(name, "MODULE"))
        note_module_command(filter);
    else if (is(name, "SHUTDOWN"))
        timers_take_back();
    else if (is(name, "DEBUG"))
        replication_note_load();
    else if (is(name, "FLUSHALL") || is(name, "FLUSHDB"))
        data_set_note_flush();
    else if (is(name, "SWAPDB"))
        data_set_note_swap();
    else if (is(name, "REPLICAOF") || is(name, "SLAVEOF") || is(name, "FAILOVER"))
        note_role_command(filter);
}

static bool may_be_watched_command(const char *name) { /* ends with a zero byte */
    uint32_t letters = hot.letters[name[0] & 31];
    return letters != 0 && name[1] != 0 && (letters >> (name[2] & 31) & 1);
}

/* Not inlined, as `settle`: commands that do not matter need no room on the stack. */
static __attribute__((noinline)) void look_at(server_filter_ctx *filter, const server_string *first) {
    hmq_slice name = slice_of(first);
    filter_unit_client(client_of(filter));
    if (is_publish(name))
        publish(filter, false);
    else
        dispatch(filter, name);
    filter_unit_no_client();
    hot.is_due = handoff_pending();
}

static __attribute__((aligned(64))) void on_command(server_filter_ctx *filter) {
    if (__builtin_expect(hot.is_due, 0)) settle(filter);
    const server_string *first = hot.argument(filter, 0);
    const char *name = hot.text(first, NULL); /* its length would cost as much again */
    if (__builtin_expect(may_be_watched_command(name), 0)) look_at(filter, first);
}

/* Commands that were queued or delayed before the module saw any run later, unseen. */
static void expect_anything(void) {
    keyspace_note_module_command();
    replication_note_load();
    replication_note_role_command();
    unloading_note_command();
}

/* A client that was connected before the module saw commands, by a flag of CLIENT LIST. */
static void was_connected(uint64_t client, char flag) {
    access_look_for_script_caller(client);
    if (flag != 'N') awake_follow();
    switch (flag) {
    case 'T': no_touch_note(client); break;
    case 'x':
        note_multi(client);
        expect_anything();
        access_transaction_changes_users(); /* it may have queued AUTH */
        break;
    case 'P': access_note_subscribe(client); break;
    case 'O':
    case 'S': note_monitor(client); break;
    default: break;
    }
}

static void wake(void) {
    hot.argument = sv.CommandFilterArgGet;
    hot.text = sv.StringPtrLen;
    if (sv.AvoidReplicaTraffic()) {
        access_note_unseen_pause();
        expect_anything();
    }
    if (!earlier_clients_begin(was_connected)) {
        expect_anything();
        access_transaction_changes_users();
        if (!push_nobody_subscribes()) awake_follow();
    }
    if (!can.module_command) unloading_note_command();
    server_filter *filter = sv.RegisterCommandFilter(detached, on_command, SERVER_FILTER_NOSELF);
    assert(filter != NULL);
    (void)filter;
}

void intercept_start(void) {
    hmq_slot_tag(0); /* looks for all of them now */
    channel_publish_name = sv.CreateString(NULL, "CHANNEL.PUBLISH", 15);
    channel_spublish_name = sv.CreateString(NULL, "CHANNEL.SPUBLISH", 16);
    queued_spublish_name = sv.CreateString(NULL, "HOLDMQ.SPUBLISH", 15);
    read_name = sv.CreateString(NULL, "HOLDMQ.READ", 11);
    awake_add(wake);
}
