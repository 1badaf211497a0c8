/* earlier_clients.c - looks at the clients that were there before the module. */
#include "server/earlier_clients.h"

#include <stdlib.h>

#include "server/client_flags.h"
#include "server/internals.h"

#define FEW 500 /* about 1 ms */
#define SEEN_LAST 1024

uint64_t earlier_clients_end;

static void (*use_flag)(uint64_t client, char flag);
static server_dict *seen; /* ids of those that were looked at; there are no more than came before */
static uint64_t seen_last[SEEN_LAST]; /* the same for the last one of each remainder: a faster answer */

/* Not by a command, which MONITOR and the statistics would show. */
static bool are_few(void) {
    server_info_data *info = sv.GetServerInfo(detached, "clients");
    const char *text = sv.ServerInfoGetFieldC(info, "connected_clients");
    bool few = text != NULL && strtol(text, NULL, 10) <= FEW;
    sv.FreeServerInfo(detached, info);
    return few;
}

/* A context has a client of its own, which gets the next id. */
static uint64_t next_id(void) {
    server_ctx *ctx = sv.GetDetachedThreadSafeContext(detached);
    uint64_t id = sv.GetClientId(ctx);
    sv.FreeThreadSafeContext(ctx);
    return id;
}

/* A running script hides whose client it runs for: then all are compared with it. */
bool earlier_clients_begin(void (*use)(uint64_t client, char flag)) {
    use_flag = use;
    if (are_few() || internals_script_caller() != NULL) {
        client_flags_each(detached, use);
        return true;
    }
    seen = sv.CreateDict(NULL);
    earlier_clients_end = next_id();
    return false;
}

void earlier_clients_look_at(uint64_t client) {
    uint64_t *last = &seen_last[client % SEEN_LAST];
    if (*last == client) return;
    *last = client;
    if (sv.DictSetC(seen, &client, sizeof client, seen) == SERVER_OK) client_flags_of(detached, client, use_flag);
}
