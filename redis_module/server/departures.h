/* departures.h - hears which clients have gone.
 *
 * Invariant: whoever remembers something of a client that must be forgotten when it goes calls departures_expect first. */
#ifndef HMQ_DEPARTURES_H
#define HMQ_DEPARTURES_H

#include "server/state.h"

void departures_start(void (*on_gone)(const server_client_info *client));
void departures_expect(void);

#endif
