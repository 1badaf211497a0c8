/* slot.h - the slot of a key in a cluster, and sets of slots.
 *
 * A cluster distributes keys to its nodes by slot: the CRC16 of the key (polynomial 0x1021, initial value 0, as
 * XMODEM uses it) modulo 16384.  If the text between the first '{' and the next '}' is not empty, only that text
 * counts (cluster specification of Redis and Valkey, "Hash tags"). */
#ifndef HMQ_SLOT_H
#define HMQ_SLOT_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_SLOTS 16384

/* The slot of a key, 0 .. HMQ_SLOTS - 1. */
uint16_t hmq_slot_of(const char *key, size_t len);

/* The smallest number whose decimal digits are in the slot.  The first call searches those of all slots (some milliseconds). */
unsigned hmq_slot_tag(unsigned slot);
/* cffi-end */

/* A set of slots: 2 KiB, no memory of its own. */
typedef struct hmq_slot_set {
    uint64_t words[HMQ_SLOTS / 64];
} hmq_slot_set;

/* Both ends included; first <= last < HMQ_SLOTS. */
void hmq_slot_set_add(hmq_slot_set *set, unsigned first, unsigned last);
bool hmq_slot_set_has(const hmq_slot_set *set, unsigned slot);

#endif
