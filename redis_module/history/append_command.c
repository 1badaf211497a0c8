/* append_command.c - HISTORY.APPEND: appends to history without publishing, once per chunk of a producer. */
#include "topic/topic.h"
#include "history/index.h"
#include "server/errors.h"
#include "history/append.h"
#include "history/history.h"
#include "history/policy_write.h"
#include "history/producer.h"
#include "history/slots.h"

#define MAX_TTL_S 4294967295LL /* message expiry interval of MQTT 5.0 */

static bool parse_append(args *a, hmq_record *record, history_producer *by, long long *shard) {
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
            right = history_producer_parse(a, by);
        } else if (args_take_word(a, "SHARD")) {
            right = args_number(a, "SHARD", 0, HISTORY_SHARDS_MAX - 1, shard);
        } else {
            right = args_end(a);
        }
    }
    record->qos = (uint8_t)qos;
    if (right && ttl_s > 0) record->expires_ms = record->time_ms + ttl_s * 1000;
    return right;
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
    args options = a;
    options.at = 4;
    const history_store *store = history_take_store(&a, history_shard_option(&options));
    if (store == NULL) return SERVER_OK;
    a.at = 4;
    hmq_record record = {.type = HMQ_RECORD_PUBLISH,
                         .time_ms = sv.Milliseconds(),
                         .topic = slice_of(argv[2]),
                         .payload = slice_of(argv[3])};
    history_producer by = {0};
    long long requested_shard = -1;
    hmq_topic_error error = hmq_topic_check_name((const char *)record.topic.data, record.topic.len);
    if (error != HMQ_TOPIC_OK) return reply_invalid_topic(ctx, "the topic", argv[2], error);
    if (!parse_append(&a, &record, &by, &requested_shard)) return SERVER_OK;
    if (history_stores_of_topic(index_of(ctx)->histories, record.topic) != store)
        return reply_error(ctx, ERROR_TOPIC_OF_OTHER_STORE, shown(argv[1]), shown(argv[2]));
    history_place place = {0};
    if (by.id != NULL || can.cluster || requested_shard >= 0)
        place.shard = hmq_index_shard(&store->seed, (const char *)record.topic.data, record.topic.len, store->spread);
    if (requested_shard >= 0 && requested_shard != place.shard)
        return reply_error(ctx, ERROR_TOPIC_OF_OTHER_SHARD, requested_shard, shown(argv[2]), place.shard);
    if (!history_check_here(ctx, store, place.shard)) return SERVER_OK;
    history_chunk known = by.id == NULL ? HISTORY_NEW : history_producer_check(ctx, store, &by, &place);
    if (known == HISTORY_REFUSED) return SERVER_OK;
    if (known == HISTORY_REPEATED) return reply_place(ctx, &place, false);
    if (!history_append(ctx, store, &record, &place, true)) return SERVER_OK;
    if (by.id != NULL) history_producer_remember(ctx, store, &by, &place);
    history_policy_copy_to_shard(ctx, store, place.shard);
    return reply_place(ctx, &place, true);
}
