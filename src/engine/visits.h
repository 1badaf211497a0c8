/* visits.h - sends a publish to the nodes of its slots, and finds the slots that it has still to be sent to. */
#ifndef HMQ_ENGINE_VISITS_H
#define HMQ_ENGINE_VISITS_H

#include "engine/lane.h"

/* Sends it to all slots of its answer. */
void hmq_visits_send_all(hmq_engine *e, connection *c, crossing *x, uint64_t number);
/* Sends it to those of these slots that may be sent to now; the others stay `left`. */
void hmq_visits_send(hmq_engine *e, connection *c, crossing *x, uint64_t number, const slot_range *ranges,
                     size_t count);
void hmq_visits_send_left(hmq_engine *e, connection *c, crossing *x, uint64_t number);
/* Those slots of the answer that it was not sent to become `left`.  `former`: the answer that it was sent by; or NULL. */
bool hmq_visits_add_missing(hmq_engine *e, crossing *x, const route_answer *now, const route_answer *former);
/* All slots that the command of the visit names become `left`.  `blocking`: the link that refused them; NULL: they are not
 * blocked. */
void hmq_visits_leave(hmq_engine *e, connection *c, crossing *x, engine_link *blocking, hmq_slice command);
/* The same for a visit that was not executed, so that a publish of QoS 0 is sent again, too. */
void hmq_visits_return(hmq_engine *e, connection *c, crossing *x, hmq_slice command);
/* Calls `take` with the ranges of slots that the command of a visit names. */
void hmq_visits_each_slot(const uint8_t *command, size_t len, uint32_t body_words,
                          void (*take)(void *, uint32_t, uint32_t), void *context);

#endif
