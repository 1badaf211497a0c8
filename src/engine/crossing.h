/* crossing.h - publishes that cross the nodes of a cluster, in the order of each publisher (engine/lane.h). */
#ifndef HMQ_ENGINE_CROSSING_H
#define HMQ_ENGINE_CROSSING_H

#include "engine/lane.h"

/* Takes a publish, or the place of a denied one (no command).  False: no memory. */
bool hmq_crossing_add(hmq_engine *e, connection *c, const awaited *entry, const uint8_t *command,
                      const hmq_mqtt_packet *p);
bool hmq_crossing_uses(const connection *c, uint16_t packet_id); /* O(publishes that wait) */
bool hmq_crossing_is_busy(const connection *c); /* does it wait for a reply? */
size_t hmq_crossing_bytes(const connection *c);
void hmq_crossing_changed_link(connection *c);
void hmq_crossing_wake(hmq_engine *e, connection *c); /* tries what waits */
void hmq_crossing_wake_all(hmq_engine *e); /* O(connections) */
void hmq_crossing_forget(hmq_engine *e, connection *c);

/* Continues after a reply, or when something may have changed. */
void hmq_crossing_proceed(hmq_engine *e, connection *c);
/* The retained message is written: the other slots follow. */
void hmq_crossing_continue_after_write(hmq_engine *e, connection *c, crossing *x, uint64_t number);

#endif
