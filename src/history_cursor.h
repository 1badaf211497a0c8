/* history_cursor.h - where a reader of history is, as a small text that can be kept anywhere.
 *
 *      h1-<generation>-<epoch>-<shard>-<sequence>-<time>-<writer>-<before>-<begun>-<check>
 *
 * The eight numbers in lower-case hexadecimal without leading zeros; the check, of four digits, is of the bytes before
 * its '-': a text that was cut or mistyped is an error, not another place.  At most 99 bytes.
 *
 * A reader has everything of this shard whose sequence number is lower, and nothing else, so `sequence` alone says
 * where to go on, for ever: sequence numbers are dense, and go on through epochs and generations.  The others say what
 * happened meanwhile.  A primary that is lost takes numbers with it that are given again: `writer` is who wrote the
 * number before `sequence`, from the number `begun` on, and `before` who wrote what comes before that (0: not known).
 * Epoch and generation are where the reader was; time is the id (in microseconds) of the last message that it was given,
 * for a writer that is not known. */
#ifndef HMQ_HISTORY_CURSOR_H
#define HMQ_HISTORY_CURSOR_H

#include "hmq_base.h"

/* cffi-begin */
#define HMQ_CURSOR_MAX_BYTES 99

typedef struct hmq_cursor {
    uint32_t generation;
    uint32_t epoch;
    uint16_t shard;
    uint64_t sequence;  /* of the next message; 1 is the first */
    uint64_t time_us;   /* 0: none was given yet */
    uint32_t writer;
    uint32_t before;
    uint64_t begun;
} hmq_cursor;

/* Writes at most HMQ_CURSOR_MAX_BYTES, no NUL; returns how many. */
size_t hmq_cursor_encode(const hmq_cursor *cursor, char out[99]);
/* 0, or -1 if the text is no cursor. */
int hmq_cursor_decode(const char *text, size_t len, hmq_cursor *cursor);
/* cffi-end */

#endif
