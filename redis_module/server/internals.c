/* internals.c - finds and calls the server's own functions. */
#include "server/internals.h"

#include <dlfcn.h>
#include <string.h>

static struct {
    server_client *(*lookup)(uint64_t id);
    void (*message)(server_client *, server_string *channel, server_string *message, server_string *kind);
    void (*pattern_message)(server_client *, server_string *pattern, server_string *channel, server_string *message);
    int (*subscriptions)(server_client *);
    size_t (*output_bytes)(server_client *);
    server_client *(*script_caller)(void);
    int (*auth_required)(server_client *);
    int (*subscribed)(void);
    int (*shard_subscribed)(void);
    void (*enter_unit)(int update_time, long long us);
    void (*exit_unit)(void);
    void (*after_command)(server_client *);
    void *(*node_of_slot)(int slot);
    void *(*own_node)(void);
    void *(*target_of_slot)(int slot);
    int (*node_has_slot)(void *node, int slot); /* before Redis 7.2 */
    void **own;
    int (*publish_here)(server_string *channel, server_string *message, int sharded);
    const char *(*node_name)(void *node);
} internal;

void internals_start(void) {
    static const struct {
        const char *name;
        void *slot;
        bool for_pushes;
    } functions[] = {{"lookupClientByID", &internal.lookup, true},
                     {"addReplyPubsubMessage", &internal.message, true},
                     {"addReplyPubsubPatMessage", &internal.pattern_message, true},
                     {"clientTotalPubSubSubscriptionCount", &internal.subscriptions, true},
                     {"getClientOutputBufferMemoryUsage", &internal.output_bytes, true},
                     {"scriptGetCaller", &internal.script_caller, false},
                     {"authRequired", &internal.auth_required, false},
                     {"serverPubsubSubscriptionCount", &internal.subscribed, false},
                     {"serverPubsubShardSubscriptionCount", &internal.shard_subscribed, false},
                     {"enterExecutionUnit", &internal.enter_unit, false},
                     {"exitExecutionUnit", &internal.exit_unit, false},
                     {"afterCommand", &internal.after_command, false},
                     {"getNodeBySlot", &internal.node_of_slot, false},
                     {"getMyClusterNode", &internal.own_node, false},
                     {"getMigratingSlotDest", &internal.target_of_slot, false},
                     {"clusterNodeGetSlotBit", &internal.node_has_slot, false},
                     {"myself", &internal.own, false},
                     {"pubsubPublishMessage", &internal.publish_here, false},
                     {"clusterNodeGetName", &internal.node_name, false}};
    bool all = true;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *found = dlsym(RTLD_DEFAULT, functions[i].name);
        memcpy(functions[i].slot, &found, sizeof found);
        all = all && (found != NULL || !functions[i].for_pushes);
    }
    can.direct_push = all && can.filter_client;
}

server_client *internals_client(uint64_t id) {
    return internal.lookup(id);
}

void internals_push(server_client *client, server_string *channel, server_string *message, server_string *kind) {
    internal.message(client, channel, message, kind);
}

void internals_push_pattern(server_client *client, server_string *pattern, server_string *channel,
                            server_string *message) {
    internal.pattern_message(client, pattern, channel, message);
}

int internals_subscriptions(server_client *client) {
    return internal.subscriptions(client);
}

size_t internals_output_bytes(server_client *client) {
    return internal.output_bytes(client);
}

bool internals_output_of(uint64_t client, size_t *bytes) {
    if (internal.lookup == NULL || internal.output_bytes == NULL) return false;
    server_client *c = internal.lookup(client);
    if (c != NULL) *bytes = internal.output_bytes(c);
    return c != NULL;
}

/* The server's function may be called only while a script runs. */
server_client *internals_script_caller(void) {
    if (internal.script_caller == NULL || internal.lookup == NULL) return NULL;
    return sv.GetContextFlags(detached) & SERVER_CTX_LUA ? internal.script_caller() : NULL;
}

bool internals_is_authenticated(uint64_t client) {
    if (internal.auth_required == NULL || internal.lookup == NULL) return false;
    server_client *c = internal.lookup(client);
    return c != NULL && !internal.auth_required(c);
}

bool internals_nobody_subscribes(bool sharded) {
    int (*count)(void) = sharded ? internal.shard_subscribed : internal.subscribed;
    return count != NULL && count() == 0;
}

bool internals_knows_units(void) {
    return internal.lookup != NULL && internal.enter_unit != NULL && internal.exit_unit != NULL &&
           internal.after_command != NULL;
}

void internals_begin_unit(void) {
    internal.enter_unit(1, 0);
}

void internals_end_unit(server_client *client) {
    internal.exit_unit();
    internal.after_command(client);
}

static bool can_read_moves(void) {
    return internal.node_of_slot != NULL && internal.own_node != NULL && internal.target_of_slot != NULL;
}

bool internals_can_read_slots(void) {
    return can_read_moves() || (internal.node_has_slot != NULL && internal.own != NULL);
}

static bool has_slot(unsigned slot, const void *own) {
    if (can_read_moves()) return internal.node_of_slot((int)slot) == own && internal.target_of_slot((int)slot) == NULL;
    return internal.node_has_slot(*internal.own, (int)slot) != 0;
}

static const void *own_node(void) {
    return internal.own_node != NULL ? internal.own_node() : NULL;
}

bool internals_serve_slot(unsigned slot) {
    return has_slot(slot, own_node());
}

bool internals_serve_slots(unsigned first, uint64_t slots) {
    const void *own = own_node();
    for (; slots != 0; slots &= slots - 1) {
        if (!has_slot(first + (unsigned)__builtin_ctzll(slots), own)) return false;
    }
    return true;
}

bool internals_publish_here(server_string *channel, server_string *message, int *heard) {
    if (internal.publish_here == NULL) return false;
    *heard = internal.publish_here(channel, message, 0);
    return true;
}

bool internals_slot_is_of(unsigned slot, const char *id, size_t len) {
    if (internal.node_of_slot == NULL || internal.node_name == NULL) return false;
    void *node = internal.node_of_slot((int)slot);
    return node != NULL && memcmp(internal.node_name(node), id, len) == 0;
}
