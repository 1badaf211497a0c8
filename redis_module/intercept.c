/* intercept.c - sees every command before it runs: rewrites PUBLISH, notes SUBSCRIBE, follows what changes access.
 *
 * The filter runs for each command of each client (when it is queued, inside MULTI), for commands of scripts and other
 * modules, for the replication stream and while the AOF is loaded; before authentication and ACL.  It must cost other
 * commands next to nothing: they leave after one switch on the length of their name. */
#include "intercept.h"

#include <string.h>
#include <strings.h>

#include "access.h"
#include "channel.h"
#include "channel_facts.h"
#include "drain.h"
#include "handoff.h"
#include "pattern_walk.h"
#include "replication.h"
#include "slots.h"

static server_string *channel_publish_name, *channel_spublish_name;

static uint64_t client_of(server_filter_ctx *filter) {
    return can.filter_client ? sv.CommandFilterGetClientId(filter) : 0;
}

static bool is_connected(uint64_t client) {
    server_client_info info = {.version = 1};
    return sv.GetClientInfoById(&info, client) == SERVER_OK;
}

/* One bit for each client id modulo its size: a client without it has never sent MULTI. */
static uint64_t sent_multi[64];

static void multi_begins(uint64_t client) {
    sent_multi[client / 64 % 64] |= 1ULL << (client % 64);
}

/* What a client queues in MULTI runs later, when all may be different. */
static bool is_in_multi(uint64_t client) {
    server_client_info info = {.version = 1};
    if (!(sent_multi[client / 64 % 64] & (1ULL << (client % 64)))) return false;
    return sv.GetClientInfoById(&info, client) != SERVER_OK || (info.flags & SERVER_CLIENT_MULTI) != 0;
}

/* A message that will be heard and is to be kept only if it is not: the server's own PUBLISH does all there is to do. */
static bool stays_stock(uint64_t client, hmq_slice channel) {
    if (!can.filter_client || !channel_is_heard(channel) || handoff_pending() || drain_any()) return false;
    return !is_in_multi(client) &&
           !sv.AvoidReplicaTraffic(); /* while writes are paused it would wait, and then be unheard */
}

/* PUBLISH goes to CHANNEL.PUBLISH, with the same arguments in the same places, where this server may keep messages. */
static void rewrite(server_filter_ctx *filter, bool sharded) {
    if (!settings.intercept || sv.CommandFilterArgsCount(filter) != 3) return; /* else the server's own arity error */
    if (!sharded) walk_before_publish(sv.CommandFilterArgGet(filter, 1));
    if (can.cluster && !sharded) return; /* receivers on other nodes are not counted: "unheard" cannot be known */
    uint64_t client = client_of(filter);
    server_string *channel = sv.CommandFilterArgGet(filter, 1);
    if (!sharded && stays_stock(client, slice_of(channel))) return;
    int flags = sv.GetContextFlags(detached);
    if (!(flags & SERVER_CTX_MASTER) || (flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING))) return;
    if (channel_rule(channel) == NULL || !access_may_intercept(client, channel, sharded)) return;
    if (client != 0 && access_is_resp2_subscriber(client)) return;
    server_string *name = sharded ? channel_spublish_name : channel_publish_name;
    sv.RetainString(NULL, name);
    sv.CommandFilterArgReplace(filter, 0, name);
}

/* The names of a command (un)subscribing: the arguments behind its own. */
static void with_names(server_filter_ctx *filter, push_kind kind,
                       void (*use)(uint64_t, push_kind, server_string **, int)) {
    enum { MOST_ON_STACK = 64 };
    int count = sv.CommandFilterArgsCount(filter) - 1;
    server_string *small[MOST_ON_STACK];
    server_string **names = count <= MOST_ON_STACK ? small : sv.Alloc((size_t)count * sizeof *names);
    for (int i = 0; i < count; i++) names[i] = sv.CommandFilterArgGet(filter, i + 1);
    use(client_of(filter), kind, names, count);
    if (names != small) sv.Free(names);
}

static void subscribe(server_filter_ctx *filter, push_kind kind) {
    if (!settings.intercept || sv.CommandFilterArgsCount(filter) < 2) return;
    access_saw_subscribe(client_of(filter));
    with_names(filter, kind, handoff_note);
}

