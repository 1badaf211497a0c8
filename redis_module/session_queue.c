/* session_queue.c - SESSION.ADD, FETCH, ACK, LAST: parse all, check all, then do, reply. */
#include "session_queue.h"

#include "../src/packet_id.h"
#include "../src/record.h"
#include "args.h"
#include "errors.h"
#include "queue.h"
#include "session.h"

#define FETCH_DEFAULT_COUNT 100
#define FETCH_MAX_COUNT 10000
#define FETCH_DEFAULT_BYTES 1048576
#define FETCH_MAX_BYTES 1073741824LL

/* ---- ADD --------------------------------------------------------------------------------------------------- */

typedef struct add_options {
    long long limit;
    long long ttl_s;
    bool expiring; /* the rest are pairs of seconds and payload */
} add_options;

static bool parse_add(args *a, add_options *options) {
    *options = (add_options){settings.session_limit, settings.session_ttl_s, false};
    while (args_left(a)) {
        if (args_take_word(a, "LIMIT")) {
            if (!args_number(a, "LIMIT", 1, QUEUE_MAX_LIMIT, &options->limit)) return false;
        } else if (args_take_word(a, "TTL")) {
            if (!args_number(a, "TTL", 1, QUEUE_MAX_TTL_S, &options->ttl_s)) return false;
        } else if (args_take_word(a, "EXPIRING")) {
            options->expiring = true;
            break;
        } else {
            args_take_word(a, "MESSAGES");
            break;
        }
    }
    if (!args_left(a)) {
        reply_error(a->ctx, ERROR_SYNTAX, "payload is missing: at least one payload expected");
        return false;
    }
    if (options->expiring && (a->argc - a->at) % 2 != 0) {
        reply_error(a->ctx, ERROR_SYNTAX, "EXPIRING is followed by %d arguments: pairs of seconds and payload expected", a->argc - a->at);
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
            if (len == 0) a->at++;
            else if (!args_number(a, "seconds", 1, QUEUE_MAX_TTL_S, &ttl_s)) return false;
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

static void add(server_ctx *ctx, server_string *key, const add_options *options, queue_item *items, size_t count) {
    queue q;
    queue_result result;
    if (!queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE)) {
        reply_wrong_type(ctx, q.wrong_type, q.wrong_expected);
    } else {
        switch (queue_add(&q, items, count, (size_t)options->limit, &result)) {
        case QUEUE_OK: reply_added(ctx, items, count, &result); break;
        case QUEUE_BAD_COUNTER: reply_wrong_type(ctx, q.last_name, "a string with a number from 0 to 65535"); break;
        case QUEUE_FULL: reply_error(ctx, ERROR_FULL, "the session %s uses all 65535 packet identifiers", shown(key)); break;
        }
    }
    queue_close(&q);
}

int session_add_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    add_options options;
    if (!args_session_key(&a, &key) || !parse_add(&a, &options)) return SERVER_OK;
    size_t count = (size_t)(argc - a.at) / (options.expiring ? 2 : 1);
    queue_item small[16];
    queue_item *items = count <= 16 ? small : sv.Alloc(count * sizeof *items);
    if (parse_items(&a, &options, items)) add(ctx, key, &options, items, count);
    if (items != small) sv.Free(items);
    return SERVER_OK;
}

/* ---- FETCH ------------------------------------------------------------------------------------------------- */

enum { STATE_QUEUED = 0, STATE_RELEASED = 2 };

/* TBMQ marks a released message inside its JSON. */
static bool is_released_json(const char *value, size_t len) {
    static const char mark[] = "\"packetType\":\"PUBREL\"";
    if (len < sizeof mark || value[0] != '{') return false;
    for (size_t i = 0; i + sizeof mark - 1 <= len; i++) {
        size_t j = 0;
        while (j < sizeof mark - 1 && value[i + j] == mark[j]) j++;
        if (j == sizeof mark - 1) return true;
    }
    return false;
}

