/* runs.h - who wrote which numbers of a shard, so that lost numbers that were reused can be told apart.
 *
 *      primary A   1 ......... 90 | 91 .. 99   lost with it, and with those who read them
 *      primary B                  | 91 ......... 140
 *      the shard's runs:  A from 1, B from 91
 *
 * A server counts as a new writer each time it becomes a primary (history_writer), and for each store; one writer's
 * numbers have no gap.  So a cursor whose last number A wrote has seen everything up to 90 at most.  A cursor also
 * notes who wrote before that (a writer may be lost with all that it wrote), and from which number on.  Clocks play
 * no role.
 *
 * Kept in the field `writers` of the shard's hash, the last HISTORY_RUNS_MAX, also after their epochs are dropped: so
 * numbers that were reused and removed by retention count as missed. */
#ifndef HMQ_HISTORY_RUNS_H
#define HMQ_HISTORY_RUNS_H

#include "history/cursor.h"
#include "history/shard_state.h"

/* Reads the field's value, NULL if there is none; false if no writer can have made it. */
bool history_runs_read(const server_string *value, history_shard *state);
/* The field's value; the caller frees it. */
server_string *history_runs_text(const history_shard *state);
bool history_runs_same(const history_shard *a, const history_shard *b);

/* From this number on another writer writes. */
void history_runs_add(history_shard *state, uint64_t writer, uint64_t first);

/* Notes in a cursor who wrote the messages before it. */
void history_runs_note(const history_shard *state, hmq_cursor *cursor);

/* Moves a cursor back to the first number that was reused since.  False if it is not known who wrote the messages
 * before the cursor. */
bool history_runs_find(const history_shard *state, hmq_cursor *cursor);

#endif