static void leaves_patterns(uint64_t client, push_kind kind, server_string **names, int count) {
    (void)kind;
    walk_unsubscribes(client, names, count);
}

static void unsubscribe(server_filter_ctx *filter, push_kind kind) {
    channel_subscriber_left();
    if (can.filter_client) with_names(filter, kind, drain_unsubscribes);
    if (can.filter_client && kind == PUSH_PATTERN) with_names(filter, kind, leaves_patterns);
}

/* AUTH or HELLO: the next verdict has to be a new one; inside MULTI it cannot be known yet. */
static void user_changes(uint64_t client) {
    server_client_info info = {.version = 1};
    access_forget_client(client);
    if (client != 0 && sv.GetClientInfoById(&info, client) == SERVER_OK && (info.flags & SERVER_CLIENT_MULTI)) {
        access_user_may_change(client);
    }
}

static void transaction_ends(uint64_t client) {
    channel_subscriber_left(); /* RESET */
    handoff_transaction(client, false);
    access_transaction_ends(client);
}

/* EXEC: what was queued may change the rights of anybody, and run scripts. */
static void transaction_runs(uint64_t client) {
    channel_subscriber_left();
    handoff_transaction(client, true);
    access_transaction_ends(client);
    access_forget_all();
    access_script_caller(client);
    slots_transaction_comes();
}

static bool is(hmq_slice name, const char *word) {
    return strlen(word) == name.len && strncasecmp((const char *)name.data, word, name.len) == 0;
}

/* The one name that has to be told apart fast: its seven letters as two words that overlap. */
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

/* A connection's command: whoever subscribed before it has done so by now.  One of a script: perhaps not yet. */
static void settle(server_filter_ctx *filter) {
    handoff_settle(!can.filter_client || is_connected(sv.CommandFilterGetClientId(filter)));
}

static void dispatch(server_filter_ctx *filter, hmq_slice name) {
    uint64_t client = client_of(filter);
    if (is(name, "SPUBLISH"))
        rewrite(filter, true);
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
        multi_begins(client);
    else if (is(name, "EXEC"))
        transaction_runs(client);
    else if (is(name, "DISCARD"))
        transaction_ends(client);
    else if (is(name, "RESET"))
        transaction_ends(client), access_forget_client(client), walk_unsubscribes(client, NULL, 0);
    else if (is(name, "AUTH") || is(name, "HELLO"))
        user_changes(client);
    else if (is(name, "EVAL") || is(name, "EVALSHA") || is(name, "FCALL"))
        access_script_caller(client);
    else if (is(name, "SYNC") || is(name, "PSYNC"))
        replication_replica_comes();
    else if (is(name, "ACL"))
        access_forget_all();
    else if (is(name, "CLUSTER"))
        slots_command_comes(is_in_multi(client));
}

/* The commands that matter, by length and first letter: all others leave at once. */
#define LETTER(upper) (1u << ((upper) & 31))
static const uint32_t first_letters[] = {
    [3] = LETTER('A'),
    [4] = LETTER('A') | LETTER('E') | LETTER('S'),
    [5] = LETTER('F') | LETTER('H') | LETTER('M') | LETTER('P') | LETTER('R'),
    [7] = LETTER('C') | LETTER('D') | LETTER('E') | LETTER('P'),
    [8] = LETTER('S'),
    [9] = LETTER('S'),
    [10] = LETTER('P') | LETTER('S'),
    [11] = LETTER('U'),
    [12] = LETTER('P') | LETTER('S'),
};

static void on_command(server_filter_ctx *filter) {
    hmq_slice name;
    if (handoff_pending()) settle(filter);
    name.data = (const uint8_t *)sv.StringPtrLen(sv.CommandFilterArgGet(filter, 0), &name.len);
    if (name.len >= sizeof first_letters / sizeof first_letters[0]) return;
    if (!(first_letters[name.len] >> (name.data[0] & 31) & 1)) return;
    if (is_publish(name))
        rewrite(filter, false);
    else
        dispatch(filter, name);
}

bool intercept_start(server_ctx *ctx) {
    channel_publish_name = sv.CreateString(NULL, "CHANNEL.PUBLISH", 15);
    channel_spublish_name = sv.CreateString(NULL, "CHANNEL.SPUBLISH", 16);
    return sv.RegisterCommandFilter(ctx, on_command, SERVER_FILTER_NOSELF) != NULL;
}
