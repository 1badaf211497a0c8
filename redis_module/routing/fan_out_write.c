/* fan_out_write.c - makes the chunks of a fan-out, writes and reads its fields. */
#include "routing/fan_out_write.h"

#include <string.h>

#include "server/keyspace.h"
#include "server/memory.h"
#include "server/replication.h"

#define CHUNK_COST 128U
#define BYTES_PER_COST 16384U /* a message of this size takes as long as one more delivery */
#define OLDER_BYTE 0x80 /* before the retained message; no chunk begins with it */

size_t fan_out_cost_of(size_t record_bytes) {
    return 1 + record_bytes / BYTES_PER_COST;
}

size_t fan_out_most_in_chunk(const index_t *index, const hmq_record *record) {
    size_t cost = fan_out_cost_of(hmq_record_size(record));
    if (sv.DictSize(index->cursors) > 0) cost += CURSOR_COST;
    size_t most = CHUNK_COST / cost;
    return most < 1 ? 1 : most;
}

bool fan_out_is_older(const server_string *value) {
    hmq_slice bytes = value == NULL ? (hmq_slice){NULL, 0} : slice_of(value);
    return bytes.len > 0 && bytes.data[0] == OLDER_BYTE;
}

bool fan_out_has_expired(const hmq_record *record) {
    return record->expires_ms > 0 && record->expires_ms <= sv.Milliseconds() && !hmq_record_has_zero_ttl(record);
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static void add_pair(fan_out_writer *w, server_string *field, server_string *value) {
    w->pairs = array_reserve(w->pairs, &w->pair_room, w->pair_count, 2, 32, sizeof *w->pairs);
    w->pairs[w->pair_count++] = field;
    w->pairs[w->pair_count++] = value;
}

/* The field with the retained message before the publish. */
static void add_older(fan_out_writer *w, hmq_slice encoded) {
    uint8_t *bytes = sv.Alloc(encoded.len + 1);
    bytes[0] = OLDER_BYTE;
    if (encoded.len > 0) memcpy(bytes + 1, encoded.data, encoded.len);
    server_string *field = sv.CreateString(NULL, FAN_OUT_OLDER_FIELD, sizeof FAN_OUT_OLDER_FIELD - 1);
    add_pair(w, field, sv.CreateString(NULL, (const char *)bytes, encoded.len + 1));
    sv.Free(bytes);
}

void fan_out_write_begin(fan_out_writer *w, server_ctx *ctx, index_t *index, const hmq_record *record, size_t first) {
    *w = (fan_out_writer){
        .ctx = ctx, .index = index, .record = record, .most = fan_out_most_in_chunk(index, record), .first = first};
}

void fan_out_write_message(fan_out_writer *w, const server_string *older) {
    size_t size = hmq_record_size(w->record);
    uint8_t *bytes = sv.Alloc(size);
    hmq_record_encode(w->record, bytes, size);
    server_string *field = sv.CreateString(NULL, FAN_OUT_RECORD_FIELD, sizeof FAN_OUT_RECORD_FIELD - 1);
    add_pair(w, field, sv.CreateString(NULL, (const char *)bytes, size));
    sv.Free(bytes);
    w->message_bytes = size;
    if (older == NULL) return;
    add_older(w, slice_of(older));
    w->message_bytes += slice_of(w->pairs[w->pair_count - 1]).len;
}

void fan_out_write_unmatched(fan_out_writer *w) {
    server_string *field = sv.CreateString(NULL, FAN_OUT_UNMATCHED_FIELD, sizeof FAN_OUT_UNMATCHED_FIELD - 1);
    add_pair(w, field, sv.CreateStringFromLongLong(NULL, 1));
}

static void put(fan_out_writer *w, const void *bytes, size_t len) {
    if (w->bytes + len > w->room) {
        w->room = (w->bytes + len) * 2;
        w->chunk = sv.Realloc(w->chunk, w->room);
    }
    if (len > 0) memcpy(w->chunk + w->bytes, bytes, len);
    w->bytes += len;
}

static void put_number(fan_out_writer *w, uint32_t number) {
    uint8_t bytes[4] = {(uint8_t)number, (uint8_t)(number >> 8), (uint8_t)(number >> 16), (uint8_t)(number >> 24)};
    put(w, bytes, sizeof bytes);
}

static void end_chunk(fan_out_writer *w) {
    server_string *field = sv.CreateStringFromLongLong(NULL, (long long)w->first + (long long)w->chunks);
    add_pair(w, field, sv.CreateString(NULL, (const char *)w->chunk, w->bytes));
    if (w->chunks++ == 0) w->chunk_bytes = w->bytes;
    w->bytes = w->sessions = 0;
}

/* In a chunk: a byte with QoS (bits 0-1) and retain flag (bit 2), or with bit 3 for a group; length and bytes of the session's
 * key, or of the group's filter; the number of identifiers, and the identifiers.  Numbers have 4 bytes, little endian. */
#define RETAIN_BIT 4U
#define GROUP_BIT 8U

static void add_target(fan_out_writer *w, uint8_t flags, hmq_slice key, const delivery_how *how) {
    put(w, &flags, 1);
    put_number(w, (uint32_t)key.len);
    put(w, key.data, key.len);
    put_number(w, (uint32_t)how->identifier_count);
    for (size_t i = 0; i < how->identifier_count; i++) put_number(w, how->identifiers[i]);
    if (++w->sessions == w->most) end_chunk(w);
}

void fan_out_add_group(fan_out_writer *w, hmq_slice group) {
    add_target(w, GROUP_BIT, group, &(delivery_how){0});
}

void fan_out_add(fan_out_writer *w, const indexed_session *session, const delivery_how *how) {
    add_target(w, (uint8_t)(how->qos | (how->retain ? RETAIN_BIT : 0)), slice_of(session->key), how);
}

void fan_out_write(fan_out_writer *w, server_string *name) {
    if (w->sessions > 0) end_chunk(w);
    if (w->pair_count == 0) return;
    server_key *hash = sv.OpenKey(w->ctx, name, SERVER_READ | SERVER_WRITE);
    for (size_t i = 0; i < w->pair_count; i += 2)
        sv.HashSet(hash, SERVER_HASH_NONE, w->pairs[i], w->pairs[i + 1], NULL);
    sv.CloseKey(hash);
    replicate(w->ctx, "HSET", "sv", name, w->pairs, w->pair_count);
    index_notify(w->ctx, SERVER_NOTIFY_HASH, "hset", name);
}

void fan_out_write_end(fan_out_writer *w) {
    for (size_t i = 0; i < w->pair_count; i++) sv.FreeString(NULL, w->pairs[i]);
    sv.Free(w->pairs);
    sv.Free(w->chunk);
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

static bool read_number(fan_out_reader *r, uint32_t *number) {
    if (r->end - r->at < 4) return false;
    *number = (uint32_t)r->at[0] | (uint32_t)r->at[1] << 8 | (uint32_t)r->at[2] << 16 | (uint32_t)r->at[3] << 24;
    r->at += 4;
    return true;
}

bool fan_out_read(fan_out_reader *r, bool *is_group, hmq_slice *key, delivery_how *how, uint32_t **identifiers) {
    uint32_t len, count;
    *identifiers = NULL;
    if (r->at == r->end || (*r->at & ~(GROUP_BIT | RETAIN_BIT | 3U)) != 0 || (*r->at & 3U) == 3) return false;
    *is_group = (*r->at & GROUP_BIT) != 0;
    *how = (delivery_how){.qos = *r->at & 3U, .retain = (*r->at & RETAIN_BIT) != 0, .in_steps = true};
    r->at++;
    if (!read_number(r, &len) || (size_t)(r->end - r->at) < len) return false;
    *key = (hmq_slice){r->at, len};
    r->at += len;
    if (!read_number(r, &count) || (size_t)(r->end - r->at) / 4 < count) return false;
    if (count > 0) *identifiers = sv.Alloc(count * sizeof **identifiers);
    for (uint32_t i = 0; i < count; i++) read_number(r, &(*identifiers)[i]);
    how->identifiers = *identifiers;
    how->identifier_count = count;
    return true;
}
