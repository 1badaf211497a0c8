/* quota.h - how much there may be of what clients make: sessions and retained messages, in total and of one user (index/usage.h).
 *
 *     holdmq.max-sessions             opened sessions of a database, 0: no bound
 *     holdmq.max-retained             retained messages of a database, 0: no bound
 *     holdmq.max-sessions-per-user    the same of one user; SESSION.OPEN ... USERSESSIONS: of the user that opens
 *     holdmq.max-retained-per-user    the same of one user; SESSION.OPEN ... USERRETAINED: of the user of the session
 *
 * What there is stays, and can be changed: only what is new is refused (QUOTA), before anything is written.  So a bound that
 * is lowered below what there is takes nothing away.  O(log n).
 *
 * A retained message counts for the user who published it last, if he had room for one more; else it stays with the user that
 * it counted for: nobody's room grows because somebody else, who has none, replaced what he had. */
#ifndef HMQ_QUOTA_H
#define HMQ_QUOTA_H

#include "server/state.h"
#include "index/index.h"
#include "index/usage.h"

/* A user, and his own bound. */
typedef struct quota_claim {
    hmq_slice identity; /* len 0: nobody */
    long long most; /* 0: no bound; -1: the setting's */
} quota_claim;

/* May a session be opened by this user, that is not there, or is another one's?  False after replying QUOTA. */
bool quota_allows_session(server_ctx *ctx, hmq_slice session, bool exists, const quota_claim *by);

/* The user of the session of a client; his bound for retained messages.  It stands until the index changes. */
quota_claim quota_of_client(const index_t *index, hmq_slice client_id);

/* May the topic get a retained message of this user?  False after replying QUOTA; with `reply` false only counted. */
bool quota_allows_retained(server_ctx *ctx, const index_t *index, hmq_slice topic, const quota_claim *by, bool reply);

/* For whom the topic's retained message counts if this user publishes it; len 0: for nobody. */
hmq_slice quota_holder(const index_t *index, hmq_slice topic, const quota_claim *by);

#endif
