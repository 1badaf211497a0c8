/* queue.c - SESSION.ADD, FETCH, ACK, SENT, LAST: parse all, check all, then do, reply. */
#include "session/queue.h"

#include <string.h>

#include "topic/packed_page.h"
#include "topic/packet_id.h"
#include "topic/record.h"
#include "topic/session_key.h"
#include "topic/tbmq.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/memory.h"
#include "server/session_keys.h"
#include "index/overflow.h"
#include "index/session_fence.h"
#include "index/session_hash.h"
#include "queue/full.h"
#include "queue/packet_ids.h"
#include "queue/producer.h"
#include "queue/queue.h"
#include "routing/qos0.h"
#include "routing/retained_cursors.h"
#include "routing/share.h"
#include "session/life.h"

#define FETCH_DEFAULT_COUNT 100
#define FETCH_MAX_COUNT 10000
#define FETCH_DEFAULT_BYTES 1048576
#define FETCH_MAX_BYTES 1073741824LL
#define PACKED_FIRST 4096
#define PACKED_KEPT 65536

/* ---- ADD --------------------------------------------------------------------------------------------------- */

typedef struct add_options {
    long long limit;
    long long ttl_s;
    bool expiring; /* the rest are pairs of seconds and payload */
    producer_batch by;
} add_options;

static bool parse_producer(args *a, producer_batch *by) {
    return args_string(a, "PRODUCER", &by->producer) &&
           args_number(a, "the sequence of PRODUCER", 1, INT64_MAX, &by->sequence) &&
           (!args_take_word(a, "AFTER") || args_number(a, "AFTER", 1, by->sequence - 1, &by->after));
}

static bool parse_add(args *a, add_options *options) {
    *options = (add_options){.limit = settings.session_limit, .ttl_s = settings.session_ttl_s};
    while (args_left(a)) {
        if (args_take_word(a, "LIMIT")) {
            if (!args_number(a, "LIMIT", 1, QUEUE_MAX_LIMIT, &options->limit)) return false;
        } else if (args_take_word(a, "TTL")) {
            if (!args_number(a, "TTL", 1, QUEUE_MAX_TTL_S, &options->ttl_s)) return false;
        } else if (args_take_word(a, "PRODUCER")) {
            if (!parse_producer(a, &options->by)) return false;
        } else if (args_take_word(a, "EXPIRING")) {
            options->expiring = true;
            break;
        } else {
            args_take_word(a, "MESSAGES");
            break;
        }
    }
    if (!args_left(a)) {
        reply_error(a->ctx, ERROR_PAYLOAD_MISSING);
        return false;
    }
    if (options->expiring && (a->argc - a->at) % 2 != 0) {
        reply_error(a->ctx, ERROR_EXPIRING_PAIRS, a->argc - a->at);
        return false;
    }
    return true;
}

static bool parse_items(args *a, const add_options *options, queue_item *items) {
    long long now_ms = sv.Milliseconds();
    while (args_left(a)) {
        long long ttl_s = options->ttl_s;
        if (options->expiring) {
            size_t len;
            sv.StringPtrLen(a->argv[a->at], &len);
            if (len == 0)
                a->at++;
            else if (!args_number(a, "seconds", 1, QUEUE_MAX_TTL_S, &ttl_s))
                return false;
        }
        items->value = a->argv[a->at++];
        items->expire_ms = now_ms + ttl_s * 1000;
        items++;
    }
    return true;
}

static void reply_added(server_ctx *ctx, const queue_item *items, size_t count, const queue_result *result) {
    sv.ReplyWithArray(ctx, 4);
    sv.ReplyWithArray(ctx, (long)count);
    for (size_t i = 0; i < count; i++) sv.ReplyWithLongLong(ctx, items[i].packet_id);
    sv.ReplyWithLongLong(ctx, (long long)result->last_serial);
    sv.ReplyWithLongLong(ctx, result->trimmed);
    sv.ReplyWithLongLong(ctx, result->expired);
}

