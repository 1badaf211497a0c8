/* unloading.h - why the server unloads the module: a client asks for it, or the server is on its way out.
 *
 * Until a command MODULE was seen, no client can have asked. */
#ifndef HMQ_UNLOADING_H
#define HMQ_UNLOADING_H

#include "server/state.h"

/* A client sent MODULE UNLOAD, or may have. */
void unloading_note_command(void);
/* May a client have asked?  False while the server shuts down. */
bool unloading_may_be_asked_for(void);

#endif
