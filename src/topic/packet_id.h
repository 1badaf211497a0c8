/* packet_id.h - MQTT packet identifiers (1..65535, wrapping) and the serials that keep their order.
 *
 * A session hands out packet identifiers in a circle, never 0, never one that is still in use [MQTT-2.3.1-4; 5.0: 2.2.1-4].
 * Its messages are ordered by a serial that only grows.  The two are tied: in round r (0 at first, one more at
 * each wrap) the message with identifier p has the serial  r * 65535 + p,  so that the serial 65536 belongs to
 * identifier 1 of round 1 - the layout TBMQ 2.x uses for the scores of its sorted set. */
#ifndef HMQ_PACKET_ID_H
#define HMQ_PACKET_ID_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_PACKET_ID_MAX 65535

/* The identifier after `last`: 1 after 0 (nothing handed out yet) and after 65535. */
uint16_t hmq_packet_id_next(uint16_t last);

/* Is this identifier still in use?  Asked by hmq_packet_id_allocate. */
typedef bool (*hmq_packet_id_in_use)(void *context, uint16_t packet_id);

/* The next free identifier after `last`; 0 when all 65535 are in use.  *skipped (may be NULL): how many used ones were
 * skipped. */
uint16_t hmq_packet_id_allocate(uint16_t last, hmq_packet_id_in_use in_use, void *context, uint32_t *skipped);

/* round * 65535 + packet_id. */
uint64_t hmq_serial_of(uint64_t round, uint16_t packet_id);

/* The smallest round in which packet_id has a serial of at least `serial`. */
uint64_t hmq_serial_round(uint64_t serial, uint16_t packet_id);
/* cffi-end */

#endif
