/* columns.c - messages as columns. */
#include "history/columns.h"

#include "server/memory.h"

#include <string.h>

#define FIRST_ROOM 4096

typedef struct column_kind {
    const char *name;
    unsigned width;
} column_kind;

static const column_kind kinds[] = {
#define HISTORY_COLUMN_KIND(id, name, width) {name, width},
    HISTORY_COLUMN_TABLE(HISTORY_COLUMN_KIND)
#undef HISTORY_COLUMN_KIND
};

bool history_column_named(hmq_slice name, history_column *column) {
    for (size_t i = 0; i < HISTORY_COLUMN_COUNT; i++) {
        if (!slice_is(name, kinds[i].name)) continue;
        *column = (history_column)i;
        return true;
    }
    return false;
}

/* ---- values ------------------------------------------------------------------------------------------------ */

static uint64_t number_in(history_column column, const history_entry *entry, uint32_t generation) {
    switch (column) {
    case COLUMN_SEQUENCE: return entry->sequence;
    case COLUMN_TIME: return entry->time_us;
    case COLUMN_QOS: return entry->record.qos;
    case COLUMN_RETAIN: return entry->record.retain;
    case COLUMN_PUBLISHED: return (uint64_t)entry->record.time_ms;
    case COLUMN_EXPIRES: return (uint64_t)entry->record.expires_ms;
    case COLUMN_PATTERN: return entry->pattern;
    default: return generation;
    }
}

static hmq_slice text_in(history_column column, const hmq_record *record) {
    switch (column) {
    case COLUMN_TOPIC: return record->topic;
    case COLUMN_PAYLOAD: return record->payload;
    case COLUMN_PUBLISHER: return record->publisher;
    default: return record->properties;
    }
}

/* ---- buffers ----------------------------------------------------------------------------------------------- */

static inline uint8_t *add_bytes(history_buffer *buffer, size_t len) {
    buffer->bytes = array_reserve(buffer->bytes, &buffer->room, buffer->used, len, FIRST_ROOM, 1);
    uint8_t *place = buffer->bytes + buffer->used;
    buffer->used += len;
    return place;
}

static inline void add_number32(history_buffer *buffer, uint32_t number) {
    const uint8_t bytes[4] = {(uint8_t)number, (uint8_t)(number >> 8), (uint8_t)(number >> 16),
                              (uint8_t)(number >> 24)};
    memcpy(add_bytes(buffer, 4), bytes, 4);
}

static inline void add_number64(history_buffer *buffer, uint64_t number) {
    const uint8_t bytes[8] = {(uint8_t)number,         (uint8_t)(number >> 8),  (uint8_t)(number >> 16),
                              (uint8_t)(number >> 24), (uint8_t)(number >> 32), (uint8_t)(number >> 40),
                              (uint8_t)(number >> 48), (uint8_t)(number >> 56)};
    memcpy(add_bytes(buffer, 8), bytes, 8);
}

static uint64_t number_at(const history_buffer *buffer, size_t row, unsigned width) {
    uint64_t number = 0;
    for (unsigned i = 0; i < width; i++) number |= (uint64_t)buffer->bytes[row * width + i] << (8 * i);
    return number;
}

void history_columns_begin(history_columns *columns) {
    for (size_t i = 0; i < columns->count; i++) {
        columns->values[i] = columns->data[i] = (history_buffer){NULL, 0, 0};
        if (kinds[columns->wanted[i]].width == 0) add_number32(&columns->values[i], 0);
    }
    columns->rows = 0;
}

void history_columns_end(history_columns *columns) {
    for (size_t i = 0; i < columns->count; i++) {
        sv.Free(columns->values[i].bytes);
        sv.Free(columns->data[i].bytes);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------- */

size_t history_columns_size(const history_columns *columns, const history_entry *entry) {
    size_t size = 0;
    for (size_t i = 0; i < columns->count; i++) {
        unsigned width = kinds[columns->wanted[i]].width;
        size += width > 0 ? width : 4 + text_in(columns->wanted[i], &entry->record).len;
    }
    return size;
}

static inline void add_text(history_buffer *offsets, history_buffer *data, hmq_slice text) {
    if (text.len > 0) memcpy(add_bytes(data, text.len), text.data, text.len);
    add_number32(offsets, (uint32_t)data->used);
}

void history_columns_add(history_columns *columns, const history_entry *entry, uint32_t generation) {
    for (size_t i = 0; i < columns->count; i++) {
        history_column column = columns->wanted[i];
        history_buffer *values = &columns->values[i];
        switch (kinds[column].width) {
        case 8: add_number64(values, number_in(column, entry, generation)); break;
        case 4: add_number32(values, (uint32_t)number_in(column, entry, generation)); break;
        case 1: *add_bytes(values, 1) = (uint8_t)number_in(column, entry, generation); break;
        default: add_text(values, &columns->data[i], text_in(column, &entry->record));
        }
    }
    columns->rows++;
}

/* ---- replies ----------------------------------------------------------------------------------------------- */

static void reply_buffer(server_ctx *ctx, const history_buffer *buffer) {
    sv.ReplyWithStringBuffer(ctx, buffer->used == 0 ? "" : (const char *)buffer->bytes, buffer->used);
}

static void reply_packed(server_ctx *ctx, const history_columns *columns, size_t i) {
    if (kinds[columns->wanted[i]].width > 0) {
        reply_buffer(ctx, &columns->values[i]);
        return;
    }
    sv.ReplyWithArray(ctx, 2);
    reply_buffer(ctx, &columns->values[i]);
    reply_buffer(ctx, &columns->data[i]);
}

static void reply_values(server_ctx *ctx, const history_columns *columns, size_t i) {
    unsigned width = kinds[columns->wanted[i]].width;
    sv.ReplyWithArray(ctx, (long)columns->rows);
    for (size_t row = 0; row < columns->rows; row++) {
        if (width > 0) {
            sv.ReplyWithLongLong(ctx, (long long)number_at(&columns->values[i], row, width));
            continue;
        }
        size_t from = number_at(&columns->values[i], row, 4), to = number_at(&columns->values[i], row + 1, 4);
        const char *data = to == 0 ? "" : (const char *)columns->data[i].bytes;
        sv.ReplyWithStringBuffer(ctx, data + from, to - from);
    }
}

void history_columns_reply(server_ctx *ctx, const history_columns *columns, bool packed) {
    sv.ReplyWithArray(ctx, (long)columns->count);
    for (size_t i = 0; i < columns->count; i++) {
        if (packed)
            reply_packed(ctx, columns, i);
        else
            reply_values(ctx, columns, i);
    }
}
