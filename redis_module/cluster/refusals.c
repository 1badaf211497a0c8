/* refusals.c - which slots were refused on which connection. */
#include "cluster/refusals.h"

#include <string.h>

#include "base/assert.h"
#include "server/departures.h"
#include "server/errors.h"
#include "cluster/life.h"

static server_dict *connections; /* id -> hmq_slot_set, never an empty one; NULL: none yet */

static uint64_t called_for; /* 0: none */

/* The clients of scripts, and those that modules call commands with, have no connection and no user. */
static uint64_t connection_of(server_ctx *ctx) {
    if (sv.GetContextFlags(ctx) & SERVER_CTX_LUA) return 0;
    uint64_t id = sv.GetClientId(ctx);
    server_string *user = id == 0 ? NULL : sv.GetClientUserNameById(detached, id);
    if (user == NULL) return 0;
    sv.FreeString(detached, user);
    return id;
}

uint64_t refusals_connection(server_ctx *ctx) {
    return called_for != 0 ? called_for : connection_of(ctx);
}

void refusals_set_caller(server_ctx *ctx) {
    called_for = ctx == NULL ? 0 : connection_of(ctx);
}

static hmq_slot_set *find(uint64_t connection) {
    return connections == NULL ? NULL : sv.DictGetC(connections, &connection, sizeof connection, NULL);
}

const hmq_slot_set *refusals_of(uint64_t connection) {
    return find(connection);
}

size_t refusals_count(void) {
    return connections == NULL ? 0 : (size_t)sv.DictSize(connections);
}

static bool is_empty(const hmq_slot_set *slots) {
    uint64_t any = 0;
    for (size_t i = 0; i < HMQ_SLOTS / 64; i++) any |= slots->words[i];
    return any == 0;
}

void refusals_add(uint64_t connection, const hmq_slot_set *slots) {
    hmq_assert(connection != 0);
    if (is_empty(slots)) return;
    departures_expect();
    hmq_slot_set *refused = find(connection);
    if (refused == NULL) {
        if (connections == NULL) connections = sv.CreateDict(NULL);
        refused = sv.Calloc(1, sizeof *refused);
        sv.DictReplaceC(connections, &connection, sizeof connection, refused);
    }
    for (size_t i = 0; i < HMQ_SLOTS / 64; i++) refused->words[i] |= slots->words[i];
}

void refusals_client_gone(uint64_t connection) {
    hmq_slot_set *refused = find(connection);
    if (refused == NULL) return;
    sv.DictDelC(connections, &connection, sizeof connection, NULL);
    sv.Free(refused);
}

/* ---- ROUTE.RESUME ------------------------------------------------------------------------------------------- */

static bool take_slots(args *a, hmq_slot_set *slots) {
    long long slot;
    memset(slots, 0, sizeof *slots);
    while (args_left(a)) {
        if (!args_number(a, "slot", 0, HMQ_SLOTS - 1, &slot)) return false;
        hmq_slot_set_add(slots, (unsigned)slot, (unsigned)slot);
    }
    return true;
}

static void resume(uint64_t connection, const hmq_slot_set *slots) {
    hmq_slot_set *refused = find(connection);
    if (refused == NULL) return;
    for (size_t i = 0; i < HMQ_SLOTS / 64; i++) refused->words[i] &= ~slots->words[i];
    if (is_empty(refused)) refusals_client_gone(connection);
}

int route_resume_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    hmq_slot_set slots;
    if (!route_begin_look(&a) || !take_slots(&a, &slots)) return SERVER_OK;
    uint64_t connection = refusals_connection(ctx);
    if (connection == 0) return reply_error(ctx, ERROR_ROUTES_CONNECTION, "ROUTE.RESUME");
    resume(connection, &slots);
    sv.ReplyWithSimpleString(ctx, "OK");
    return SERVER_OK;
}
