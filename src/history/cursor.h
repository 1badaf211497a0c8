/* cursor.h - the position of a reader of history, as a small text that can be stored anywhere.
 *
 *      h1-<generation>-<epoch>-<shard>-<sequence>-<time>-<writer>-<before>-<begun>-<check>
 *      h2-<generation>-<epoch>-<shard>-<sequence>-<time>-<writer>-<before>-<begun>-<store id>-<store name>-<check>
 *
 * The numbers are in lower-case hexadecimal without leading zeros.  The check, of four digits, covers the bytes before
 * its '-': a truncated or mistyped text is an error, not another position.  h1 has at most 99 bytes, h2 at most 301.
 *
 * Readers get h2, which names its store.  The id is a hash of the store's name and seed, so a store that is dropped and
 * created again has another id.  Bytes of the name other than letters, digits, '-', '_' and '.' are written "%<two
 * digits>".  h1 is the form in keys that already name their store, and of readers' cursors of earlier releases.
 *
 * The reader has read all messages of this shard with a lower sequence number, and no others.  So `sequence` alone is the
 * position, forever: sequence numbers are dense and continue through epochs and generations.  The other fields reveal what
 * happened meanwhile.  A lost primary may have assigned numbers that its successor assigns again.  `writer` wrote the
 * message before `sequence`, and all from number `begun` on; `before` wrote those before `begun` (0: unknown).  Epoch and
 * generation are those at the position; time is the id (in microseconds) of the last message read, for an unknown writer. */
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
    uint64_t time_us;   /* 0: none was read yet */
    uint32_t writer;
    uint32_t before;
    uint64_t begun;
} hmq_cursor;

/* The store of a cursor.  An empty name: the cursor names no store. */
typedef struct hmq_cursor_store {
    uint32_t id;
    uint8_t name_len;
    char name[64];
} hmq_cursor_store;

/* Writes h1 if `store` is NULL or has no name (at most HMQ_CURSOR_MAX_BYTES), else h2 (at most
 * HMQ_CURSOR_STORE_MAX_BYTES); no NUL.  Returns the number of bytes. */
size_t hmq_cursor_encode(const hmq_cursor *cursor, const hmq_cursor_store *store, char *out);
/* Reads both forms.  0, or -1 if the text is not a cursor. */
int hmq_cursor_decode(const char *text, size_t len, hmq_cursor *cursor, hmq_cursor_store *store);
/* cffi-end */

#endif
