/* intercept.c - sees every command before it runs: rewrites PUBLISH, notes SUBSCRIBE, follows what changes access.
 *
 * The filter runs for each command of each client (when it is queued, inside MULTI), for commands of scripts and other
 * modules, for the replication stream and while the AOF is loaded; before authentication and ACL.  It must cost other
 * commands next to nothing: they leave after one switch on the length of their name. */
#include "intercept.h"

#include <strings.h>

#include "access.h"
#include "channel.h"
#include "drain.h"
#include "handoff.h"

static server_string *channel_publish_name, *channel_spublish_name;

static uint64_t client_of(server_filter_ctx *filter) {
    return can.filter_client ? sv.CommandFilterGetClientId(filter) : 0;
}

static bool is_connected(uint64_t client) {
    server_client_info info = {.version = 1};
    return sv.GetClientInfoById(&info, client) == SERVER_OK;
}

/* PUBLISH goes to CHANNEL.PUBLISH, with the same arguments in the same places, where this server may keep messages. */
static void rewrite(server_filter_ctx *filter, bool sharded) {
    if (sv.CommandFilterArgsCount(filter) != 3) return; /* the server's own arity error */
    int flags = sv.GetContextFlags(detached);
    if (!(flags & SERVER_CTX_MASTER) || (flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING))) return;
    if (can.cluster && !sharded) return; /* receivers on other nodes are not counted: "unheard" cannot be known */
    server_string *channel = sv.CommandFilterArgGet(filter, 1);
    if (channel_rule(channel) == NULL) return;
    uint64_t client = client_of(filter);
    if (!access_may_intercept(client, channel, sharded) || (client != 0 && access_is_resp2_subscriber(client))) return;
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
    if (sv.CommandFilterArgsCount(filter) < 2) return;
    access_saw_subscribe(client_of(filter));
    with_names(filter, kind, handoff_note);
}

static void unsubscribe(server_filter_ctx *filter, push_kind kind) {
    if (can.filter_client) with_names(filter, kind, drain_unsubscribes);
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
    handoff_transaction(client, false);
    access_transaction_ends(client);
}

/* EXEC: what was queued may change the rights of anybody, and run scripts. */
static void transaction_runs(uint64_t client) {
    handoff_transaction(client, true);
    access_transaction_ends(client);
    access_forget_all();
    access_script_caller(client);
}

static bool is(hmq_slice name, const char *word) {
    return strncasecmp((const char *)name.data, word, name.len) == 0;
}

static void on_command(server_filter_ctx *filter) {
    if (handoff_pending()) {
        /* A command of a connection: whoever subscribed before it has done so by now.  One of a script: perhaps not. */
        bool final = !can.filter_client || is_connected(sv.CommandFilterGetClientId(filter));
        handoff_settle(final);
    }
    hmq_slice name = slice_of(sv.CommandFilterArgGet(filter, 0));
    switch (name.len) {
    case 3:
        if (is(name, "ACL")) access_forget_all();
        break;
    case 4:
        if (is(name, "EXEC"))
            transaction_runs(client_of(filter));
        else if (is(name, "AUTH"))
            user_changes(client_of(filter));
        else if (is(name, "EVAL"))
            access_script_caller(client_of(filter));
        break;
    case 5:
        if (is(name, "HELLO"))
            user_changes(client_of(filter));
        else if (is(name, "RESET"))
            transaction_ends(client_of(filter)), access_forget_client(client_of(filter));
        else if (is(name, "FCALL"))
            access_script_caller(client_of(filter));
        break;
    case 7:
        if (is(name, "PUBLISH") && settings.intercept)
            rewrite(filter, false);
        else if (is(name, "EVALSHA"))
            access_script_caller(client_of(filter));
        else if (is(name, "DISCARD"))
            transaction_ends(client_of(filter));
        break;
    case 8:
        if (is(name, "SPUBLISH") && settings.intercept) rewrite(filter, true);
        break;
    case 9:
        if (is(name, "SUBSCRIBE") && settings.intercept) subscribe(filter, PUSH_CHANNEL);
        break;
    case 10:
        if (is(name, "PSUBSCRIBE") && settings.intercept)
            subscribe(filter, PUSH_PATTERN);
        else if (is(name, "SSUBSCRIBE") && settings.intercept)
            subscribe(filter, PUSH_SHARD);
        break;
    case 11:
        if (is(name, "UNSUBSCRIBE")) unsubscribe(filter, PUSH_CHANNEL);
        break;
    case 12:
        if (is(name, "PUNSUBSCRIBE"))
            unsubscribe(filter, PUSH_PATTERN);
        else if (is(name, "SUNSUBSCRIBE"))
            unsubscribe(filter, PUSH_SHARD);
        break;
    default: break;
    }
}

bool intercept_start(server_ctx *ctx) {
    channel_publish_name = sv.CreateString(NULL, "CHANNEL.PUBLISH", 15);
    channel_spublish_name = sv.CreateString(NULL, "CHANNEL.SPUBLISH", 16);
    return sv.RegisterCommandFilter(ctx, on_command, SERVER_FILTER_NOSELF) != NULL;
}
