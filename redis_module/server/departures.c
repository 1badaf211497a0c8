/* departures.c - listens to clients that go, from the first time that this matters. */
#include "server/departures.h"

#include "server/awake.h"
#include "server/listening.h"

static void (*client_gone)(const server_client_info *client);

static void on_client_change(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event;
    if (sub == SERVER_CLIENT_DISCONNECTED) client_gone(data);
}

static event_listener changes = {.event = SERVER_EVENT_CLIENT_CHANGE, .handler = on_client_change};

void departures_start(void (*on_gone)(const server_client_info *client)) {
    client_gone = on_gone;
}

void departures_expect(void) {
    awake_follow();
    if (!changes.is_wanted) listening_set(&changes, true);
}
