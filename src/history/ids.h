/* ids.h - the ids of a shard's messages, and the search for a sequence number by time.
 *
 * A message has an id, its time in microseconds since 1970-01-01 UTC, and a sequence number, 1, 2, 3 ... in its
 * shard.
 *
 * Invariants:
 *  1. Both grow strictly, together: sorting by either gives the same order.  The id is the last one + 1 or
 *     the clock, whichever is larger.  So a clock that is set back reorders nothing: ids grow by 1 until it catches up.
 *  2. Sequence numbers have no gaps, whatever happens to clock, epochs, generations and primaries.
 *  3. Only the writer creates them; replicas and the append-only file receive them explicitly.
 *
 * MARKS lead from a time to a sequence number without reading the log.  One in HMQ_MARKS_EVERY messages of an epoch
 * (also its first) leaves a mark in a string of its own, which is only appended to; all integers little endian:
 *
 *      OFFSET  SIZE  DESCRIPTION
 *       16*i      8  id in microseconds
 *     16*i+8      8  sequence number
 *
 * A look-up is a binary search.  It yields two sequence numbers; the first message at or after that time is between them.
 * The log, whose entries have id and number, yields the exact one: at most HMQ_MARKS_EVERY entries are read. */
#ifndef HMQ_HISTORY_IDS_H
#define HMQ_HISTORY_IDS_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_MARK_BYTES 16
#define HMQ_MARKS_EVERY 256
/* Largest id and sequence number: other programs read both as signed 64-bit integers. */
#define HMQ_ID_MAX 9223372036854775807

typedef struct hmq_message_id {
    uint64_t time_us;
    uint64_t sequence;
} hmq_message_id;

/* The id after `last` ({0, 0} before the first) at the time now_us.  False, and *next is unchanged, if there is none (time
 * or sequence above HMQ_ID_MAX). */
bool hmq_message_id_next(hmq_message_id last, uint64_t now_us, hmq_message_id *next);

/* Must this message be marked?  `first` is the first sequence number of its epoch. */
bool hmq_mark_due(uint64_t first, uint64_t sequence);

/* Writes the HMQ_MARK_BYTES of a mark. */
void hmq_mark_encode(hmq_message_id id, uint8_t out[16]);

/* Searches marks (an incomplete one at the end is ignored): the first message with an id >= time_us, if it exists, has a
 * sequence number of *from to *to, both included.  *to is UINT64_MAX if no mark is that late.  Returns the number of marks
 * read, 0 if there is none (*from is 1 then).  Unsorted marks give a wrong answer, safely. */
uint32_t hmq_marks_find(const uint8_t *marks, size_t len, uint64_t time_us, uint64_t *from, uint64_t *to);
/* cffi-end */

#endif
