/* overflow.h - what happens to a message for a queue that has no room for it.
 *
 *     holdmq.session-overflow       for all sessions
 *     {c}_session  overflow         for one session (SESSION.OPEN ... OVERFLOW)
 *                  max_bytes        the maximum bytes of its queue (SESSION.OPEN ... MAXBYTES), else holdmq.session-bytes
 *                  dropped          messages that the session lost by this
 *
 *     drop-oldest    the oldest queued messages are dropped, but none in flight
 *     drop-newest    the new message is dropped
 *     refuse         the publish is refused (QUOTA): nothing is stored, for any receiver
 *     wait           the publish is temporarily refused (QUEUEFULL): its publisher retries later
 *
 * Where no publisher can be refused (wills, presence, retained messages for a new subscription), refuse and wait drop the
 * new message.  The field `dropped` is written once a second at most, so a crash can lose one second's count. */
#ifndef HMQ_OVERFLOW_H
#define HMQ_OVERFLOW_H

#include "server/state.h"
#include "index/session_facts.h"

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
/* False: the text is not the name of a policy. */
bool overflow_of(hmq_slice text, overflow *policy);
static inline bool overflow_refuses(overflow policy) {
    return policy == OVERFLOW_REFUSE || policy == OVERFLOW_WAIT;
}

/* The session's own policy, or that of the setting. */
overflow overflow_of_session(const session_facts *facts);
/* SIZE_MAX: no bound. */
size_t overflow_bytes_of(const session_facts *facts);

#endif
