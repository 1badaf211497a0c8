/* access.c - remembers what users may do. */
#include "access.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define CACHE_ENTRIES 4096 /* power of two; two clients that meet in one entry evict each other */

/* The commands that are judged; their answers take two bits each of a verdict's flags. */
enum { RUN_PUBLISH, RUN_CHANNEL_PUBLISH, RUN_SPUBLISH, RUN_CHANNEL_SPUBLISH, RUN_COUNT };
static const char *const command_names[RUN_COUNT] = {"PUBLISH", "CHANNEL.PUBLISH", "SPUBLISH", "CHANNEL.SPUBLISH"};
enum { ANSWER_NO = 0, ANSWER_YES = 1, ANSWER_DEPENDS = 2 /* on the channel */ };

enum {
    MAY_WRITE_ALL = 1 << 8, /* the user's key patterns match anything */
    MAY_READ_ALL = 1 << 9,
    SPEAKS_RESP2 = 1 << 10,
    SPEAKS_RESP3 = 1 << 11,
    UNKNOWN_CLIENT = 1 << 12 /* the id belongs to no connection: a script, another module, the replication stream */
};

typedef struct verdict {
    uint64_t client;
    uint64_t generation;
    unsigned flags;
} verdict;

static verdict cache[CACHE_ENTRIES];
static uint64_t generation = 1;
static uint64_t script_caller;
static char probe_text[40];
/* The flags that all users have in common, for when the client is not known. */
static struct {
    uint64_t generation;
    unsigned flags;
} all_users;

/* One bit for each client id modulo its size: a client without it has never subscribed. */
static uint64_t subscribers[CACHE_ENTRIES / 64];
static server_dict *changing; /* clients whose transaction changes the user */

void access_forget_client(uint64_t client) {
    if (client == 0) generation++;
    cache[client & (CACHE_ENTRIES - 1)].generation = 0;
}

void access_forget_all(void) {
    generation++;
}

void access_script_caller(uint64_t client) {
    server_client_info info = {.version = 1};
    if (sv.GetClientInfoById(&info, client) == SERVER_OK) script_caller = client; /* not the script itself */
}

void access_user_may_change(uint64_t client) {
    if (changing == NULL) changing = sv.CreateDict(NULL);
    sv.DictSetC(changing, &client, sizeof client, changing);
}

void access_transaction_ends(uint64_t client) {
    if (changing != NULL) sv.DictDelC(changing, &client, sizeof client, NULL);
}

static bool user_may_change(uint64_t client) {
    return changing != NULL && sv.DictSize(changing) > 0 && sv.DictGetC(changing, &client, sizeof client, NULL) != NULL;
}

/* ---- asking the server ------------------------------------------------------------------------------------- */

server_string *access_probe_name(void) {
    if (probe_text[0] == 0) {
        uint64_t random[2];
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            random[0] = random[1] = (uint64_t)(uintptr_t)&cache;
        snprintf(probe_text, sizeof probe_text, "%016llx%016llx", (unsigned long long)random[0],
                 (unsigned long long)random[1]);
    }
    return sv.CreateString(NULL, probe_text, strlen(probe_text));
}

static bool ends_with(const char *text, size_t len, const char *end) {
    size_t n = strlen(end);
    return len >= n && memcmp(text + len - n, end, n) == 0;
}

/* The server's own verdict; refusals for the channel's sake end with "channel". */
static unsigned dry_run(server_string *user, int command, server_string *channel) {
    server_reply *reply = sv.Call(detached, "ACL", "cscsc", "DRYRUN", user, command_names[command], channel, "");
    unsigned answer = ANSWER_NO;
    if (reply != NULL && sv.CallReplyType(reply) == SERVER_REPLY_STRING) {
        size_t len;
        const char *text = sv.CallReplyStringPtr(reply, &len);
        if (len == 2 && memcmp(text, "OK", 2) == 0)
            answer = ANSWER_YES;
        else if (ends_with(text, len, " channel"))
            answer = ANSWER_DEPENDS;
    }
    if (reply != NULL) sv.FreeCallReply(reply);
    return answer;
}

static bool key_allowed(server_string *user_name, server_string *key, uint64_t flags) {
    server_user *user = sv.GetModuleUserFromUserName(user_name);
    if (user == NULL) return false;
    bool allowed = sv.ACLCheckKeyPermissions(user, key, (int)flags) == SERVER_OK;
    sv.FreeModuleUser(user);
    return allowed;
}

static unsigned judge(server_string *user) {
    server_string *name = access_probe_name(); /* only patterns for everything match it */
    unsigned flags = 0;
    for (int command = 0; command < RUN_COUNT; command++) flags |= dry_run(user, command, name) << (2 * command);
    if (key_allowed(user, name, SERVER_KEY_INSERT)) flags |= MAY_WRITE_ALL;
    if (key_allowed(user, name, SERVER_KEY_ACCESS)) flags |= MAY_READ_ALL;
    sv.FreeString(NULL, name);
    return flags;
}

