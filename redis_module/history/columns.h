/* columns.h - messages as columns, the form that table readers need: the values of each requested column one after
 * the other, in Arrow's layout (https://arrow.apache.org/docs/format/Columnar.html), little endian.
 *
 *      number    rows values of 1, 4 or 8 bytes
 *      text      rows + 1 offsets of 4 bytes, the first 0; then the data that they divide
 *
 * So a reader uses them as they are, and nothing is allocated per row: buffers double.
 *
 * Invariant: a column of text has at most 2^31 - 1 bytes.  The code that adds rows ensures it, by a limit of bytes. */
#ifndef HMQ_HISTORY_COLUMNS_H
#define HMQ_HISTORY_COLUMNS_H

#include "history/read.h"

/* X(identifier, name, bytes of a value; 0: text) */
#define HISTORY_COLUMN_TABLE(X)                                                                                        \
    X(COLUMN_SEQUENCE, "sequence", 8)                                                                                  \
    X(COLUMN_TIME, "time", 8)                                                                                          \
    X(COLUMN_TOPIC, "topic", 0)                                                                                        \
    X(COLUMN_PAYLOAD, "payload", 0)                                                                                    \
    X(COLUMN_QOS, "qos", 1)                                                                                            \
    X(COLUMN_RETAIN, "retain", 1)                                                                                      \
    X(COLUMN_PUBLISHER, "publisher", 0)                                                                                \
    X(COLUMN_PROPERTIES, "properties", 0)                                                                              \
    X(COLUMN_PUBLISHED, "published", 8)                                                                                \
    X(COLUMN_EXPIRES, "expires", 8)                                                                                    \
    X(COLUMN_PATTERN, "pattern", 4)                                                                                    \
    X(COLUMN_GENERATION, "generation", 4)

typedef enum history_column {
#define HISTORY_COLUMN_ID(id, name, width) id,
    HISTORY_COLUMN_TABLE(HISTORY_COLUMN_ID)
#undef HISTORY_COLUMN_ID
        HISTORY_COLUMN_COUNT
} history_column;

typedef struct history_buffer {
    uint8_t *bytes;
    size_t used, room;
} history_buffer;

typedef struct history_columns {
    size_t count, rows;
    history_column wanted[HISTORY_COLUMN_COUNT];
    history_buffer values[HISTORY_COLUMN_COUNT]; /* or offsets */
    history_buffer data[HISTORY_COLUMN_COUNT];
} history_columns;

/* False if there is no column of this name. */
bool history_column_named(hmq_slice name, history_column *column);

/* `wanted` is set, each at most once. */
void history_columns_begin(history_columns *columns);
void history_columns_end(history_columns *columns);

/* The bytes of a message in the requested columns. */
size_t history_columns_size(const history_columns *columns, const history_entry *entry);
void history_columns_add(history_columns *columns, const history_entry *entry, uint32_t generation);

/* An array with an element for each column: as buffers, or as values. */
void history_columns_reply(server_ctx *ctx, const history_columns *columns, bool packed);

#endif
