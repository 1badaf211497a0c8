/* no_touch.h - which clients have CLIENT NO-TOUCH.  For them the command filter looks at no key.
 *
 * When a server finds a key, it checks whether the current client has NO-TOUCH, and which command it runs.  Before a
 * command runs there is no such command, and some servers crash (Valkey 8.0, Redis 8.0).  So work that needs a key is
 * left to a command of the module, which runs in place of the client's. */
#ifndef HMQ_NO_TOUCH_H
#define HMQ_NO_TOUCH_H

#include "server/state.h"

/* The client may have NO-TOUCH from now on, until it is gone. */
void no_touch_note(uint64_t client);
void no_touch_client_gone(uint64_t client);

/* May the filter look at keys before this client's command? */
bool no_touch_may_look(uint64_t client);

#endif
