/* no_touch.c - remembers which clients have CLIENT NO-TOUCH. */
#include "server/no_touch.h"

#include "server/departures.h"
#include "server/earlier_clients.h"

static server_dict *clients; /* ids; NULL: no client has used NO-TOUCH yet */

void no_touch_note(uint64_t client) {
    if (client == 0) return;
    departures_expect();
    if (clients == NULL) clients = sv.CreateDict(NULL);
    sv.DictReplaceC(clients, &client, sizeof client, clients);
}

void no_touch_client_gone(uint64_t client) {
    if (clients != NULL) sv.DictDelC(clients, &client, sizeof client, NULL);
}

bool no_touch_may_look(uint64_t client) {
    earlier_clients_look(client);
    return clients == NULL || sv.DictGetC(clients, &client, sizeof client, NULL) == NULL;
}
