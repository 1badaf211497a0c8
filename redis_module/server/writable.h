/* writable.h - does the server take writes of clients now?
 *
 * What it refuses to clients (MISCONF on a full disk, NOREPLICAS) the module must not do by itself: while an owner of
 * sessions cannot renew its lease, the lease must not run out. */
#ifndef HMQ_WRITABLE_H
#define HMQ_WRITABLE_H

#include <stdbool.h>

#include "server/api.h"

/* Asked outside of commands.  `thoroughly`: also whether it would refuse a client's write, by a call without effect.  Before
 * Redis 7.2 that call is an UNLINK that MONITOR shows, so nobody asks for it without a lease that may run out. */
bool writable_now(server_ctx *ctx, bool thoroughly);

#endif
