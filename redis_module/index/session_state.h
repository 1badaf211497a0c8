/* session_state.h - what the hash {c}_session says of the session's life cycle. */
#ifndef HMQ_SESSION_STATE_H
#define HMQ_SESSION_STATE_H

#include "server/state.h"

#define MAX_EXPIRY_S 4294967295LL
#define MAX_EPOCH ((1LL << 53) - 1)
#define MAX_TIME_MS ((1LL << 48) - 1)

/* What {c}_session says. */
typedef struct session_state {
    bool exists; /* was opened, and is not over */
    bool over;   /* past `ends`, although its keys still exist */
    bool connected;
    bool has_will;
    bool shares;  /* has, or had, a shared subscription */
    bool refuses; /* its policy may refuse messages (index/overflow.h) */
    bool gives_back; /* messages of it go to other members of its groups, in portions (routing/share_leave.h) */
    bool ending; /* ... and the session is over (session/life.h) */
    long long epoch;
    long long expiry_s;
    long long lease_s;
    long long ends_ms; /* 0: with its keys */
    long long will_due_ms; /* 0: the client is connected, or there is no will */
    long long window; /* see routing/share.h */
    uint64_t qos0_until; /* see routing/qos0.h */
    long long user_bytes, user_retained; /* maxima of its user (routing/quota.h): 0: none, -1: not given */
    long long owner_lease_s; /* the lease of its owner; 0: the owner had none when it opened the session */
    long long expire_ms; /* of the hash, SERVER_NO_EXPIRE if none */
    server_string *owner; /* NULL if none; freed by session_state_free */
    server_string *identity; /* the same: the identity to which it belongs (session/identity.h) */
} session_state;

/* All zero if there is no such hash. */
void session_state_peek(server_ctx *ctx, hmq_slice session, session_state *state);

/* When the module must act on the session (ms since 1970); 0: never. */
long long session_state_due(const session_state *state);

/* False after replying WRONGTYPE. */
bool session_state_read(server_ctx *ctx, hmq_slice session, session_state *state);
void session_state_free(session_state *state);

/* The identity to which the session belongs; len 0: none, or the field is not a valid name. */
hmq_slice identity_of(const session_state *state);

#endif
