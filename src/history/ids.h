/* ids.h - the ids of a shard's messages, and how to find a sequence number by time.
 *
 * A message has an id, its time in microseconds since 1970-01-01 UTC, and a sequence number, 1, 2, 3 ... in its
 * shard.
 *
 * Invariants:
 *  1. Both grow strictly, together: sorting by either gives the same order.  The id is the larger of the last one + 1
 *     and the clock, so a clock that is set back reorders nothing: ids grow by 1 until it has caught up.
 *  2. Sequence numbers have no gaps, whatever happens to clock, epochs, generations and primaries.
 *  3. Only the writer makes them; replicas and the append-only file get them written out.
 *
 * MARKS lead from a time to a sequence number without reading the log.  One in HMQ_MARKS_EVERY messages of an epoch
 * (also its first) leaves a mark in a string of its own, which is only appended to; all integers little endian:
 *
 *      OFFSET  SIZE  DESCRIPTION
 *       16*i      8  id in microseconds
 *     16*i+8      8  sequence number
 *
 * A look-up is a binary search.  It says between which two sequence numbers the first message at or after that time
 * is; the log, whose entries have both, says which: at most HMQ_MARKS_EVERY entries to look at. */
#ifndef HMQ_HISTORY_IDS_H
#define HMQ_HISTORY_IDS_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_MARK_BYTES 16
#define HMQ_MARKS_EVERY 256
/* Largest id and sequence number: both fit a signed 64-bit integer, which is what others read them as. */
#define HMQ_ID_MAX 9223372036854775807

typedef struct hmq_message_id {
    uint64_t time_us;
    uint64_t sequence;
} hmq_message_id;

/* The id after `last` ({0, 0} before the first) when the clock says now_us.  False, and nothing set, if there is none
 * left (time or sequence above HMQ_ID_MAX). */
bool hmq_message_id_next(hmq_message_id last, uint64_t now_us, hmq_message_id *next);

/* Is this message, of an epoch whose first sequence number is `first`, to be marked? */
bool hmq_mark_due(uint64_t first, uint64_t sequence);

/* Writes the HMQ_MARK_BYTES that are to be appended. */
void hmq_mark_encode(hmq_message_id id, uint8_t out[16]);

/* Among marks (a part of one at the end is ignored): the first message with an id >= time_us has a sequence number of
 * *from to *to, both included, if it was written at all.  *to is UINT64_MAX if no mark is that late.  Returns the number
 * of marks looked at, 0 if there is none (*from is 1 then).  Marks that do not grow give a wrong answer, safely. */
uint32_t hmq_marks_find(const uint8_t *marks, size_t len, uint64_t time_us, uint64_t *from, uint64_t *to);
/* cffi-end */

#endif
