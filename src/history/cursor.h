/* cursor.h - where a reader of history is, as a small text that can be kept anywhere.
 *
 *      h1-<generation>-<epoch>-<shard>-<sequence>-<time>-<writer>-<before>-<begun>-<check>
 *      h2-<generation>-<epoch>-<shard>-<sequence>-<time>-<writer>-<before>-<begun>-<store id>-<store name>-<check>
 *
 * The numbers are in lower-case hexadecimal without leading zeros.  The check, of four digits, covers the bytes before
 * its '-': a text that was cut or mistyped is an error, not another place.  h1 has at most 99 bytes, h2 at most 301.
 *
 * Readers get h2, which names its store: the id is a hash of the store's name and seed, so a store that was dropped and
 * created again has another one.  Bytes of the name other than letters, digits, '-', '_' and '.' are written "%<two
 * digits>".  h1 is the form of keys that already say which store they mean, and of readers' cursors of earlier releases.
 *
 * A reader has everything of this shard whose sequence number is lower, and nothing else, so `sequence` alone says
 * where to go on, for ever: sequence numbers are dense, and go on through epochs and generations.  The others say what
 * happened meanwhile.  A primary that is lost takes numbers with it that are given again: `writer` is who wrote the
 * number before `sequence`, from the number `begun` on, and `before` who wrote what comes before that (0: not known).
 * Epoch and generation are where the reader was; time is the id (in microseconds) of the last message that it was given,
 * for a writer that is not known. */
#ifndef HMQ_HISTORY_CURSOR_H
#define HMQ_HISTORY_CURSOR_H

#include "base/base.h"

/* cffi-begin */
#define HMQ_CURSOR_MAX_BYTES 99        /* without a store */
#define HMQ_CURSOR_STORE_MAX_BYTES 301 /* with one */
#define HMQ_CURSOR_NAME_MAX 64

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

/* Of which store a cursor is.  An empty name: the cursor does not say. */
typedef struct hmq_cursor_store {
    uint32_t id;
    uint8_t name_len;
    char name[64];
} hmq_cursor_store;

/* Writes h1 if `store` is NULL or has no name (at most HMQ_CURSOR_MAX_BYTES), else h2 (at most
 * HMQ_CURSOR_STORE_MAX_BYTES); no NUL.  Returns how many bytes. */
size_t hmq_cursor_encode(const hmq_cursor *cursor, const hmq_cursor_store *store, char *out);
/* Reads both forms.  0, or -1 if the text is no cursor. */
int hmq_cursor_decode(const char *text, size_t len, hmq_cursor *cursor, hmq_cursor_store *store);
/* cffi-end */

#endif
