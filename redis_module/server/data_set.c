/* data_set.c - knows when changes of all data are to be listened to. */
#include "server/data_set.h"

#include "server/listening.h"

static event_listener loads = {.event = SERVER_EVENT_LOADING};
static event_listener flushes = {.event = SERVER_EVENT_FLUSHDB};
static event_listener swaps = {.event = SERVER_EVENT_SWAPDB};

static bool may_change_unseen, flush_was_seen, swap_was_seen;

static void settle(void) {
    listening_set(&loads, may_change_unseen);
    listening_set(&flushes, may_change_unseen || flush_was_seen || !can.flush_commands);
    listening_set(&swaps, may_change_unseen || swap_was_seen || !can.swap_command);
}

void data_set_on_load(server_event_handler handler) {
    loads.handler = handler;
}

void data_set_on_flush(server_event_handler handler) {
    flushes.handler = handler;
}

void data_set_on_swap(server_event_handler handler) {
    swaps.handler = handler;
}

void data_set_may_change_unseen(bool may) {
    may_change_unseen = may;
    settle();
}

void data_set_note_flush(void) {
    if (flush_was_seen) return;
    flush_was_seen = true;
    settle();
}

void data_set_note_swap(void) {
    if (swap_was_seen) return;
    swap_was_seen = true;
    settle();
}
