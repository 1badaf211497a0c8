/* import.c - HISTORY.IMPORT: many messages into one shard in one step, as records (src/topic/record.h).
 *
 * Everything is checked before the first write: records, topics, keys.  No epoch ends within an import, so an epoch and the
 * tail (history/tail.h) may exceed their limits by the size of an import. */
#include "topic/topic.h"
#include "history/index.h"
#include "server/errors.h"
#include "index/index.h"
#include "history/append.h"
#include "history/history.h"
#include "history/policy_write.h"
#include "history/producer.h"
#include "history/slots.h"

#define RECORDS_MAX 10000

typedef struct import {
    const history_store *store;
    unsigned shard;
    history_producer by;
    hmq_record *records;
    size_t count;
} import;

static bool refuse(server_ctx *ctx, size_t number, const char *what, const char *expected) {
    reply_error(ctx, ERROR_RECORD_INVALID, number, what, expected);
    return false;
}

/* Reads the record with this number; 1 is the first. */
static bool take_record(server_ctx *ctx, import *m, size_t number, hmq_slice bytes) {
    hmq_record *record = &m->records[number - 1];
    if (hmq_record_decode(bytes.data, bytes.len, record) != 0 || record->type != HMQ_RECORD_PUBLISH)
        return refuse(ctx, number, "is not a published message", "a record of src/topic/record.h");
    if (record->share.len > 0) return refuse(ctx, number, "has a share", "a message as it was published");
    const char *topic = (const char *)record->topic.data;
    size_t len = record->topic.len;
    if (hmq_topic_check_name(topic, len) != HMQ_TOPIC_OK)
        return refuse(ctx, number, "has no valid topic", "a topic name");
    if (history_stores_of_topic(index_of(ctx)->histories, record->topic) != m->store) {
        reply_error(ctx, ERROR_RECORD_OF_OTHER_STORE, number, shown_slice(m->store->name), shown_slice(record->topic));
        return false;
    }
    unsigned shard = hmq_index_shard(&m->store->seed, topic, len, m->store->spread);
    if (shard == m->shard) return true;
    reply_error(ctx, ERROR_RECORD_OF_OTHER_SHARD, number, shown_slice(record->topic), shard, m->shard);
    return false;
}

static bool take_records(args *a, import *m) {
    m->count = (size_t)(a->argc - a->at);
    if (m->count < 1 || m->count > RECORDS_MAX) {
        reply_error(a->ctx, ERROR_RECORDS_COUNT, m->count, RECORDS_MAX);
        return false;
    }
    m->records = sv.Alloc(m->count * sizeof *m->records);
    for (size_t i = 0; i < m->count; i++) {
        if (!take_record(a->ctx, m, i + 1, slice_of(a->argv[a->at + (int)i]))) return false;
    }
    return true;
}

static bool parse(args *a, import *m) {
    long long shard;
    m->store = history_take_store(a, 2);
    if (m->store == NULL || !args_number(a, "the shard", 0, m->store->shards - 1, &shard)) return false;
    m->shard = (unsigned)shard;
    if (!history_check_here(a->ctx, m->store, m->shard) || !history_may_change(a->ctx, m->store, m->shard))
        return false;
    while (args_left(a)) {
        if (args_take_word(a, "RECORD")) return take_records(a, m);
        bool right = args_take_word(a, "PRODUCER") ? history_producer_parse(a, &m->by) : args_end(a);
        if (!right) return false;
    }
    reply_error(a->ctx, ERROR_RECORDS_MISSING);
    return false;
}

static int reply_range(server_ctx *ctx, const import *m, uint64_t last, bool new) {
    uint64_t first = last < m->count ? 0 : last - m->count + 1;
    sv.ReplyWithArray(ctx, 3);
    sv.ReplyWithLongLong(ctx, (long long)first);
    sv.ReplyWithLongLong(ctx, (long long)last);
    return sv.ReplyWithLongLong(ctx, new ? 1 : 0);
}

static void run(server_ctx *ctx, import *m) {
    history_place place = {.shard = m->shard};
    history_chunk known = m->by.id == NULL ? HISTORY_NEW : history_producer_check(ctx, m->store, &m->by, &place);
    if (known == HISTORY_REFUSED) return;
    bool new = known == HISTORY_NEW;
    if (new && !history_append_all(ctx, m->store, m->shard, m->records, m->count, &place)) return;
    if (new && m->by.id != NULL) history_producer_remember(ctx, m->store, &m->by, &place);
    if (new) history_policy_copy_to_shard(ctx, m->store, m->shard);
    reply_range(ctx, m, place.sequence, new);
}

int history_import_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 5) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
import m = {0 };
    if (parse(&a, &m)) run(ctx, &m);
    sv.Free(m.records);
    return SERVER_OK;
}
