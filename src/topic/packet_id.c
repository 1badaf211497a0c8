/* packet_id.c - the circle of packet identifiers and the serials above it.  Pure arithmetic; the only loop is
 * bounded by the 65535 identifiers there are. */
#include "topic/packet_id.h"

uint16_t hmq_packet_id_next(uint16_t last) {
    return last == HMQ_PACKET_ID_MAX ? 1 : (uint16_t)(last + 1);
}

uint16_t hmq_packet_id_allocate(uint16_t last, hmq_packet_id_in_use in_use, void *context, uint32_t *skipped) {
    uint16_t candidate = last;
    for (uint32_t passed = 0; passed < HMQ_PACKET_ID_MAX; passed++) {
        candidate = hmq_packet_id_next(candidate);
        if (in_use(context, candidate)) continue;
        if (skipped) *skipped = passed;
        return candidate;
    }
    if (skipped) *skipped = HMQ_PACKET_ID_MAX;
    return 0;
}

uint64_t hmq_serial_of(uint64_t round, uint16_t packet_id) {
    return round * HMQ_PACKET_ID_MAX + packet_id;
}

uint64_t hmq_serial_round(uint64_t serial, uint16_t packet_id) {
    if (serial <= packet_id) return 0;
    uint64_t above = serial - packet_id;
    return above / HMQ_PACKET_ID_MAX + (above % HMQ_PACKET_ID_MAX != 0); /* rounded up without an overflow */
}
