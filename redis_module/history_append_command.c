/* history_append_command.c - HISTORY.APPEND: into history alone, once for each chunk of a producer.
 *
 * A producer numbers its chunks; its last one stands in the shard, with the place that it got:
 *
 *     {<store>/<shard>}_history_producers   HASH   producer -> "<epoch> <chunk> <sequence> <time>"
 *
 * The same chunk again is answered as it was, an older one with sequence number 0; an older epoch is fenced. */
#include <inttypes.h>

#include "../src/topic.h"
#include "errors.h"
#include "history.h"
#include "history_append.h"
#include "history_shard.h"
#include "../src/history_index.h"
#include "replication.h"

#define MAX_TTL_S 4294967295LL /* message expiry interval of MQTT 5.0 */
#define MAX_NUMBER 9007199254740991LL /* every language has whole numbers up to 2^53 - 1 */
#define PRODUCERS_MAX 4096     /* in a shard */

typedef struct producer {
    server_string *id; /* NULL: not said */
    long long epoch, chunk;
} producer;

typedef enum verdict { VERDICT_NEW, VERDICT_REPEATED, VERDICT_REFUSED } verdict;

static bool parse_append(args *a, hmq_record *record, producer *by) {
    long long qos = 0, ttl_s = 0;
    server_string *text;
    bool right = true;
    while (right && args_left(a)) {
        if (args_take_word(a, "QOS")) {
            right = args_number(a, "QOS", 0, 2, &qos);
        } else if (args_take_word(a, "RETAIN")) {
            record->retain = true;
        } else if (args_take_word(a, "TTL")) {
            right = args_number(a, "TTL", 1, MAX_TTL_S, &ttl_s);
        } else if (args_take_word(a, "FROM")) {
            right = args_string(a, "FROM", &text);
            if (right) record->publisher = slice_of(text);
        } else if (args_take_word(a, "PROPERTIES")) {
            right = args_string(a, "PROPERTIES", &text);
            if (right) record->properties = slice_of(text);
        } else if (args_take_word(a, "PRODUCER")) {
            right = args_string(a, "PRODUCER", &by->id) && args_number(a, "the epoch", 0, MAX_NUMBER, &by->epoch) &&
                    args_number(a, "the chunk", 0, MAX_NUMBER, &by->chunk);
        } else {
            right = args_end(a);
        }
    }
    record->qos = (uint8_t)qos;
    if (ttl_s > 0) record->expires_ms = record->time_ms + ttl_s * 1000;
    return right;
}

/* ---- producers --------------------------------------------------------------------------------------------- */

static verdict judge_line(server_ctx *ctx, const producer *by, const server_string *line, history_place *place) {
    uint64_t n[4], epoch = (uint64_t)by->epoch, chunk = (uint64_t)by->chunk;
    if (!history_numbers(slice_of(line), n, 4)) {
        reply_error(ctx, ERROR_WRONGTYPE, "what is kept of the producer %s was changed by others", shown(by->id));
        return VERDICT_REFUSED;
    }
    if (epoch < n[0]) {
        reply_error(ctx, ERROR_FENCED, "the epoch is %" PRIu64 ": the producer %s has %" PRIu64 " by now", epoch,
                    shown(by->id), n[0]);
        return VERDICT_REFUSED;
    }
    if (epoch > n[0] || chunk > n[1]) return VERDICT_NEW;
    if (chunk == n[1]) {
        place->sequence = n[2];
        place->time_us = n[3];
    }
    return VERDICT_REPEATED;
}

static verdict judge(server_ctx *ctx, const history_store *store, const producer *by, history_place *place) {
    server_string *name = history_key(store, place->shard, "_producers"), *line = NULL;
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    int type = hash == NULL ? SERVER_EMPTY : sv.KeyType(hash);
    verdict result = VERDICT_NEW;
    if (type != SERVER_EMPTY && type != SERVER_HASH) {
        reply_wrong_type(ctx, name, "a hash");
        result = VERDICT_REFUSED;
    } else if (type == SERVER_HASH) {
        sv.HashGet(hash, SERVER_HASH_NONE, by->id, &line, NULL);
        if (line == NULL && sv.ValueLength(hash) >= PRODUCERS_MAX) {
            reply_error(ctx, ERROR_FULL, "the shard knows %d producers: no more expected", PRODUCERS_MAX);
            result = VERDICT_REFUSED;
        } else if (line != NULL) {
            result = judge_line(ctx, by, line, place);
        }
    }
    if (line != NULL) sv.FreeString(NULL, line);
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    return result;
}

static void remember(server_ctx *ctx, const history_store *store, const producer *by, const history_place *place) {
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

/* ---- the command ------------------------------------------------------------------------------------------- */

static int reply_place(server_ctx *ctx, const history_place *place, bool new) {
    sv.ReplyWithArray(ctx, 4);
    sv.ReplyWithLongLong(ctx, place->shard);
    sv.ReplyWithLongLong(ctx, (long long)place->sequence);
    sv.ReplyWithLongLong(ctx, (long long)place->time_us);
    return sv.ReplyWithLongLong(ctx, new ? 1 : 0);
}

int history_append_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 4) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    const history_store *store = history_take_store(&a);
    if (store == NULL) return SERVER_OK;
    a.at = 4;
    hmq_record record = {.type = HMQ_RECORD_PUBLISH,
                         .time_ms = sv.Milliseconds(),
                         .topic = slice_of(argv[2]),
                         .payload = slice_of(argv[3])};
    producer by = {0};
    hmq_topic_error error = hmq_topic_check_name((const char *)record.topic.data, record.topic.len);
    if (error != HMQ_TOPIC_OK) return reply_invalid_topic(ctx, "the topic", argv[2], error);
    if (!parse_append(&a, &record, &by)) return SERVER_OK;
    if (history_stores_of_topic(index_of(ctx)->histories, record.topic) != store)
        return reply_error(ctx, ERROR_SYNTAX, "the store %s does not select the topic %s", shown(argv[1]),
                           shown(argv[2]));
    history_place place = {0};
    if (by.id != NULL)
        place.shard = hmq_index_shard(&store->seed, (const char *)record.topic.data, record.topic.len, store->shards);
    verdict known = by.id == NULL ? VERDICT_NEW : judge(ctx, store, &by, &place);
    if (known == VERDICT_REFUSED) return SERVER_OK;
    if (known == VERDICT_REPEATED) return reply_place(ctx, &place, false);
    if (!history_append(ctx, store, &record, &place, true)) return SERVER_OK;
    if (by.id != NULL) remember(ctx, store, &by, &place);
    return reply_place(ctx, &place, true);
}
