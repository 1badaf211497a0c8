/* fan_out_write.h - the fields of a fan-out's hash (routing/fan_out.h): writing them, and reading a chunk.
 *
 *     record      the message, as published
 *     1           the retained message of before, after OLDER_BYTE; without one, the first chunk
 *     1, 2 ...    chunks
 *     unmatched   more chunks may come */
#ifndef HMQ_FAN_OUT_WRITE_H
#define HMQ_FAN_OUT_WRITE_H

#include "topic/record.h"
#include "index/filters.h"
#include "index/index.h"
#include "routing/delivery.h"

#define FAN_OUT_RECORD_FIELD "record"
#define FAN_OUT_OLDER_FIELD "1" /* or the first chunk, if there is no older message */
#define FAN_OUT_SECOND_FIELD "2"
#define FAN_OUT_UNMATCHED_FIELD "unmatched"
#define FIRST_CHUNK 1U /* its field, if there is no older message */

/* Of a session that is handed older messages of the topic first, in deliveries: one for each of a few filters, at most 8
 * (routing/retained_cursors.c), and a note. */
#define CURSOR_COST 8U

/* What a delivery of so many bytes costs. */
size_t fan_out_cost_of(size_t record_bytes);
size_t fan_out_most_in_chunk(const index_t *index, const hmq_record *record);
bool fan_out_is_older(const server_string *value);
bool fan_out_has_expired(const hmq_record *record);

typedef struct fan_out_writer {
    server_ctx *ctx;
    index_t *index;
    const hmq_record *record;
    size_t most; /* sessions in a chunk */
    size_t first; /* field of the first chunk of this writer */
    size_t chunks, chunk_bytes; /* that were made; bytes of the first one */
    size_t message_bytes;
    size_t sessions, bytes, room; /* of the chunk that is being made */
    uint8_t *chunk;
    server_string **pairs; /* fields and values that are to be written */
    size_t pair_count, pair_room; /* strings */
} fan_out_writer;

void fan_out_write_begin(fan_out_writer *w, server_ctx *ctx, index_t *index, const hmq_record *record, size_t first);
/* `older` NULL: there are no cursors. */
void fan_out_write_message(fan_out_writer *w, const server_string *older);
void fan_out_write_unmatched(fan_out_writer *w);
void fan_out_add(fan_out_writer *w, const indexed_session *session, const delivery_how *how);
/* By the filter of the group. */
void fan_out_add_group(fan_out_writer *w, hmq_slice group);
/* Writes what was added to the hash. */
void fan_out_write(fan_out_writer *w, server_string *name);
void fan_out_write_end(fan_out_writer *w);

typedef struct fan_out_reader {
    const uint8_t *at, *end;
} fan_out_reader;
/* One session of a chunk.  The caller frees the identifiers.  False: the bytes are not what this module writes. */
bool fan_out_read(fan_out_reader *r, bool *is_group, hmq_slice *key, delivery_how *how, uint32_t **identifiers);

#endif
