/* session.h - the SESSION.* commands, and what routing needs of them.
 *
 * {c}_session is a hash: owner, epoch, connected (0/1), expiry (s), lease (s), and what index/session_hash.h, session/life.h,
 * session/identity.h and session/will.h say.
 *
 * Invariants:
 *  1. Epochs only grow, also over a drop: each is the larger of the last one + 1 and the clock in ms.
 *  2. While a session is open, its keys end at now + expiry + lease, renewed by SESSION.TOUCH, or, if its owner beats
 *     (session/owner.h), not before that one is lost; once closed, at now + expiry.  So nothing stays for ever, whoever crashed. */
#ifndef HMQ_SESSION_H
#define HMQ_SESSION_H

#include "server/state.h"
#include "queue/queue.h"

int session_open_command(server_ctx *ctx, server_string **argv, int argc);
int session_touch_command(server_ctx *ctx, server_string **argv, int argc);
int session_close_command(server_ctx *ctx, server_string **argv, int argc);
int session_drop_command(server_ctx *ctx, server_string **argv, int argc);
int session_info_command(server_ctx *ctx, server_string **argv, int argc);

/* What {c}_session says. */
typedef struct session_state {
    bool exists; /* was opened, and is not over */
    bool over;   /* past `ends`, though its keys still stand */
    bool connected;
    bool has_will;
    bool shares;  /* has, or had, a shared subscription */
    bool refuses; /* its policy may refuse messages (queue/overflow.h) */
    long long epoch;
    long long expiry_s;
    long long lease_s;
    long long ends_ms;       /* 0: with its keys */
    long long will_due_ms;   /* 0: the connection stands, or there is no will */
    long long window;        /* see routing/share.h */
    uint64_t qos0_until;     /* see routing/qos0.h */
    long long user_bytes, user_retained; /* bounds of its user (routing/quota.h): 0: none, -1: not said */
    long long owner_lease_s; /* of an owner that beats; 0: it did not when it opened the session */
    long long expire_ms; /* of the hash, SERVER_NO_EXPIRE if none */
    server_string *owner;    /* NULL if none; freed by session_state_free */
    server_string *identity; /* the same: to whom it belongs (session/identity.h) */
} session_state;

/* All zero if there is no such hash. */
void session_state_peek(server_ctx *ctx, hmq_slice session, session_state *state);

/* When the module has something to do about it (ms since 1970), 0: never. */
long long session_state_due(const session_state *state);

/* False after replying WRONGTYPE. */
bool session_state_read(server_ctx *ctx, hmq_slice session, session_state *state);
void session_state_free(session_state *state);

/* "EPOCH e" right behind the session key: steps over it and compares.  False after replying FENCED, NOSESSION or a
 * syntax error. */
struct args;
bool session_check_epoch(struct args *a, hmq_slice session);

/* Is this the session's current epoch (0: not asked)?  False after replying FENCED or NOSESSION. */
bool session_require_epoch(server_ctx *ctx, hmq_slice session, long long epoch);
/* The usual case of it, without opening a key or replying: true if the index says so. */
bool session_is_owner(server_ctx *ctx, hmq_slice session, long long epoch);

#endif
