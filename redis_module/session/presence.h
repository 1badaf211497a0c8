/* presence.h - announces clients that come and go (setting holdmq.presence), as a JSON object
 *
 *     {"client": id, "event": "connected" or "disconnected", "time": ms since 1970, "owner": name, "epoch": n, "reason": text}
 *
 * published to the topic $SYS/clients/<id>/<event> (QoS 1, not retained; '/', '+', '#' and '%' in the id
 * percent-encoded) and to the channel holdmq:presence, in the step in which it happens. */
#ifndef HMQ_PRESENCE_H
#define HMQ_PRESENCE_H

#include "server/state.h"

typedef struct presence {
    hmq_slice session;          /* session key */
    const server_string *owner; /* NULL: not known */
    long long epoch;
    bool connected;             /* else disconnected */
    const char *reason;         /* a literal */
} presence;

void presence_announce(server_ctx *ctx, const presence *what);

#endif
