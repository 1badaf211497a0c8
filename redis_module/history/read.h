/* read.h - goes through one epoch of a shard in the order of sequence numbers, and skips what a filter cannot match.
 *
 * Each pattern that can have matching topics yields its next number, and the smallest number is next.  A pattern
 * without a fixed level reads its log.  For a pattern with a level that the filter fixes, posting lists are scanned
 * (history/plan.h), and then the tail, which is not in lists yet (history/tail.h).  Each yielded message is a
 * candidate: the reader checks its topic.
 *
 * Everything is opened for one command and points into the server's values: no key may change meanwhile.
 * Cost: opening O(P) with P patterns of the plan; O(log P) for each message, O(log n) for each that a scan yields. */
#ifndef HMQ_HISTORY_READ_H
#define HMQ_HISTORY_READ_H

#include "topic/record.h"
#include "history/shard.h"

typedef struct history_reader history_reader;

typedef enum history_step {
    HISTORY_FOUND,
    HISTORY_END, /* of the epoch */
    HISTORY_LIMIT, /* the budget is used up */
    HISTORY_CORRUPT, /* a key holds what no writer can have made */
} history_step;

typedef struct history_entry {
    uint64_t sequence, time_us;
    uint32_t pattern;
    hmq_record record; /* the topic whole; valid until the next step */
} history_entry;

/* From this sequence number on.  An empty filter: everything.  NULL if the pattern
 * set is missing, or the next epoch. */
history_reader *history_reader_open(server_ctx *ctx, const history_shard *state, const history_epoch *epoch,
                                    hmq_slice filter, uint64_t from);
void history_reader_close(history_reader *reader);

/* The next candidate.  *budget decreases by the entries of posting lists that were read.  The first call raises it to what
 * all scans need for one step, so that a reader that continues from its position always makes progress. */
history_step history_reader_next(history_reader *reader, history_entry *entry, uint64_t *budget);
/* After HISTORY_LIMIT: nothing below this sequence number is left. */
uint64_t history_reader_position(const history_reader *reader);

/* The first sequence number whose message is at this time or later; last + 1 if there is none.  False if a key is
 * corrupt.  O(P log n + HMQ_MARKS_EVERY). */
bool history_sequence_at(server_ctx *ctx, const history_shard *state, uint64_t time_us, uint64_t *sequence);

#endif
