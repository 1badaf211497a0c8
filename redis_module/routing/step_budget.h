/* step_budget.h - what one command of many publishes may take: some milliseconds, measured in processor time.
 *
 *      p1 p2 p3 ... of TOPIC.PIPELINE, TOPIC.MPUBLISH
 *       └─ what has passed  +  what is gathered, at the measured price  +  this publish  >  the budget?  ──►  not now
 *
 * Gathered deliveries are made at the end, so their time is predicted: from what the last ones took.  That differs much: a
 * delivery into a full queue, which pushes another message out, takes three times as long as one into an empty queue. */
#ifndef HMQ_STEP_BUDGET_H
#define HMQ_STEP_BUDGET_H

#include "server/state.h"

/* The price of a delivery, in units of a message that is only pushed. */
size_t step_units(size_t bytes, uint8_t qos);

void step_budget_begin(void);
void step_budget_end(void);

/* May so many units be delivered in this step, too?  The first ones of a command always may.  `is_patient`: the publisher
 * sends again what is refused.  What others publish is delivered in steps then, which nothing holds back and which cost
 * more: so of theirs more is delivered in any case. */
bool step_budget_allows(size_t units, bool is_patient);

/* Has the command taken half of its time?  Then what remains is for one publish to very many sessions. */
bool step_budget_is_half_over(void);

/* Units that were noted, to be delivered later in the step.  Then all that is noted is about to be, and was, delivered. */
void step_budget_note(size_t units);
void step_budget_settle(void);
void step_budget_settled(void);

#endif
