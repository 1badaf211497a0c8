/* earlier_clients.h - what clients did before the module saw commands: MULTI, SUBSCRIBE, MONITOR, CLIENT NO-TOUCH.
 *
 *     few clients     all of them are looked at when the module wakes
 *     many            each of them when the module first asks about it: looking at 10,000 at once would take 25 ms
 *
 * Ids of clients grow, so a client with a smaller id than one that was made when the module woke came before. */
#ifndef HMQ_EARLIER_CLIENTS_H
#define HMQ_EARLIER_CLIENTS_H

#include "server/state.h"

/* The module wakes.  `use` gets each flag of a client, with its letter in CLIENT LIST.  False: there are too many clients,
 * so any of them may have any flag. */
bool earlier_clients_begin(void (*use)(uint64_t client, char flag));

/* Smaller ids are of earlier clients; 0: all have been looked at. */
extern uint64_t earlier_clients_end;
void earlier_clients_look_at(uint64_t client);

/* To be called before what `use` has noted is asked of a client. */
static inline void earlier_clients_look(uint64_t client) {
    if (__builtin_expect(client < earlier_clients_end, 0)) earlier_clients_look_at(client);
}

#endif
