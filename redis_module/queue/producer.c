/* producer.c - remembers the last batch of each producer of a session. */
#include "queue/producer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/decimal.h"
#include "topic/packet_id.h"
#include "topic/session_key.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/session_keys.h"

#define LINE_MAX_BYTES (96 + PRODUCER_MAX_BATCH * 6)

/* The number at *at, which ends with `end`; steps over both. */
static bool take_number(char **at, char end, long long *number) {
    char *from = *at;
    errno = 0;
    *number = strtoll(from, at, 10);
    if (errno != 0 || *at == from || **at != end) return false;
    (*at)++;
    return true;
}

/* Reads a line written by producer_remember; false if another program wrote it. */
static bool parse_line(char *line, long long *sequence, queue_item *items, size_t count, queue_result *result) {
    long long serial, packet_id;
    char *at = line;
    if (!take_number(&at, ' ', sequence) || !take_number(&at, ' ', &serial)) return false;
    if (!take_number(&at, ' ', &result->trimmed) || !take_number(&at, ' ', &result->expired)) return false;
    result->last_serial = (uint64_t)serial;
    for (size_t i = 0; i < count; i++) {
        bool there = take_number(&at, ',', &packet_id) && packet_id >= 0 && packet_id <= HMQ_PACKET_ID_MAX;
        items[i].packet_id = there ? (uint16_t)packet_id : 0;
    }
    return true;
}

static producer_verdict judge(server_key *hash, const producer_batch *batch, queue_item *items, size_t count,
                              queue_result *result, long long *last) {
    server_string *line = NULL;
    char text[LINE_MAX_BYTES];
    sv.HashGet(hash, SERVER_HASH_NONE, batch->producer, &line, NULL);
    if (line == NULL) return sv.ValueLength(hash) >= PRODUCERS_MAX ? PRODUCER_TOO_MANY : PRODUCER_NEW;
    hmq_slice bytes = slice_of(line);
    size_t len = bytes.len < sizeof text ? bytes.len : sizeof text - 1;
    memcpy(text, bytes.data, len);
    text[len] = 0;
    sv.FreeString(NULL, line);
    if (!parse_line(text, last, items, count, result)) *last = 0;
    if (batch->sequence > *last) return PRODUCER_NEW;
    return batch->sequence == *last ? PRODUCER_REPEATED : PRODUCER_OLD;
}

producer_verdict producer_judge(server_ctx *ctx, hmq_slice session, const producer_batch *batch, queue_item *items,
                                size_t count, queue_result *result, long long *last) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_PRODUCERS);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    int type = sv.KeyType(hash);
    producer_verdict verdict = PRODUCER_NEW;
    *last = 0;
    if (type == SERVER_HASH)
        verdict = judge(hash, batch, items, count, result, last);
    else if (type != SERVER_EMPTY)
        verdict = PRODUCER_WRONG_TYPE;
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    return verdict == PRODUCER_NEW && batch->after > 0 && batch->after > *last ? PRODUCER_GAP : verdict;
}

void producer_remember(server_ctx *ctx, hmq_slice session, server_string *producer, long long sequence,
                       const queue_item *items, size_t count, const queue_result *result, long long expire_ms) {
    char text[LINE_MAX_BYTES];
    int used = snprintf(text, sizeof text, "%lld %llu %lld %lld ", sequence, (unsigned long long)result->last_serial,
                        result->trimmed, result->expired);
    char *end = text + used;
    for (size_t i = 0; i < count; i++) {
        end += hmq_decimal_put(items[i].packet_id, end);
        *end++ = ',';
    }
    server_string *name = session_key_name(session, HMQ_SUFFIX_PRODUCERS);
    server_string *line = sv.CreateString(NULL, text, (size_t)(end - text));
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    bool new = sv.KeyType(hash) == SERVER_EMPTY;
    sv.HashSet(hash, SERVER_HASH_NONE, producer, line, NULL);
    replicate(ctx, "HSET", "sss", name, producer, line);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    if (new || expiry_is_later(expire_ms, sv.GetAbsExpire(hash))) key_set_expiry(ctx, hash, name, expire_ms);
    sv.CloseKey(hash);
    sv.FreeString(NULL, line);
    sv.FreeString(NULL, name);
}