static void store(server_ctx *ctx, server_string *key, const add_options *options, queue_item *items, size_t count) {
    queue q;
    queue_result result;
    if (!queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE)) {
        queue_reply_wrong_type(&q);
    } else {
        switch (queue_add(&q, items, count, (size_t)options->limit, &result)) {
        case QUEUE_OK:
            if (options->by.producer != NULL) {
                producer_remember(ctx, slice_of(key), options->by.producer, options->by.sequence, items, count, &result,
                                  result.keys_expire_ms);
            }
            reply_added(ctx, items, count, &result);
            break;
        case QUEUE_BAD_COUNTER: queue_reply_wrong_counter(&q); break;
        case QUEUE_BAD_SESSION: session_reply_wrong_type(ctx, slice_of(key), HMQ_SUFFIX_SESSION); break;
        case QUEUE_REFUSED: overflow_refuse(ctx, slice_of(key), OVERFLOW_REFUSE); break;
        case QUEUE_WAITS: overflow_refuse(ctx, slice_of(key), OVERFLOW_WAIT); break;
        case QUEUE_FULL: reply_error(ctx, ERROR_PACKET_IDS_USED, shown(key)); break;
        }
    }
    queue_close(&q);
}

static void add(server_ctx *ctx, server_string *key, const add_options *options, queue_item *items, size_t count) {
    queue_result result = {0};
    long long last;
    if (options->by.producer == NULL) {
        store(ctx, key, options, items, count);
        return;
    }
    if (count > PRODUCER_MAX_BATCH) {
        reply_error(ctx, ERROR_BATCH_SIZE, count, PRODUCER_MAX_BATCH);
        return;
    }
    switch (producer_judge(ctx, slice_of(key), &options->by, items, count, &result, &last)) {
    case PRODUCER_NEW: store(ctx, key, options, items, count); break;
    case PRODUCER_REPEATED: reply_added(ctx, items, count, &result); break;
    case PRODUCER_OLD: reply_added(ctx, items, 0, &result); break;
    case PRODUCER_GAP: reply_error(ctx, ERROR_BATCH_GAP, options->by.after, shown(options->by.producer), last); break;
    case PRODUCER_TOO_MANY: reply_error(ctx, ERROR_SESSION_PRODUCERS, shown(key), PRODUCERS_MAX); break;
    case PRODUCER_WRONG_TYPE: session_reply_wrong_type(ctx, slice_of(key), HMQ_SUFFIX_PRODUCERS); break;
    }
}

int session_add_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    add_options options;
    if (!args_session_key(&a, &key) || !parse_add(&a, &options)) return SERVER_OK;
    if (!session_check_ending(ctx, slice_of(key))) return SERVER_OK;
    size_t count = (size_t)(argc - a.at) / (options.expiring ? 2 : 1);
    queue_item small[16];
    queue_item *items = scratch_alloc(small, sizeof small, count * sizeof *items);
    if (parse_items(&a, &options, items)) add(ctx, key, &options, items, count);
    scratch_free(items, small);
    return SERVER_OK;
}

/* ---- FETCH ------------------------------------------------------------------------------------------------- */

static bool is_released(const char *value, size_t len) {
    hmq_record record;
    if (len == 0) return false;
    if (value[0] == '{') return memmem(value, len, "PUBREL", 6) != NULL && hmq_tbmq_is_released(value, len);
    bool may_be = len >= 2 && (value[1] & 0x0f) == HMQ_RECORD_PUBREL; /* most are not, and are not decoded */
    return may_be && hmq_record_decode((const uint8_t *)value, len, &record) == 0 && record.type == HMQ_RECORD_PUBREL;
}

typedef struct entry_reply {
    server_ctx *ctx;
    uint64_t sent; /* up to here: in flight */
} entry_reply;

static uint8_t state_of(const entry_reply *reply, uint64_t serial, const char *value, size_t len) {
    if (is_released(value, len)) return QUEUE_RELEASED;
    return serial <= reply->sent ? QUEUE_IN_FLIGHT : QUEUE_QUEUED;
}

static void reply_entry(void *context, uint64_t serial, uint16_t packet_id, const char *value, size_t len) {
    const entry_reply *reply = context;
    sv.ReplyWithArray(reply->ctx, 4);
    sv.ReplyWithLongLong(reply->ctx, (long long)serial);
    sv.ReplyWithLongLong(reply->ctx, packet_id);
    sv.ReplyWithLongLong(reply->ctx, state_of(reply, serial, value, len));
    sv.ReplyWithStringBuffer(reply->ctx, value, len);
}

/* The packed page that is being built.  Its memory is reused, unless it was more than PACKED_KEPT. */
static struct {
    uint8_t *bytes;
    size_t used, room;
} packed;

static uint8_t *packed_room(size_t len) {
    packed.bytes = array_reserve(packed.bytes, &packed.room, packed.used, len, PACKED_FIRST, 1);
    uint8_t *place = packed.bytes + packed.used;
    packed.used += len;
    return place;
}

