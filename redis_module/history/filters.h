/* filters.h - stores by topic filters. */
#ifndef HMQ_HISTORY_FILTERS_H
#define HMQ_HISTORY_FILTERS_H

#include "history/store.h"

/* The stores that may have a topic that this filter matches: how many, and the first of them. */
size_t history_stores_of_filter(const history_stores *stores, hmq_slice filter, const history_store **first);

/* Does the store keep every topic that this filter matches?  (One of its filters must; several together do not
 * count.) */
bool history_store_covers(const history_store *store, hmq_slice filter);
/* The store that does; NULL if none does. */
const history_store *history_stores_covering(const history_stores *stores, hmq_slice filter);

/* Is there a topic that both filters match? */
bool history_filters_overlap(hmq_slice a, hmq_slice b);

/* May the user see the store?  Only a user who may subscribe to all that it keeps. */
bool history_may_see(server_string *user, const history_store *store);

#endif