static int state_of(const char *value, size_t len) {
    hmq_record record;
    if (hmq_record_is((const uint8_t *)value, len)) {
        bool pubrel = hmq_record_decode((const uint8_t *)value, len, &record) == 0 && record.type == HMQ_RECORD_PUBREL;
        return pubrel ? STATE_RELEASED : STATE_QUEUED;
    }
    return is_released_json(value, len) ? STATE_RELEASED : STATE_QUEUED;
}

static void reply_entry(void *context, uint64_t serial, uint16_t packet_id, const char *value, size_t len) {
    server_ctx *ctx = context;
    sv.ReplyWithArray(ctx, 4);
    sv.ReplyWithLongLong(ctx, (long long)serial);
    sv.ReplyWithLongLong(ctx, packet_id);
    sv.ReplyWithLongLong(ctx, state_of(value, len));
    sv.ReplyWithStringBuffer(ctx, value, len);
}

int session_fetch_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    long long after = 0, count = FETCH_DEFAULT_COUNT, bytes = FETCH_DEFAULT_BYTES;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    while (args_left(&a)) {
        if (args_take_word(&a, "AFTER")) {
            if (!args_number(&a, "AFTER", 0, 1LL << 53, &after)) return SERVER_OK;
        } else if (args_take_word(&a, "COUNT")) {
            if (!args_number(&a, "COUNT", 1, FETCH_MAX_COUNT, &count)) return SERVER_OK;
        } else if (args_take_word(&a, "BYTES")) {
            if (!args_number(&a, "BYTES", 1, FETCH_MAX_BYTES, &bytes)) return SERVER_OK;
        } else if (!args_end(&a)) {
            return SERVER_OK;
        }
    }
    queue q;
    if (!queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE)) {
        reply_wrong_type(ctx, q.wrong_type, q.wrong_expected);
    } else {
        bool more;
        long long expired;
        sv.ReplyWithArray(ctx, 3);
        sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
        size_t visited = queue_walk(&q, (uint64_t)after, (size_t)count, (size_t)bytes, reply_entry, ctx, &more, &expired);
        sv.ReplySetArrayLength(ctx, (long)visited);
        sv.ReplyWithLongLong(ctx, more);
        sv.ReplyWithLongLong(ctx, expired);
    }
    queue_close(&q);
    return SERVER_OK;
}

/* ---- ACK, LAST --------------------------------------------------------------------------------------------- */

static bool parse_packet_ids(args *a, uint16_t *packet_ids) {
    while (args_left(a)) {
        long long packet_id;
        if (!args_number(a, "packet-id", 1, HMQ_PACKET_ID_MAX, &packet_id)) return false;
        *packet_ids++ = (uint16_t)packet_id;
    }
    return true;
}

int session_ack_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    if (!args_session_key(&a, &key) || !session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    size_t count = (size_t)(argc - a.at);
    if (count == 0) return reply_error(ctx, ERROR_SYNTAX, "packet-id is missing: at least one expected");
    uint16_t small[64];
    uint16_t *packet_ids = count <= 64 ? small : sv.Alloc(count * sizeof *packet_ids);
    queue q;
    if (parse_packet_ids(&a, packet_ids)) {
        if (!queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE)) {
            reply_wrong_type(ctx, q.wrong_type, q.wrong_expected);
        } else {
            size_t removed = queue_remove(&q, packet_ids, count);
            counters.session_acked += removed;
            sv.ReplyWithLongLong(ctx, (long long)removed);
        }
        queue_close(&q);
    }
    if (packet_ids != small) sv.Free(packet_ids);
    return SERVER_OK;
}

int session_last_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key;
    queue q;
    if (!args_session_key(&a, &key) || !args_end(&a)) return SERVER_OK;
    if (!queue_open(&q, ctx, slice_of(key), SERVER_READ)) {
        reply_wrong_type(ctx, q.wrong_type, q.wrong_expected);
    } else {
        long long last = queue_last_packet_id(&q);
        if (last >= 0) sv.ReplyWithLongLong(ctx, last);
        else reply_wrong_type(ctx, q.last_name, "a string with a number from 0 to 65535");
    }
    queue_close(&q);
    return SERVER_OK;
}
