/* access.c - remembers what users may do. */
#include "server/access.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "server/departures.h"
#include "server/earlier_clients.h"
#include "server/internals.h"

#define CACHE_ENTRIES 4096 /* power of two; two clients that meet in one entry evict each other */

/* The commands that are checked; one bit each of a verdict's flags. */
enum { RUN_PUBLISH, RUN_CHANNEL_PUBLISH, RUN_SPUBLISH, RUN_CHANNEL_SPUBLISH, RUN_QUEUED_SPUBLISH, RUN_READ, RUN_COUNT };
static const struct {
    const char *words[4]; /* NULL: the channel */
    int count;
} commands[RUN_COUNT] = {{{"PUBLISH", NULL, ""}, 3},         {{"CHANNEL.PUBLISH", NULL, ""}, 3},
                         {{"SPUBLISH", NULL, ""}, 3},        {{"CHANNEL.SPUBLISH", NULL, ""}, 3},
                         {{"HOLDMQ.SPUBLISH", NULL, ""}, 3}, {{"HOLDMQ.READ", NULL, "LLEN"}, 3}};

enum {
    MAY_WRITE_ALL = 1 << 8, /* the user's key patterns match anything */
    MAY_READ_ALL = 1 << 9,
    SPEAKS_RESP2 = 1 << 10,
    SPEAKS_RESP3 = 1 << 11,
    MAY_USE_ALL_CHANNELS = 1 << 13,
    MAY_RUN_DANGEROUS = 1 << 14, /* always, where the server has a category for that */
    UNKNOWN_CLIENT = 1 << 12 /* the id belongs to no connection: a script, another module, the replication stream */
};

#define SCRIPT_CALLERS 1024 /* clients whose scripts may run next: more than one only while the server is paused */

typedef struct verdict {
    uint64_t client;
    uint64_t generation;
    server_string *user; /* its name, owned; NULL where no other module may log clients in */
    unsigned flags;
} verdict;

static verdict cache[CACHE_ENTRIES];
static uint64_t generation = 1;
#define PAUSE_ENDS_MS 1000 /* how much later than announced it may end */
static long long paused_until_ms; /* 0: no client is paused */
static bool is_unseen_pause; /* it began before the module saw commands: when it ends is not known */
static uint64_t script_callers[SCRIPT_CALLERS];
static unsigned script_callers_seen;
static char probe_text[40];
/* The flags that all users have in common, for when the client is not known. */
static struct {
    uint64_t generation;
    unsigned flags;
} all_users;

/* One bit for each client id modulo its size: a client without it has never subscribed. */
static uint64_t subscribers[CACHE_ENTRIES / 64];
static bool transactions_change_users; /* a client has queued such a command */
static uint64_t called_for; /* client whose command calls another one, 0: none */
static server_dict *changing; /* clients whose transaction changes the user */

void access_forget_client(uint64_t client) {
    if (client == 0) generation++;
    cache[client & (CACHE_ENTRIES - 1)].generation = 0;
}

void access_forget_all(void) {
    generation++;
}

void access_note_pause(long long timeout_ms) {
    long long until_ms = sv.Milliseconds() + timeout_ms + PAUSE_ENDS_MS;
    if (until_ms > paused_until_ms) paused_until_ms = until_ms;
}

void access_note_unseen_pause(void) {
    is_unseen_pause = true;
    access_note_pause(0);
}

bool access_may_be_paused(void) {
    if (paused_until_ms == 0) return false;
    if (sv.Milliseconds() <= paused_until_ms) return true;
    if (is_unseen_pause && sv.AvoidReplicaTraffic()) {
        access_note_pause(0);
        return true;
    }
    is_unseen_pause = false;
    paused_until_ms = 0;
    generation++;
    return false;
}