static unsigned answer_of(unsigned flags, int command) {
    return flags >> (2 * command) & 3u;
}

/* ---- remembering ------------------------------------------------------------------------------------------- */

static unsigned verdict_on(uint64_t client) {
    verdict *entry = &cache[client & (CACHE_ENTRIES - 1)];
    if (entry->client == client && entry->generation == generation) return entry->flags;
    server_string *user = sv.GetClientUserNameById(detached, client);
    if (user == NULL) return UNKNOWN_CLIENT;
    unsigned flags = judge(user);
    sv.FreeString(detached, user);
    *entry = (verdict){client, generation, flags};
    return flags;
}

/* What one user may and another may not depends on the user: then the answer is no. */
static unsigned common(unsigned a, unsigned b) {
    unsigned flags = a & b & (MAY_WRITE_ALL | MAY_READ_ALL);
    for (int command = 0; command < RUN_COUNT; command++) {
        if (answer_of(a, command) == answer_of(b, command)) flags |= answer_of(a, command) << (2 * command);
    }
    return flags;
}

static unsigned verdict_on_all(void) {
    if (all_users.generation == generation) return all_users.flags;
    server_reply *users = sv.Call(detached, "ACL", "c", "USERS");
    for (size_t i = 0; users != NULL && i < sv.CallReplyLength(users); i++) {
        size_t len;
        const char *name = sv.CallReplyStringPtr(sv.CallReplyArrayElement(users, i), &len);
        server_string *user = sv.CreateString(NULL, name, len);
        unsigned flags = judge(user);
        all_users.flags = i == 0 ? flags : common(all_users.flags, flags);
        sv.FreeString(NULL, user);
    }
    if (users != NULL) sv.FreeCallReply(users);
    all_users.generation = generation;
    return all_users.flags;
}

/* Who is behind the running command: *client 0 if that cannot be known. */
static unsigned verdict_on_caller(server_ctx *ctx, uint64_t *client) {
    *client = sv.GetClientId(ctx);
    unsigned flags = verdict_on(*client);
    if (!(flags & UNKNOWN_CLIENT)) return flags;
    *client = can.filter_client ? script_caller : 0;
    return *client == 0 ? verdict_on_all() : verdict_on(*client);
}

/* ---- questions --------------------------------------------------------------------------------------------- */

static bool may_run(unsigned flags, uint64_t client, int command, server_string *channel) {
    if (answer_of(flags, command) != ANSWER_DEPENDS) return answer_of(flags, command) == ANSWER_YES;
    server_string *user = client == 0 ? NULL : sv.GetClientUserNameById(detached, client);
    if (user == NULL) return false;
    bool allowed = dry_run(user, command, channel) == ANSWER_YES;
    sv.FreeString(detached, user);
    return allowed;
}

bool access_may_intercept(uint64_t client, server_string *channel, bool sharded) {
    unsigned flags = client == 0 ? verdict_on_all() : verdict_on(client);
    if (flags & UNKNOWN_CLIENT) flags = verdict_on(client = script_caller);
    if (user_may_change(client)) return false;
    return may_run(flags, client, sharded ? RUN_SPUBLISH : RUN_PUBLISH, channel) &&
           may_run(flags, client, sharded ? RUN_CHANNEL_SPUBLISH : RUN_CHANNEL_PUBLISH, channel);
}

bool access_may_publish(server_ctx *ctx, server_string *channel, bool sharded) {
    uint64_t client;
    unsigned flags = verdict_on_caller(ctx, &client);
    if (client == 0) return true; /* the server has judged the command itself; the user is not known */
    return may_run(flags, client, sharded ? RUN_SPUBLISH : RUN_PUBLISH, channel);
}

static bool may_use_key(unsigned flags, uint64_t client, server_string *key, unsigned all, uint64_t right) {
    if ((flags & all) == all) return true;
    server_string *user = client == 0 ? NULL : sv.GetClientUserNameById(detached, client);
    if (user == NULL) return false;
    bool allowed = key_allowed(user, key, right);
    sv.FreeString(detached, user);
    return allowed;
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

/* ---- subscribers that publish ------------------------------------------------------------------------------ */

void access_saw_subscribe(uint64_t client) {
    uint64_t slot = client & (CACHE_ENTRIES - 1);
    subscribers[slot / 64] |= 1ULL << (slot % 64);
}

/* CLIENT LIST is the only place that tells a client's protocol. */
static unsigned protocol_of(uint64_t client) {
    server_reply *reply = sv.Call(detached, "CLIENT", "ccl", "LIST", "ID", (long long)client);
    size_t len = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len);
    bool resp3 = text != NULL && memmem(text, len, " resp=3", 7) != NULL;
    if (reply != NULL) sv.FreeCallReply(reply);
    return resp3 ? SPEAKS_RESP3 : SPEAKS_RESP2;
}

bool access_is_resp2_subscriber(uint64_t client) {
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
