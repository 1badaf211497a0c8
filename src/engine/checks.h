/* checks.h - asks the publisher's node which slots have subscribers of a topic. */
#ifndef HMQ_ENGINE_CHECKS_H
#define HMQ_ENGINE_CHECKS_H

#include "engine/lane.h"

/* Asks the publisher's node with the next command of checks. */
void hmq_checks_add(hmq_engine *e, connection *c, crossing *x, uint64_t number);
/* The check's publish; NULL: its client is gone. */
crossing *hmq_checks_find(const hmq_engine *e, const hmq_bytes *checks, size_t index, connection **c, uint64_t *number);
/* Does the reply to the check before these also belong to the first of them? */
bool hmq_checks_share(const hmq_bytes *checks);
/* The connection is lost, with these checks. */
void hmq_checks_lost(hmq_engine *e, hmq_bytes *checks);
/* Sends the checks that are due. */
void hmq_checks_send(hmq_engine *e, engine_link *l);

#endif