void access_script_caller(uint64_t client) {
    if (client == 0 || script_callers[script_callers_seen % SCRIPT_CALLERS] == client) return;
    if (sv.GetContextFlags(detached) & SERVER_CTX_LUA) return; /* a script runs: this one is refused */
    script_callers[++script_callers_seen % SCRIPT_CALLERS] = client;
}

void access_look_for_script_caller(uint64_t client) {
    const server_client *caller = internals_script_caller();
    if (caller != NULL && internals_client(client) == caller)
        script_callers[++script_callers_seen % SCRIPT_CALLERS] = client;
}

/* The client for which the running script runs, 0 if not known.  A client that was seen is only a candidate. */
static uint64_t script_caller(void) {
    const server_client *caller = internals_script_caller();
    for (unsigned back = 0; caller != NULL && back < SCRIPT_CALLERS; back++) {
        uint64_t candidate = script_callers[(script_callers_seen - back) % SCRIPT_CALLERS];
        if (candidate != 0 && internals_client(candidate) == caller) return candidate;
    }
    return 0;
}

void access_user_may_change(uint64_t client) {
    departures_expect();
    if (changing == NULL) changing = sv.CreateDict(NULL);
    sv.DictSetC(changing, &client, sizeof client, changing);
}

void access_transaction_changes_users(void) {
    transactions_change_users = true;
}

void access_transaction_ends(uint64_t client) {
    if (changing != NULL) sv.DictDelC(changing, &client, sizeof client, NULL);
}

static bool user_may_change(uint64_t client) {
    return changing != NULL && sv.DictSize(changing) > 0 && sv.DictGetC(changing, &client, sizeof client, NULL) != NULL;
}

/* ---- asking the server ------------------------------------------------------------------------------------- */

/* A name that no program uses: random, the same as long as the server runs. */
static server_string *probe_name(void) {
    if (probe_text[0] == 0) {
        uint64_t random[2];
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            random[0] = random[1] = (uint64_t)(uintptr_t)&cache;
        snprintf(probe_text, sizeof probe_text, "%016llx%016llx", (unsigned long long)random[0],
                 (unsigned long long)random[1]);
    }
    return sv.CreateString(NULL, probe_text, strlen(probe_text));
}

/* The server's own verdict on a command about this channel. */
static bool command_allowed(server_string *user_name, int command, server_string *channel) {
    server_user *user = sv.GetModuleUserFromUserName(user_name);
    if (user == NULL) return false;
    server_string *words[4];
    int count = commands[command].count;
    for (int i = 0; i < count; i++) {
        const char *word = commands[command].words[i];
        words[i] = word == NULL ? sv.HoldString(NULL, channel) : sv.CreateString(NULL, word, strlen(word));
    }
    bool allowed = sv.ACLCheckCommandPermissions(user, words, count) == SERVER_OK;
    for (int i = 0; i < count; i++) sv.FreeString(NULL, words[i]);
    sv.FreeModuleUser(user);
    return allowed;
}

static bool key_allowed(server_string *user_name, server_string *key, uint64_t flags) {
    server_user *user = sv.GetModuleUserFromUserName(user_name);
    if (user == NULL) return false;
    bool allowed = sv.ACLCheckKeyPermissions(user, key, (int)flags) == SERVER_OK;
    sv.FreeModuleUser(user);
    return allowed;
}

static bool channel_allowed(server_string *user_name, server_string *channel, uint64_t flags) {
    server_user *user = sv.GetModuleUserFromUserName(user_name);
    if (user == NULL) return false;
    bool allowed = sv.ACLCheckChannelPermissions(user, channel, (int)flags) == SERVER_OK;
    sv.FreeModuleUser(user);
    return allowed;
}

