/* filter_unit.c - the unit of work of the command filter. */
#include "server/filter_unit.h"

#include "server/internals.h"

static uint64_t client_id; /* the client whose command is about to run; 0: none */

void filter_unit_client(uint64_t client) {
    client_id = client;
}

void filter_unit_no_client(void) {
    client_id = 0;
}

/* A script, another module or the append-only file has no client that waits. */
static server_client *waiting_client(void) {
    return client_id == 0 || !internals_knows_units() ? NULL : internals_client(client_id);
}

bool filter_unit_begin(void) {
    if (waiting_client() == NULL) return false;
    internals_begin_unit();
    return true;
}

void filter_unit_end(void) {
    internals_end_unit(waiting_client());
}
