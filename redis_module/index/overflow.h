/* overflow.h - what happens to a message for a queue that has no room for it.
 *
 *     holdmq.session-overflow       for all sessions
 *     {c}_session  overflow         for one session (SESSION.OPEN ... OVERFLOW)
 *                  max_bytes        the bound of its queue in bytes (SESSION.OPEN ... MAXBYTES), else holdmq.session-bytes
 *                  dropped          messages that this cost the session
 *
 *     drop-oldest    the oldest queued messages go, those in flight never
 *     drop-newest    the new message goes
 *     refuse         the publish is refused (QUOTA): nothing of it is stored, for nobody
 *     wait           the publish is refused for now (QUEUEFULL): its publisher sends it again a little later
 *
 * Where nobody can be refused (wills, presence, retained messages for a new subscription) refuse and wait drop the new
 * message.  The field `dropped` is written once in a second at most; what a crash takes of it is that second's. */
#ifndef HMQ_OVERFLOW_H
#define HMQ_OVERFLOW_H

#include "server/state.h"
#include "index/session_hash.h"

typedef enum overflow {
    OVERFLOW_DROP_OLDEST,
    OVERFLOW_DROP_NEWEST,
    OVERFLOW_REFUSE,
    OVERFLOW_WAIT,
    OVERFLOWS,
} overflow;

#define OVERFLOW_MAX_BYTES (1LL << 40)
#define OVERFLOW_EXPECTED "drop-oldest, drop-newest, refuse or wait"

const char *overflow_name(overflow policy);
/* False: the text names none. */
bool overflow_of(hmq_slice text, overflow *policy);
static inline bool overflow_refuses(overflow policy) {
    return policy == OVERFLOW_REFUSE || policy == OVERFLOW_WAIT;
}

/* What holds for the session: its own, or the setting. */
overflow overflow_of_session(const session_facts *facts);
/* SIZE_MAX: no bound. */
size_t overflow_bytes_of(const session_facts *facts);

#endif
