/* leave.h - ends hand-overs to a client that unsubscribes: at once, or when its transaction is executed. */
#ifndef HMQ_LEAVE_H
#define HMQ_LEAVE_H

#include "server/push.h"

/* No names: all of that kind. */
void leave_now(uint64_t client, push_kind kind, server_string **names, int count);
/* Inside MULTI: when the transaction ends with EXEC. */
void leave_later(uint64_t client, push_kind kind, server_string **names, int count);
void leave_transaction(uint64_t client, bool exec);

#endif