/* May the user run these words as a command? */
static bool words_allowed(server_string *user_name, const char *const *words, int count) {
    enum { MOST_WORDS = 4 };
    server_user *user = user_name == NULL ? NULL : sv.GetModuleUserFromUserName(user_name);
    server_string *argv[MOST_WORDS];
    if (user == NULL) return false;
    for (int i = 0; i < count; i++) argv[i] = sv.CreateString(NULL, words[i], strlen(words[i]));
    bool allowed = sv.ACLCheckCommandPermissions(user, argv, count) == SERVER_OK;
    for (int i = 0; i < count; i++) sv.FreeString(NULL, argv[i]);
    sv.FreeModuleUser(user);
    return allowed;
}

static bool client_may_run(uint64_t client, const char *const *words, int count) {
    server_string *name = sv.GetClientUserNameById(detached, client);
    bool allowed = words_allowed(name, words, count);
    if (name != NULL) sv.FreeString(detached, name);
    return allowed;
}

bool access_may_pause(uint64_t client) {
    static const char *const words[] = {"CLIENT", "PAUSE", "1"};
    return client_may_run(client, words, 3);
}

bool access_may_unsubscribe(uint64_t client, push_kind kind) {
    static const char *const words[] = {
        [PUSH_CHANNEL] = "UNSUBSCRIBE", [PUSH_PATTERN] = "PUNSUBSCRIBE", [PUSH_SHARD] = "SUNSUBSCRIBE"};
    return client_may_run(client, &words[kind], 1);
}

/* Do the user's rules start from all commands ("+@all", minus some) rather than from none? */
static bool begins_with_all(server_string *user) {
    enum { RULES = 5 }; /* flags, and their array; passwords; commands */
    server_reply *reply = sv.Call(detached, "ACL", "cs", "GETUSER", user);
    server_reply *rules = reply == NULL ? NULL : sv.CallReplyArrayElement(reply, RULES);
    size_t len = 0;
    const char *text = rules == NULL ? NULL : sv.CallReplyStringPtr(rules, &len);
    bool all = text == NULL || (len >= 5 && memcmp(text, "+@all", 5) == 0);
    if (reply != NULL) sv.FreeCallReply(reply);
    return all;
}

/* Before 7.2 a module's command is in no category, so "-@dangerous" removes none of them.  A user with all commands may then
 * run those of this module only if the user also has the server's dangerous ones. */
static bool dangerous_allowed(server_string *user_name) {
    static const char *const words[] = {"REPLICAOF", "NO", "ONE"};
    enum { COUNT = sizeof words / sizeof words[0] };
    if (sv.SetCommandACLCategories != NULL) return true;
    return words_allowed(user_name, words, COUNT) || !begins_with_all(user_name);
}

static unsigned rights_of(server_string *user) {
    server_string *name = probe_name(); /* only patterns for everything match it */
    unsigned flags = 0;
    for (int command = 0; command < RUN_COUNT; command++)
        if (command_allowed(user, command, name)) flags |= 1u << command;
    if (key_allowed(user, name, SERVER_KEY_INSERT)) flags |= MAY_WRITE_ALL;
    if (key_allowed(user, name, SERVER_KEY_ACCESS)) flags |= MAY_READ_ALL;
    if (channel_allowed(user, name, SERVER_CHANNEL_SUBSCRIBE | SERVER_CHANNEL_PATTERN)) flags |= MAY_USE_ALL_CHANNELS;
    if (dangerous_allowed(user)) flags |= MAY_RUN_DANGEROUS;
    sv.FreeString(NULL, name);
    return flags;
}

/* ---- remembering ------------------------------------------------------------------------------------------- */

/* Another module may log the client in as another user at any time, without an event. */
static bool is_of_same_user(const verdict *entry) {
    if (!can.has_other_modules) return true;
    server_string *user = entry->user == NULL ? NULL : sv.GetClientUserNameById(detached, entry->client);
    if (user == NULL) return false;
    hmq_slice now = slice_of(user), then = slice_of(entry->user);
    bool same = hmq_slice_equal(now, then);
    sv.FreeString(detached, user);
    return same;
}

