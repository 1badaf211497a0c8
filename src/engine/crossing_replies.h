/* crossing_replies.h - takes the replies to visits and checks of publishes that cross nodes, their refusals and losses. */
#ifndef HMQ_ENGINE_CROSSING_REPLIES_H
#define HMQ_ENGINE_CROSSING_REPLIES_H

#include "engine/internal.h"

/* Handle the reply to the command at the head, of kind VISIT, CHECKS or RESUME.  False: the reply does not fit it. */
bool hmq_crossing_replied(hmq_engine *e, engine_link *l, hmq_slice reply);
bool hmq_crossing_batch_replied(hmq_engine *e, engine_link *l, hmq_slice reply);
void hmq_crossing_lost(hmq_engine *e, engine_link *l); /* before hmq_log_lost */

#endif