static void pack_entry(void *context, uint64_t serial, uint16_t packet_id, const char *value, size_t len) {
    const hmq_packed_entry entry = {.serial = serial,
                                    .packet_id = packet_id,
                                    .state = state_of(context, serial, value, len),
                                    .value = {(const uint8_t *)value, len}};
    uint8_t *place = packed_room(HMQ_PACKED_ENTRY_BYTES + len);
    hmq_packed_entry_put(&entry, place);
    memcpy(place + HMQ_PACKED_ENTRY_BYTES, value, len);
}

static void reply_packed(server_ctx *ctx) {
    sv.ReplyWithStringBuffer(ctx, packed.used == 0 ? "" : (const char *)packed.bytes, packed.used);
    packed.used = 0;
    if (packed.room <= PACKED_KEPT) return;
    sv.Free(packed.bytes);
    packed.bytes = NULL;
    packed.room = 0;
}

/* [bytes, serial, packet id] of the message that is too large for a bounded page, or an empty array. */
static void reply_too_large(server_ctx *ctx, const queue_walked *walked) {
    sv.ReplyWithArray(ctx, walked->too_large > 0 ? 3 : 0);
    if (walked->too_large == 0) return;
    sv.ReplyWithLongLong(ctx, (long long)walked->too_large);
    sv.ReplyWithLongLong(ctx, (long long)walked->too_large_serial);
    sv.ReplyWithLongLong(ctx, walked->too_large_id);
}

/* Messages that are moving to other members of a group (share.h) are not handed out, nor is anything after them.  Is
 * such a message in the range? */
static bool keep_back(queue *q, queue_range *range) {
    uint64_t gives_back_from = session_facts_read(q->ctx, q->session).gives_back_from;
    if (gives_back_from == 0 || range->up_to < gives_back_from || queue_last_serial(q) < gives_back_from) return false;
    range->up_to = gives_back_from - 1;
    return true;
}

/* Are all messages of the range held back? */
static bool is_kept_back(queue *q, queue_range range) {
    return keep_back(q, &range) && !queue_any_between(q, range.after, range.up_to);
}

/* [entries, more, expired], and for a bounded range the message that was too large. */
static queue_walked reply_range(queue *q, queue_range range, uint64_t sent, bool packs) {
    entry_reply reply = {q->ctx, sent};
    queue_walked walked;
    bool keeps = keep_back(q, &range);
    sv.ReplyWithArray(q->ctx, range.bounded ? 4 : 3);
    if (packs) {
        walked = queue_walk(q, range, pack_entry, &reply);
        reply_packed(q->ctx);
    } else {
        sv.ReplyWithArray(q->ctx, SERVER_POSTPONED_LEN);
        walked = queue_walk(q, range, reply_entry, &reply);
        sv.ReplySetArrayLength(q->ctx, (long)walked.visited);
    }
    sv.ReplyWithLongLong(q->ctx, walked.more || keeps || (range.count == 0 && queue_last_serial(q) > range.after));
    sv.ReplyWithLongLong(q->ctx, walked.expired);
    if (range.bounded) reply_too_large(q->ctx, &walked);
    return walked;
}

/* Hands out the messages after those in flight: `count` at most. */
static void hand_out(queue *q, queue_range range, bool packs) {
    queue_walked walked = reply_range(q, range, range.sent, packs);
    if (walked.visited > 0) queue_set_sent(q, walked.last);
}

typedef struct fetch_options {
    long long after, count, bytes;
    long long window; /* 0: none */
    bool in_flight, packed, bounded;
} fetch_options;

static bool parse_fetch(args *a, fetch_options *options) {
    bool after = false;
    *options = (fetch_options){.count = FETCH_DEFAULT_COUNT, .bytes = FETCH_DEFAULT_BYTES};
    while (args_left(a)) {
        if (args_take_word(a, "AFTER")) {
            after = true;
            if (!args_number(a, "AFTER", 0, 1LL << 53, &options->after)) return false;
        } else if (args_take_word(a, "COUNT")) {
            if (!args_number(a, "COUNT", 1, FETCH_MAX_COUNT, &options->count)) return false;
        } else if (args_take_word(a, "BYTES")) {
            if (!args_number(a, "BYTES", 1, FETCH_MAX_BYTES, &options->bytes)) return false;
        } else if (args_take_word(a, "WINDOW")) {
            if (!args_number(a, "WINDOW", 1, HMQ_PACKET_ID_MAX, &options->window)) return false;
        } else if (args_take_word(a, "INFLIGHT")) {
            options->in_flight = true;
        } else if (args_take_word(a, "PACKED")) {
            options->packed = true;
        } else if (args_take_word(a, "BOUNDED")) {
            options->bounded = true;
        } else {
            return args_end(a);
        }
    }
    if (options->window == 0 || (!after && !options->in_flight)) return true;
    reply_error(a->ctx, ERROR_WINDOW_COMBINED);
    return false;
}