static void remember(verdict *entry, uint64_t client, server_string *user, unsigned flags) {
    if (entry->user != NULL) sv.FreeString(NULL, entry->user);
    *entry = (verdict){client, generation, NULL, flags};
    if (!can.has_other_modules) return;
    hmq_slice name = slice_of(user);
    entry->user = sv.CreateString(NULL, (const char *)name.data, name.len);
}

static unsigned verdict_on(uint64_t client) {
    verdict *entry = &cache[client & (CACHE_ENTRIES - 1)];
    bool remembers = !access_may_be_paused();
    bool is_known = remembers && entry->client == client && entry->generation == generation;
    if (is_known && is_of_same_user(entry)) return entry->flags;
    server_string *user = sv.GetClientUserNameById(detached, client);
    if (user == NULL) return UNKNOWN_CLIENT;
    unsigned flags = rights_of(user);
    if (remembers) remember(entry, client, user, flags);
    sv.FreeString(detached, user);
    return flags;
}

static unsigned verdict_on_all(void) {
    bool remembers = !access_may_be_paused();
    if (remembers && all_users.generation == generation) return all_users.flags;
    server_reply *users = sv.Call(detached, "ACL", "c", "USERS");
    for (size_t i = 0; users != NULL && i < sv.CallReplyLength(users); i++) {
        size_t len;
        const char *name = sv.CallReplyStringPtr(sv.CallReplyArrayElement(users, i), &len);
        server_string *user = sv.CreateString(NULL, name, len);
        unsigned flags = rights_of(user);
        all_users.flags = i == 0 ? flags : all_users.flags & flags;
        sv.FreeString(NULL, user);
    }
    if (users != NULL) sv.FreeCallReply(users);
    all_users.generation = remembers ? generation : 0;
    return all_users.flags;
}

/* The client of the running command: *client 0 if that cannot be known. */
static unsigned verdict_on_caller(server_ctx *ctx, uint64_t *client) {
    *client = sv.GetClientId(ctx);
    unsigned flags = verdict_on(*client);
    if (!(flags & UNKNOWN_CLIENT)) return flags;
    *client = script_caller();
    return *client == 0 ? verdict_on_all() : verdict_on(*client);
}

/* The same for a client that the filter saw. */
static unsigned verdict_on_seen(uint64_t *client) {
    unsigned flags = *client == 0 ? UNKNOWN_CLIENT : verdict_on(*client);
    if (!(flags & UNKNOWN_CLIENT)) return flags;
    *client = script_caller();
    return *client == 0 ? verdict_on_all() : verdict_on(*client);
}

/* ---- questions --------------------------------------------------------------------------------------------- */

static bool may_run(unsigned flags, uint64_t client, int command, server_string *channel) {
    if (flags & (1u << command)) return true;
    server_string *user = client == 0 ? NULL : sv.GetClientUserNameById(detached, client);
    if (user == NULL) return false;
    bool allowed = command_allowed(user, command, channel);
    sv.FreeString(detached, user);
    return allowed;
}

static bool may_use_key(unsigned flags, uint64_t client, server_string *key, unsigned all, uint64_t right) {
    if ((flags & all) == all) return true;
    server_string *user = client == 0 ? NULL : sv.GetClientUserNameById(detached, client);
    if (user == NULL) return false;
    bool allowed = key_allowed(user, key, right);
    sv.FreeString(detached, user);
    return allowed;
}

bool access_may_intercept(uint64_t client, server_string *channel, bool sharded) {
    unsigned flags = verdict_on_seen(&client);
    if (user_may_change(client)) return false;
    return may_run(flags, client, sharded ? RUN_SPUBLISH : RUN_PUBLISH, channel) &&
           may_run(flags, client, sharded ? RUN_CHANNEL_SPUBLISH : RUN_CHANNEL_PUBLISH, channel);
}

