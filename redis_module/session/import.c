/* import.c - SESSION.IMPORT: puts a whole queue into a session in one step.
 *
 * Parse all, check all, then do (queue/import.c), reply.  With PRODUCER, a repeated call after a lost reply stores
 * nothing (queue/producer.h). */
#include "session/import.h"

#include <string.h>

#include "topic/packet_id.h"
#include "topic/session_key.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/session_keys.h"
#include "index/session_fence.h"
#include "index/session_hash.h"
#include "queue/producer.h"
#include "queue/queue.h"
#include "session/qos2.h"

#define MOST_MESSAGES 10000
#define WORDS 5 /* packet-id serial state ttl-ms value */
/* Half of the range of scores: messages after an imported queue need serials, too. */
#define MAX_SERIAL (QUEUE_MAX_SERIAL / 2)
#define MAX_TTL_MS (QUEUE_MAX_TTL_S * 1000)

typedef struct import_options {
    bool merge;
    long long limit;
    long long last_id; /* 0: none */
    producer_batch by;
} import_options;

/* The messages of one command. */
typedef struct import_list {
    size_t count;
    queue_item *items;
    queue_origin *origins;
    server_string **made; /* values that are not arguments; NULL: the value is one */
} import_list;

/* ---- parsing ----------------------------------------------------------------------------------------------- */

static bool parse_options(args *a, import_options *options) {
    *options = (import_options){.limit = settings.session_limit};
    while (args_left(a) && !slice_is(slice_of(a->argv[a->at]), "MESSAGES")) {
        if (args_take_word(a, "MERGE")) {
            options->merge = true;
        } else if (args_take_word(a, "LIMIT")) {
            if (!args_number(a, "LIMIT", 1, QUEUE_MAX_LIMIT, &options->limit)) return false;
        } else if (args_take_word(a, "LASTID")) {
            if (!args_number(a, "LASTID", 0, HMQ_PACKET_ID_MAX, &options->last_id)) return false;
        } else if (args_take_word(a, "PRODUCER")) {
            if (!args_string(a, "PRODUCER", &options->by.producer)) return false;
            if (!args_number(a, "the sequence of PRODUCER", 1, INT64_MAX, &options->by.sequence)) return false;
        } else {
            return args_end(a);
        }
    }
    return true;
}

static bool parse_count(args *a, size_t *count) {
    long long number;
    if (!args_take_word(a, "MESSAGES")) {
        reply_error(a->ctx, ERROR_IMPORT_MESSAGES_MISSING, WORDS);
        return false;
    }
    if (!args_number(a, "MESSAGES", 0, MOST_MESSAGES, &number)) return false;
    if (a->argc - a->at == number * WORDS) {
        *count = (size_t)number;
        return true;
    }
    reply_error(a->ctx, ERROR_IMPORT_MESSAGES_COUNT, number, a->argc - a->at, number * WORDS);
    return false;
}

/* Reads the number `word` of message i (the error counts from 1). */
static bool take_number(args *a, size_t i, const char *word, long long max, long long *number) {
    const server_string *text = a->argv[a->at++];
    if (number_of(text, 0, max, number)) return true;
    reply_error(a->ctx, ERROR_IMPORT_NUMBER, word, i + 1, shown(text), max);
    return false;
}

static bool parse_message(args *a, import_list *list, size_t i, long long now_ms) {
    long long packet_id, serial, state, ttl_ms;
    if (!take_number(a, i, "packet-id", HMQ_PACKET_ID_MAX, &packet_id) ||
        !take_number(a, i, "serial", MAX_SERIAL, &serial) || !take_number(a, i, "state", QUEUE_RELEASED, &state) ||
        !take_number(a, i, "ttl-ms", MAX_TTL_MS, &ttl_ms))
        return false;
    if (ttl_ms == 0) ttl_ms = settings.session_ttl_s * 1000;
    list->origins[i] = (queue_origin){(uint16_t)packet_id, (uint64_t)serial, (uint8_t)state};
    list->items[i] = (queue_item){.value = a->argv[a->at++], .expire_ms = now_ms + ttl_ms};
    if (state != QUEUE_RELEASED) return true;
    hmq_slice value = slice_of(list->items[i].value);
    list->items[i].value = list->made[i] = qos2_released((const char *)value.data, value.len);
    return true;
}

/* Serials must grow, and messages in flight must precede queued ones. */
static bool check_order(server_ctx *ctx, const import_list *list) {
    uint64_t serial = 0;
    size_t with_serial = 0, queued = 0; /* messages, 1 is the first; 0: none so far */
    for (size_t i = 0; i < list->count; i++) {
        const queue_origin *origin = &list->origins[i];
        if (origin->serial != 0 && origin->serial <= serial) {
            reply_error(ctx, ERROR_IMPORT_SERIALS, i + 1, (unsigned long long)origin->serial, with_serial,
                        (unsigned long long)serial);
            return false;
        }
        if (origin->state == QUEUE_IN_FLIGHT && queued != 0) {
            reply_error(ctx, ERROR_IMPORT_STATES, i + 1, queued);
            return false;
        }
        if (origin->serial != 0) serial = origin->serial, with_serial = i + 1;
        if (origin->state == QUEUE_QUEUED && queued == 0) queued = i + 1;
    }
    return true;
}

