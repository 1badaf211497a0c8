/* access.c - remembers what users may do. */
#include "access.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define CACHE_ENTRIES 4096 /* power of two; two clients that meet in one entry evict each other */

enum {
    MAY_INTERCEPT = 1,
    MAY_INTERCEPT_SHARDED = 2,
    MAY_WRITE_ALL = 4, /* the user's key patterns match anything */
    SPEAKS_RESP2 = 16,
    SPEAKS_RESP3 = 32,
    UNKNOWN_CLIENT = 8 /* the id belongs to no connection: a script, another module, the replication stream */
};

typedef struct verdict {
    uint64_t client;
    uint64_t generation;
    unsigned flags;
} verdict;

static verdict cache[CACHE_ENTRIES];
static uint64_t generation = 1;
static uint64_t script_caller;
static char probe_name[40];
static struct {
    uint64_t generation;
    bool alike[2];  /* may all or none run PUBLISH (SPUBLISH) and its substitute? */
    bool write_all; /* may all write any key? */
} all_users;

/* One bit for each client id modulo its size: a client without it has never subscribed. */
static uint64_t subscribers[CACHE_ENTRIES / 64];

void access_forget_client(uint64_t client) {
    cache[client & (CACHE_ENTRIES - 1)].generation = 0;
}

void access_forget_all(void) {
    generation++;
}

void access_script_caller(uint64_t client) {
    script_caller = client;
}

/* Only patterns for everything match it. */
server_string *access_probe_name(void) {
    if (probe_name[0] == 0) {
        uint64_t random[2];
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
            random[0] = random[1] = (uint64_t)(uintptr_t)&cache;
        snprintf(probe_name, sizeof probe_name, "%016llx%016llx", (unsigned long long)random[0],
                 (unsigned long long)random[1]);
    }
    return sv.CreateString(NULL, probe_name, strlen(probe_name));
}

static bool ends_with(const char *text, size_t len, const char *end) {
    size_t n = strlen(end);
    return len >= n && memcmp(text + len - n, end, n) == 0;
}

/* The server's own verdict on the command, whatever the channel: refusals for a channel's sake end with "channel". */
static bool may_run(server_string *user, const char *command) {
    server_string *name = access_probe_name();
    server_reply *reply = sv.Call(detached, "ACL", "cscsc", "DRYRUN", user, command, name, "");
    bool allowed = false;
    if (reply != NULL && sv.CallReplyType(reply) == SERVER_REPLY_STRING) {
        size_t len;
        const char *text = sv.CallReplyStringPtr(reply, &len);
        allowed = (len == 2 && memcmp(text, "OK", 2) == 0) || ends_with(text, len, " channel");
    }
    if (reply != NULL) sv.FreeCallReply(reply);
    sv.FreeString(NULL, name);
    return allowed;
}

static bool may_write(server_string *user_name, server_string *key) {
    server_user *user = sv.GetModuleUserFromUserName(user_name);
    if (user == NULL) return false;
    bool allowed = sv.ACLCheckKeyPermissions(user, key, (int)SERVER_KEY_INSERT) == SERVER_OK;
    sv.FreeModuleUser(user);
    return allowed;
}

static unsigned judge(server_string *user) {
    server_string *name = access_probe_name();
    unsigned flags = 0;
    if (may_run(user, "PUBLISH") && may_run(user, "CHANNEL.PUBLISH")) flags |= MAY_INTERCEPT;
    if (may_run(user, "SPUBLISH") && may_run(user, "CHANNEL.SPUBLISH")) flags |= MAY_INTERCEPT_SHARDED;
    if (may_write(user, name)) flags |= MAY_WRITE_ALL;
    sv.FreeString(NULL, name);
    return flags;
}

static unsigned verdict_on(uint64_t client) {
    verdict *entry = &cache[client & (CACHE_ENTRIES - 1)];
    if (entry->client == client && entry->generation == generation) return entry->flags;
    server_string *user = sv.GetClientUserNameById(detached, client);
    unsigned flags = UNKNOWN_CLIENT;
    if (user != NULL) {
        flags = judge(user);
        sv.FreeString(detached, user);
        *entry = (verdict){client, generation, flags};
    }
    return flags;
}

/* Servers whose filter does not tell the client: rewrite only if no user would notice. */
static void judge_all_users(void) {
    all_users.generation = generation;
    all_users.alike[0] = all_users.alike[1] = all_users.write_all = true;
    server_reply *users = sv.Call(detached, "ACL", "c", "USERS");
    for (size_t i = 0; users != NULL && i < sv.CallReplyLength(users); i++) {
        size_t len;
        const char *name = sv.CallReplyStringPtr(sv.CallReplyArrayElement(users, i), &len);
        server_string *user = sv.CreateString(NULL, name, len);
        if (may_run(user, "PUBLISH") != may_run(user, "CHANNEL.PUBLISH")) all_users.alike[0] = false;
        if (may_run(user, "SPUBLISH") != may_run(user, "CHANNEL.SPUBLISH")) all_users.alike[1] = false;
        if (!(judge(user) & MAY_WRITE_ALL)) all_users.write_all = false;
        sv.FreeString(NULL, user);
    }
    if (users != NULL) sv.FreeCallReply(users);
}

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

bool access_may_intercept(uint64_t client, bool sharded) {
    if (client == 0) {
        if (all_users.generation != generation) judge_all_users();
        return all_users.alike[sharded];
    }
    unsigned flags = verdict_on(client);
    if (flags & UNKNOWN_CLIENT) flags = verdict_on(script_caller);
    return (flags & (sharded ? MAY_INTERCEPT_SHARDED : MAY_INTERCEPT)) != 0;
}

bool access_may_write(server_ctx *ctx, server_string *key) {
    uint64_t client = sv.GetClientId(ctx);
    unsigned flags = verdict_on(client);
    if ((flags & UNKNOWN_CLIENT) && !can.filter_client) { /* a script, and who called it is not known */
        if (all_users.generation != generation) judge_all_users();
        return all_users.write_all;
    }
    if (flags & UNKNOWN_CLIENT) {
        client = script_caller;
        flags = verdict_on(client);
    }
    if (flags & MAY_WRITE_ALL) return true;
    server_string *user = sv.GetClientUserNameById(detached, client);
    if (user == NULL) return false;
    bool allowed = may_write(user, key);
    sv.FreeString(detached, user);
    return allowed;
}