bool access_may_queue(uint64_t client, server_string *channel) {
    unsigned flags = verdict_on_seen(&client);
    return may_run(flags, client, RUN_QUEUED_SPUBLISH, channel);
}

bool access_may_publish_as(uint64_t client, server_string *channel, bool sharded) {
    unsigned flags = verdict_on_seen(&client);
    return !user_may_change(client) && may_run(flags, client, sharded ? RUN_SPUBLISH : RUN_PUBLISH, channel);
}

bool access_may_write_as(uint64_t client, server_string *key) {
    unsigned flags = verdict_on_seen(&client);
    return may_use_key(flags, client, key, MAY_WRITE_ALL, SERVER_KEY_INSERT);
}

bool access_may_see_held(uint64_t client, server_string *channel) {
    unsigned flags = verdict_on_seen(&client);
    return !user_may_change(client) && may_run(flags, client, RUN_READ, channel);
}

bool access_may_publish(server_ctx *ctx, server_string *channel, bool sharded) {
    uint64_t client;
    unsigned flags = verdict_on_caller(ctx, &client);
    if (client == 0) return true; /* the server has checked the command itself; the user is not known */
    return may_run(flags, client, sharded ? RUN_SPUBLISH : RUN_PUBLISH, channel);
}

bool access_may_write(server_ctx *ctx, server_string *key) {
    uint64_t client;
    unsigned flags = verdict_on_caller(ctx, &client);
    return may_use_key(flags, client, key, MAY_WRITE_ALL, SERVER_KEY_INSERT);
}

bool access_may_read_here(server_ctx *ctx, server_string *key) {
    uint64_t client;
    unsigned flags = verdict_on_caller(ctx, &client);
    return may_use_key(flags, client, key, MAY_READ_ALL, SERVER_KEY_ACCESS);
}

bool access_may_read(uint64_t client, server_string *key, bool taking) {
    unsigned flags = client == 0 ? verdict_on_all() : verdict_on(client);
    return may_use_key(flags, client, key, MAY_READ_ALL, SERVER_KEY_ACCESS) &&
           (!taking || may_use_key(flags, client, key, MAY_WRITE_ALL, SERVER_KEY_DELETE));
}

/* ---- who runs a command, and what is denied to them --------------------------------------------------------- */

/* Inside EXEC the user may change from one command to the next: nothing is remembered from one to the next. */
static unsigned verdict_now(uint64_t client, bool is_in_exec) {
    if (!is_in_exec) return verdict_on(client);
    server_string *user = sv.GetClientUserNameById(detached, client);
    if (user == NULL) return UNKNOWN_CLIENT;
    unsigned flags = rights_of(user);
    sv.FreeString(detached, user);
    return flags;
}

/* *client 0: a script runs, whose client cannot be known. */
static unsigned verdict_on_runner(server_ctx *ctx, uint64_t *client) {
    *client = sv.GetClientId(ctx);
    if (!transactions_change_users) {
        unsigned usual = verdict_on(*client);
        if (!(usual & UNKNOWN_CLIENT)) return usual;
    }
    int flags = sv.GetContextFlags(ctx);
    bool is_in_exec = (flags & SERVER_CTX_MULTI) != 0;
    unsigned known = verdict_now(*client, is_in_exec);
    if (known & UNKNOWN_CLIENT) {
        *client = called_for;
        known = called_for == 0 ? UNKNOWN_CLIENT : verdict_now(called_for, is_in_exec);
    }
    if (!(known & UNKNOWN_CLIENT)) return known;
    if (!(flags & SERVER_CTX_LUA)) return ~0U;
    *client = script_caller();
    return *client == 0 ? verdict_on_all() : verdict_now(*client, is_in_exec);
}

void access_run_calls_as(server_ctx *ctx) {
    called_for = ctx == NULL ? 0 : sv.GetClientId(ctx);
}

bool access_is_called(void) {
    return called_for != 0;
}

