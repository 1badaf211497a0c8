/* producer.c - decides whether a chunk of a producer is new to a shard, and remembers it. */
#include "history/producer.h"

#include <inttypes.h>

#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "history/shard.h"

#define MAX_NUMBER 9007199254740991LL /* 2^53 - 1: all languages represent integers up to it exactly */
#define PRODUCERS_MAX 4096            /* per shard */

bool history_producer_parse(args *a, history_producer *by) {
    return args_string(a, "PRODUCER", &by->id) && args_number(a, "the epoch", 0, MAX_NUMBER, &by->epoch) &&
           args_number(a, "the chunk", 0, MAX_NUMBER, &by->chunk);
}

static history_chunk check_line(server_ctx *ctx, const history_producer *by, const server_string *line,
                                history_place *place) {
    uint64_t n[4], epoch = (uint64_t)by->epoch, chunk = (uint64_t)by->chunk;
    if (!numbers_read(slice_of(line), n, 4)) {
        reply_error(ctx, ERROR_PRODUCER_STATE_CHANGED, shown(by->id));
        return HISTORY_REFUSED;
    }
    if (epoch < n[0]) {
        reply_error(ctx, ERROR_PRODUCER_FENCED, epoch, shown(by->id), n[0]);
        return HISTORY_REFUSED;
    }
    if (epoch > n[0] || chunk > n[1]) return HISTORY_NEW;
    if (chunk == n[1]) {
        place->sequence = n[2];
        place->time_us = n[3];
    }
    return HISTORY_REPEATED;
}

history_chunk history_producer_check(server_ctx *ctx, const history_store *store, const history_producer *by,
                                     history_place *place) {
    server_string *name = history_key(store, place->shard, "_producers"), *line = NULL;
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    history_chunk result = HISTORY_NEW;
    if (!key_check(ctx, hash, name, SERVER_HASH)) {
        result = HISTORY_REFUSED;
    } else if (sv.KeyType(hash) == SERVER_HASH) {
        sv.HashGet(hash, SERVER_HASH_NONE, by->id, &line, NULL);
        if (line == NULL && sv.ValueLength(hash) >= PRODUCERS_MAX) {
            reply_error(ctx, ERROR_SHARD_PRODUCERS, PRODUCERS_MAX);
            result = HISTORY_REFUSED;
        } else if (line != NULL) {
            result = check_line(ctx, by, line, place);
        }
    }
    if (line != NULL) sv.FreeString(NULL, line);
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    return result;
}

void history_producer_remember(server_ctx *ctx, const history_store *store, const history_producer *by,
                               const history_place *place) {
    server_string *name = history_key(store, place->shard, "_producers");
    server_string *line = sv.CreateStringPrintf(NULL, "%lld %lld %" PRIu64 " %" PRIu64, by->epoch, by->chunk,
                                                place->sequence, place->time_us);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    sv.HashSet(hash, SERVER_HASH_NONE, by->id, line, NULL);
    sv.CloseKey(hash);
    replicate(ctx, "HSET", "sss", name, by->id, line);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, line);
    sv.FreeString(NULL, name);
}