static void fetch(queue *q, const fetch_options *options) {
    uint64_t sent = session_facts_read(q->ctx, q->session).sent;
    queue_range range = {.after = (uint64_t)options->after,
                         .up_to = options->in_flight ? sent : UINT64_MAX,
                         .sent = sent,
                         .count = (size_t)options->count,
                         .bytes = (size_t)options->bytes,
                         .bounded = options->bounded};
    if (options->window > 0) {
        size_t window = (size_t)options->window, room = window - queue_count_up_to(q, sent, window);
        share_note_window(q->ctx, q->session, window);
        range.after = sent;
        if (room < range.count) range.count = room;
    }
    if (range.count > 0 && is_kept_back(q, range))
        session_reply_leaving(q->ctx, q->session);
    else if (options->window > 0)
        hand_out(q, range, options->packed);
    else
        reply_range(q, range, sent, options->packed);
}

int session_fetch_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    fetch_options options;
    queue q;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key)) || !parse_fetch(&a, &options))
        return SERVER_OK;
    if (queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE))
        fetch(&q, &options);
    else
        queue_reply_wrong_type(&q);
    queue_close(&q);
    retained_cursors_feed(ctx, slice_of(key));
    return SERVER_OK;
}

/* ---- ACK, SENT, LAST --------------------------------------------------------------------------------------- */

static void acknowledge(queue *q, const packet_id_list *list, long long next) {
    size_t removed = queue_remove(q, list->ids, list->count);
    counters.session_acked += removed;
    qos0_removed(q);
    if (next == 0) {
        sv.ReplyWithLongLong(q->ctx, (long long)removed);
        return;
    }
    sv.ReplyWithArray(q->ctx, 2);
    sv.ReplyWithLongLong(q->ctx, (long long)removed);
    uint64_t sent = session_facts_read(q->ctx, q->session).sent;
    queue_range range = {
        .after = sent, .up_to = UINT64_MAX, .sent = sent, .count = (size_t)next, .bytes = FETCH_DEFAULT_BYTES};
    hand_out(q, range, false);
}

int session_ack_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    packet_id_list list;
    long long next = 0;
    queue q;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    if (args_take_word(&a, "NEXT") && !args_number(&a, "NEXT", 1, FETCH_MAX_COUNT, &next)) return SERVER_OK;
    if (!packet_ids_parse(&a, &list)) return SERVER_OK;
    if (queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE))
        acknowledge(&q, &list, next);
    else
        queue_reply_wrong_type(&q);
    queue_close(&q);
    retained_cursors_feed_soon(ctx, slice_of(key));
    packet_ids_free(&list);
    return SERVER_OK;
}

int session_sent_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    long long serial, window = 0;
    queue q;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    if (args_take_word(&a, "WINDOW") && !args_number(&a, "WINDOW", 1, HMQ_PACKET_ID_MAX, &window)) return SERVER_OK;
    if (!args_number(&a, "serial", 0, 1LL << 53, &serial) || !args_end(&a)) return SERVER_OK;
    if (!queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE))
        queue_reply_wrong_type(&q);
    else if (queue_set_sent(&q, (uint64_t)serial) && (window == 0 || session_set_most_sent(ctx, slice_of(key), window)))
        sv.ReplyWithSimpleString(ctx, "OK");
    else
        session_reply_wrong_type(ctx, slice_of(key), HMQ_SUFFIX_SESSION);
    queue_close(&q);
    return SERVER_OK;
}

int session_last_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    queue q;
    if (!args_session_key(&a, &key) || !args_end(&a)) return SERVER_OK;
    if (!queue_open(&q, ctx, slice_of(key), SERVER_READ)) {
        queue_reply_wrong_type(&q);
    } else {
        long long last = queue_last_packet_id(&q);
        if (last >= 0)
            sv.ReplyWithLongLong(ctx, last);
        else
            queue_reply_wrong_counter(&q);
    }
    queue_close(&q);
    return SERVER_OK;
}
