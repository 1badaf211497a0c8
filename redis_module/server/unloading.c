/* unloading.c - listens to the server's end once a client may have asked to unload the module. */
#include "server/unloading.h"

#include "server/listening.h"

static bool is_shutting_down;

static void on_shutdown(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event, (void)sub, (void)data;
    is_shutting_down = true;
}

static event_listener end = {.event = SERVER_EVENT_SHUTDOWN, .handler = on_shutdown, .is_early = true};

void unloading_note_command(void) {
    if (!end.is_wanted) listening_set(&end, true);
}

bool unloading_may_be_asked_for(void) {
    return end.is_wanted && !is_shutting_down;
}
