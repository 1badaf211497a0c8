/* inflight.h - the messages of one session that its client has received and the server has not removed yet, by packet
 * identifier; private to the core.
 *
 *      SENT ──PUBACK──────────────────────────────────► ACK_DUE ──SESSION.ACK──► ACKING ──reply──► (gone)
 *      SENT0 ──its bytes were handed out─────────────────┘ (QoS 0)
 *      SENT2 ──PUBREC──► RELEASING ──reply──► RELEASED ──PUBCOMP──┘
 *
 * A hash table with linear probing, at most half full, without tombstones.  An empty table holds no memory.
 * Invariant: a packet identifier is in it once; 0 means none. */
#ifndef HMQ_INFLIGHT_H
#define HMQ_INFLIGHT_H

#include "base/base.h"

typedef enum inflight_state {
    INFLIGHT_SENT = 1,  /* QoS 1, PUBACK is awaited */
    INFLIGHT_SENT2 = 2, /* QoS 2, PUBREC is awaited */
    INFLIGHT_RELEASING = 3,
    INFLIGHT_RELEASED = 4, /* PUBREL was sent, PUBCOMP is awaited */
    INFLIGHT_ACK_DUE = 5,
    INFLIGHT_ACKING = 6,
    INFLIGHT_SENT0 = 7 /* QoS 0, in the output */
} inflight_state;

typedef struct inflight_entry {
    uint64_t serial;
    uint64_t mark; /* a hash of the message: serial and mark identify it */
    uint16_t packet_id;
    uint8_t state;
    bool unchecked; /* not yet compared with the server's message after a loss of the server */
    bool gone;      /* the server no longer has it: it must not be acknowledged there */
    bool released;  /* the server has released it: no SESSION.RELEASE is needed */
} inflight_entry;

typedef struct hmq_inflight {
    inflight_entry *entries;
    uint32_t room, count;
    uint32_t unacknowledged; /* in the states SENT to RELEASED */
} hmq_inflight;

/* NULL: the identifier is not in the table. */
inflight_entry *hmq_inflight_find(const hmq_inflight *table, uint16_t packet_id);
/* A new entry, in the given state; NULL when out of memory.  The identifier must not be in the table. */
inflight_entry *hmq_inflight_add(const hmq_allocator *allocator, hmq_inflight *table, uint16_t packet_id,
                                 uint8_t state);
void hmq_inflight_set_state(hmq_inflight *table, inflight_entry *entry, uint8_t state);
/* Moves other entries: pointers into the table are invalid afterwards. */
void hmq_inflight_remove(const hmq_allocator *allocator, hmq_inflight *table, inflight_entry *entry);
void hmq_inflight_free(const hmq_allocator *allocator, hmq_inflight *table);

static inline bool inflight_is_unacknowledged(uint8_t state) {
    return state <= INFLIGHT_RELEASED;
}

#endif
