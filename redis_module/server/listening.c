/* listening.c - subscribes to events of the server, and ends that. */
#include "server/listening.h"

#include "server/awake.h"

static event_listener *known;
static unsigned heard;

static void settle(event_listener *l) {
    if (l->is_heard == l->is_wanted) return;
    /* An older server refuses kinds that it does not know. */
    int done = sv.SubscribeToServerEvent(detached, (server_event){l->event, 1}, l->is_wanted ? l->handler : NULL);
    if (done != SERVER_OK) return;
    l->is_heard = l->is_wanted;
    if (l->is_heard)
        heard++;
    else
        heard--;
}

void listening_set(event_listener *listener, bool is_wanted) {
    if (!listener->is_known) {
        listener->is_known = true;
        listener->next = known;
        known = listener;
    }
    listener->is_wanted = is_wanted;
    if (is_following || listener->is_early) settle(listener);
}

unsigned listening_count(void) {
    return heard;
}

static void follow(void) {
    for (event_listener *l = known; l != NULL; l = l->next) settle(l);
}

void listening_start(void) {
    awake_add_follower(follow);
}
