/* quota.h - how much there may be of what clients make: sessions and retained messages, in total.
 *
 *     holdmq.max-sessions    opened sessions of a database, 0: no bound
 *     holdmq.max-retained    retained messages of a database, 0: no bound
 *
 * What there is stays, and can be changed: only what is new is refused (QUOTA), before anything is written.  O(log n). */
#ifndef HMQ_QUOTA_H
#define HMQ_QUOTA_H

#include "index.h"
#include "module.h"

/* May a session be opened that is not there?  False after replying QUOTA. */
bool quota_allows_session(server_ctx *ctx, hmq_slice session);

/* May the topic get a retained message?  False after replying QUOTA; with `reply` false only counted. */
bool quota_allows_retained(server_ctx *ctx, const index_t *index, hmq_slice topic, bool reply);

#endif