bool access_is_restricted(server_ctx *ctx, bool is_dangerous, server_string **user) {
    const unsigned all =
        MAY_WRITE_ALL | MAY_READ_ALL | MAY_USE_ALL_CHANNELS | (is_dangerous ? (unsigned)MAY_RUN_DANGEROUS : 0);
    uint64_t client;
    *user = NULL;
    if ((verdict_on_runner(ctx, &client) & all) == all) return false;
    if (client != 0) *user = sv.GetClientUserNameById(detached, client);
    return true;
}

server_string *access_user_of_runner(server_ctx *ctx) {
    uint64_t client;
    (void)verdict_on_runner(ctx, &client);
    return client == 0 ? NULL : sv.GetClientUserNameById(detached, client);
}

bool access_user_may_use_topic(server_string *user, hmq_slice topic, bool is_pattern) {
    if (user == NULL) return false;
    server_string *name = sv.CreateString(NULL, (const char *)topic.data, topic.len);
    bool may = channel_allowed(user, name, SERVER_CHANNEL_SUBSCRIBE | (is_pattern ? SERVER_CHANNEL_PATTERN : 0));
    sv.FreeString(NULL, name);
    return may;
}

bool access_user_may_use_key(server_string *user, server_string *key, uint64_t rights) {
    return user != NULL && key_allowed(user, key, rights);
}

bool access_user_may_read_all(server_string *user) {
    server_string *name = probe_name(); /* only patterns for everything match it */
    bool may = access_user_may_use_key(user, name, SERVER_KEY_ACCESS);
    sv.FreeString(NULL, name);
    return may;
}

bool access_user_may_run_dangerous(server_string *user) {
    return user != NULL && dangerous_allowed(user);
}

void access_note_refusal(server_ctx *ctx, server_string *user_name, hmq_slice object, int reason) {
    server_user *user = user_name == NULL ? NULL : sv.GetModuleUserFromUserName(user_name);
    if (user == NULL) return;
    server_string *name = sv.CreateString(NULL, (const char *)object.data, object.len);
    sv.ACLAddLogEntry(ctx, user, name, reason);
    sv.FreeString(NULL, name);
    sv.FreeModuleUser(user);
}

/* ---- subscribers that publish ------------------------------------------------------------------------------ */

void access_note_subscribe(uint64_t client) {
    uint64_t slot = client & (CACHE_ENTRIES - 1);
    subscribers[slot / 64] |= 1ULL << (slot % 64);
}

/* Only CLIENT LIST shows a client's protocol. */
static unsigned protocol_of(uint64_t client) {
    server_reply *reply = sv.Call(detached, "CLIENT", "ccl", "LIST", "ID", (long long)client);
    size_t len = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len);
    bool resp3 = text != NULL && memmem(text, len, " resp=3", 7) != NULL;
    if (reply != NULL) sv.FreeCallReply(reply);
    return resp3 ? SPEAKS_RESP3 : SPEAKS_RESP2;
}

bool access_is_resp2_subscriber(uint64_t client) {
    earlier_clients_look(client);
    uint64_t slot = client & (CACHE_ENTRIES - 1);
    if (!(subscribers[slot / 64] & (1ULL << (slot % 64)))) return false;
    server_client_info info = {.version = 1};
    if (sv.GetClientInfoById(&info, client) != SERVER_OK || !(info.flags & SERVER_CLIENT_PUBSUB)) return false;
    unsigned flags = verdict_on(client);
    if (!(flags & (SPEAKS_RESP2 | SPEAKS_RESP3))) {
        flags |= protocol_of(client);
        verdict *entry = &cache[slot];
        if (entry->client == client && entry->generation == generation) entry->flags = flags;
    }
    return (flags & SPEAKS_RESP2) != 0;
}

bool access_has_wildcard(hmq_slice filter) {
    return memchr(filter.data, '+', filter.len) != NULL || memchr(filter.data, '#', filter.len) != NULL;
}