static bool parse_messages(args *a, import_list *list) {
    long long now_ms = sv.Milliseconds();
    for (size_t i = 0; i < list->count; i++) {
        if (!parse_message(a, list, i, now_ms)) return false;
    }
    return check_order(a->ctx, list);
}

static void list_begin(import_list *list, size_t count) {
    list->count = count;
    list->items = sv.Calloc(count + 1, sizeof *list->items);
    list->origins = sv.Calloc(count + 1, sizeof *list->origins);
    list->made = sv.Calloc(count + 1, sizeof *list->made);
}

static void list_end(import_list *list, size_t made) {
    for (size_t i = 0; i < made; i++) {
        if (list->made[i] != NULL) sv.FreeString(NULL, list->made[i]);
    }
    sv.Free(list->items);
    sv.Free(list->origins);
    sv.Free(list->made);
}

/* ---- the command ------------------------------------------------------------------------------------------- */

static void reply_changed_ids(server_ctx *ctx, const import_list *list) {
    long changed = 0;
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    for (size_t i = 0; i < list->count; i++) {
        uint16_t old = list->origins[i].packet_id, new = list->items[i].packet_id;
        if (old == 0 || old == new) continue;
        sv.ReplyWithArray(ctx, 2);
        sv.ReplyWithLongLong(ctx, old);
        sv.ReplyWithLongLong(ctx, new);
        changed++;
    }
    sv.ReplySetArrayLength(ctx, changed);
}

/* [stored, last serial, last packet id, [[old id, new id] ...], trimmed, new] */
static void reply_imported(queue *q, const import_list *list, const queue_result *result, bool new) {
    sv.ReplyWithArray(q->ctx, 6);
    sv.ReplyWithLongLong(q->ctx, (long long)list->count);
    sv.ReplyWithLongLong(q->ctx, (long long)result->last_serial);
    sv.ReplyWithLongLong(q->ctx, queue_last_packet_id(q));
    reply_changed_ids(q->ctx, list);
    sv.ReplyWithLongLong(q->ctx, result->trimmed);
    sv.ReplyWithLongLong(q->ctx, new ? 1 : 0);
}

static void store(queue *q, server_string *key, const import_options *options, import_list *list) {
    queue_result result;
    if (!options->merge && queue_has_messages(q)) {
        reply_error(q->ctx, ERROR_IMPORT_NOT_EMPTY, shown(key));
        return;
    }
    switch (queue_import(q, list->items, list->origins, &list->count, (size_t)options->limit,
                         (uint16_t)options->last_id, &result)) {
    case QUEUE_OK:
        if (options->by.producer != NULL) {
            producer_remember(q->ctx, q->session, options->by.producer, options->by.sequence, NULL, 0, &result,
                              result.keys_expire_ms);
        }
        reply_imported(q, list, &result, true);
        break;
    case QUEUE_BAD_COUNTER: queue_reply_wrong_counter(q); break;
    case QUEUE_BAD_SESSION: session_reply_wrong_type(q->ctx, q->session, HMQ_SUFFIX_SESSION); break;
    case QUEUE_REFUSED: /* cannot happen: the limit of an import is the caller's */
    case QUEUE_WAITS:
    case QUEUE_FULL: reply_error(q->ctx, ERROR_PACKET_IDS_USED, shown(key)); break;
    }
}

static void import_list_into(queue *q, server_string *key, const import_options *options, import_list *list) {
    static const import_list nothing;
    queue_result result = {0};
    long long last;
    producer_verdict verdict = options->by.producer == NULL
                                   ? PRODUCER_NEW
                                   : producer_judge(q->ctx, q->session, &options->by, NULL, 0, &result, &last);
    switch (verdict) {
    case PRODUCER_NEW:
    case PRODUCER_GAP: /* an import names no preceding number */ store(q, key, options, list); break;
    case PRODUCER_REPEATED:
    case PRODUCER_OLD: reply_imported(q, &nothing, &result, false); break;
    case PRODUCER_TOO_MANY: reply_error(q->ctx, ERROR_SESSION_PRODUCERS, shown(key), PRODUCERS_MAX); break;
    case PRODUCER_WRONG_TYPE: session_reply_wrong_type(q->ctx, q->session, HMQ_SUFFIX_PRODUCERS); break;
    }
}

int session_import_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    import_options options;
    import_list list;
    size_t count;
    if (!args_session_key(&a, &key) || !parse_options(&a, &options) || !parse_count(&a, &count)) return SERVER_OK;
    if (!session_check_ending(ctx, slice_of(key))) return SERVER_OK;
    list_begin(&list, count);
    if (parse_messages(&a, &list)) {
        queue q;
        if (queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE))
            import_list_into(&q, key, &options, &list);
        else
            queue_reply_wrong_type(&q);
        queue_close(&q);
    }
    list_end(&list, count);
    return SERVER_OK;
}
