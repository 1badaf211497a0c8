/* quota.h - limits the number of sessions and retained messages, in total and per user (index/usage.h).
 *
 *     holdmq.max-sessions             opened sessions of a database, 0: no maximum
 *     holdmq.max-retained             retained messages of a database, 0: no maximum
 *     holdmq.max-sessions-per-user    the same for one user; SESSION.OPEN ... USERSESSIONS: for the user that opens
 *     holdmq.max-retained-per-user    the same for one user; SESSION.OPEN ... USERRETAINED: for the user of the session
 *
 * Existing sessions and messages stay, and can be changed: only new ones are refused (QUOTA), before anything is
 * written.  So lowering a maximum removes nothing.  O(log n).
 *
 * A retained message counts for the user who published it last, if that user had room for another.  Otherwise it
 * still counts for its former user: no one gains room because another user, who has none, replaced a message. */
#ifndef HMQ_QUOTA_H
#define HMQ_QUOTA_H

#include "server/state.h"
#include "index/index.h"
#include "index/usage.h"

/* A user, and the user's own maximum. */
typedef struct quota_claim {
    hmq_slice identity; /* len 0: nobody */
    long long most; /* 0: no maximum; -1: the setting's */
} quota_claim;

/* May this user open a session that does not exist, or belongs to another user?  False after replying QUOTA. */
bool quota_allows_session(server_ctx *ctx, hmq_slice session, bool exists, const quota_claim *by);

/* The user of a client's session, with the user's maximum of retained messages.  Valid until the index changes. */
quota_claim quota_of_client(const index_t *index, hmq_slice client_id);

/* May the topic get a retained message of this user?  False after replying QUOTA; with `reply` false only counted. */
bool quota_allows_retained(server_ctx *ctx, const index_t *index, hmq_slice topic, const quota_claim *by, bool reply);

/* The user for whom the topic's retained message counts if this user publishes it; len 0: none. */
hmq_slice quota_retained_user(const index_t *index, hmq_slice topic, const quota_claim *by);

#endif
