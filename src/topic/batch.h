/* batch.h - writes columns of messages, in Arrow's layout, as the commands that store them.  A task of the pipeline uses it
 * to write its rows without an object per row.
 *
 * Nothing is kept or allocated; columns and output belong to the caller.  Everything is O(bytes). */
#ifndef HMQ_BATCH_H
#define HMQ_BATCH_H

#include "base/base.h"

/* cffi-begin */
/* A column of texts or bytes.
 *
 *     offsets   [ 0 | 3 | 3 | 8 ]     rows + 1 of them: row i has the bytes offsets[i] .. offsets[i + 1] of data
 *     valid     bit first_bit + i, the least significant of a byte first: 0 if row i is null */
typedef struct hmq_texts {
    const uint8_t *data;
    const int32_t *offsets; /* NULL: there is no such column */
    const uint8_t *valid; /* NULL: no row is null */
    size_t first_bit;
} hmq_texts;

/* Columns of the same number of rows; those that point to numbers may be NULL. */
typedef struct hmq_batch {
    size_t rows;
    hmq_texts client;
    hmq_texts topic;
    hmq_texts payload;
    hmq_texts publisher;
    hmq_texts properties;
    const int64_t *qos; /* NULL: 1 in sessions, 0 in topics */
    const int64_t *retain; /* 0 or 1 */
    const int64_t *time_ms; /* when it was published; NULL, or 0 of a row: now_ms */
    const int64_t *expires_ms; /* 0: never */
    const int64_t *life_s; /* seconds to live; -1: not given; 0: expired, the row is skipped */
    const int64_t *number; /* the producer's number of the row; NULL: first_number + row */
    int64_t first_number;
    int64_t now_ms;
} hmq_batch;

/* Rows that go into one command: order[at], order[at + 1] ... */
typedef struct hmq_batch_group {
    uint32_t at;
    uint32_t rows;
} hmq_batch_group;

/* Groups the rows by their codes (0 .. codes - 1), in order within a group of at most `most` rows.  `order` and `groups`
 * have room for `rows` entries, `places` for codes + 1.  Returns the number of groups. */
size_t hmq_batch_group_rows(const int32_t *code, size_t rows, size_t codes, size_t most, uint32_t *order,
                            hmq_batch_group *groups, uint32_t *places);

/* Enough bytes for one command per row, each with `words` bytes of other words, including the margin that the checks for
 * remaining room need. */
size_t hmq_batch_room(const hmq_batch *batch, size_t words);

/* The common part of every SESSION.ADD. */
typedef struct hmq_batch_add {
    hmq_slice prefix; /* of the session key */
    hmq_slice producer; /* len 0: none; its number is that of the group's first row, also if that is skipped */
    int64_t limit; /* 0: none */
    const int64_t *after; /* number of AFTER per group, 0: without AFTER; NULL: all without */
} hmq_batch_add;

/* Writes one SESSION.ADD per group; rows with a topic become records, others are sent as their payload.  Stores the end of
 * each command and its number of rows (0: all rows were skipped, there is no command).  Returns the bytes written; or
 * -1 - r if row r has no client id or makes no record; or -1 - rows if there is no room. */
int64_t hmq_batch_sessions(const hmq_batch *batch, const hmq_batch_add *add, const uint32_t *order,
                           const hmq_batch_group *groups, size_t count, uint8_t *out, size_t capacity, uint64_t *ends,
                           uint32_t *sent);

/* The common part of every TOPIC.MPUBLISH. */
typedef struct hmq_batch_publish {
    hmq_slice producer; /* len 0: none */
    uint64_t epoch;
    uint64_t after; /* number of the producer's last message before these, 0: none; updated by each command */
} hmq_batch_publish;

/* Writes one TOPIC.MPUBLISH with the rows from `from` to `to` - 1.  *sent: its rows; 0: no command.  Returns the same as
 * hmq_batch_sessions. */
int64_t hmq_batch_topics(const hmq_batch *batch, hmq_batch_publish *publish, size_t from, size_t to, uint8_t *out,
                         size_t capacity, uint32_t *sent);
/* cffi-end */

#endif
