/* packed_page.h - a page of a session's queue in one string: the reply of SESSION.FETCH ... PACKED instead of an
 * array of entries, written by the module and read by the engine.
 *
 * ENTRIES, one after the other, oldest first (all integers little endian)
 *
 *   OFFSET  SIZE  DESCRIPTION
 *        0     8  serial, 1 .. 2^53
 *        8     2  packet identifier, 1 .. 65535
 *       10     1  state: 0 queued, 1 in flight, 2 released
 *       11     4  length of the value
 *       15     .  the value
 *
 * No count comes first: the writer does not know it yet, and the reader needs none.
 * Entries that were read point into the input; nothing is copied or allocated.  Any input is safe. */
#ifndef HMQ_PACKED_PAGE_H
#define HMQ_PACKED_PAGE_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_PACKED_ENTRY_BYTES 15 /* in front of a value */

typedef struct hmq_packed_entry {
    uint64_t serial;
    uint16_t packet_id;
    uint8_t state;
    hmq_slice value; /* less than 2^32 bytes */
} hmq_packed_entry;

/* Writes the HMQ_PACKED_ENTRY_BYTES in front of the value; the caller has made room. */
void hmq_packed_entry_put(const hmq_packed_entry *entry, uint8_t *out);

/* Reads the entry at *at and advances *at.  1: read; 0: the page ends here; -1: no valid entry, and *at is unchanged. */
int hmq_packed_entry_next(const uint8_t *page, size_t len, size_t *at, hmq_packed_entry *entry);
/* cffi-end */

#endif
