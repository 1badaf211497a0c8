/* crossing_confirm.h - withholds the answers to publishes that cross nodes until replicas have confirmed each visit. */
#ifndef HMQ_ENGINE_CROSSING_CONFIRM_H
#define HMQ_ENGINE_CROSSING_CONFIRM_H

#include "engine/lane.h"

/* Notes the visit at the head of the link, which was taken but for the slots that its reply names. */
void hmq_crossing_taken(hmq_engine *e, connection *c, crossing *x, engine_link *l, hmq_slice reply);
/* Enough replicas of the link's node have everything that it has replied to. */
void hmq_crossing_confirmed(hmq_engine *e, engine_link *l);
/* The node may be replaced by a replica that lacks what was not confirmed: it is sent again. */
void hmq_crossing_unconfirmed_lost(hmq_engine *e, engine_link *l);

#endif
