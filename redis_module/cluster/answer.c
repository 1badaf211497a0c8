/* answer.c - ROUTE.CHECK and ROUTE.INFO. */
#include "cluster/answer.h"

#include <string.h>

#include "topic/topic.h"
#include "server/errors.h"
#include "server/slots.h"
#include "index/session_fence.h"
#include "cluster/homes.h"
#include "cluster/life.h"
#include "cluster/own.h"
#include "cluster/table.h"

static void reply_id(server_ctx *ctx) {
    hmq_slice own = slots_own_id();
    sv.ReplyWithStringBuffer(ctx, (const char *)own.data, own.len);
}

/* ---- ROUTE.CHECK ------------------------------------------------------------------------------------------- */

typedef struct request {
    server_string *key, *topic;
    hmq_slice node; /* len 0: nothing is known */
    long long n, version;
} request;

static bool parse(args *a, request *r) {
    if (!args_session_key(a, &r->key) || !args_string(a, "topic", &r->topic)) return false;
    hmq_slice topic = slice_of(r->topic);
    hmq_topic_error error = hmq_topic_check_name((const char *)topic.data, topic.len);
    if (error != HMQ_TOPIC_OK) {
        reply_invalid_topic(a->ctx, "the topic", r->topic, error);
        return false;
    }
    if (!session_check_epoch(a, slice_of(r->key))) return false;
    if (!args_take_word(a, "KNOWN")) return args_end(a);
    return route_node(a, &r->node) && route_generation(a, &r->n) &&
           args_number(a, "version", 0, INT64_MAX, &r->version) && args_end(a);
}

static bool is_known(const request *r) {
    hmq_slice own = slots_own_id();
    return r->n == table_generation() && (unsigned long long)r->version == table_version(slice_of(r->topic)) &&
           r->node.len == own.len && memcmp(r->node.data, own.data, own.len) == 0;
}

int route_check_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    request r = {0};
    if (!route_begin_answer(&a) || !parse(&a, &r)) return SERVER_OK;
    unsigned covered = table_covered_count();
    if (covered < HMQ_SLOTS) return reply_error(ctx, ERROR_ROUTES_MISSING, covered, HMQ_SLOTS);
    if (is_known(&r)) {
        sv.ReplyWithSimpleString(ctx, "OK");
        return SERVER_OK;
    }
    hmq_slot_set slots;
    table_match(slice_of(r.topic), &slots);
    sv.ReplyWithArray(ctx, 4);
    reply_id(ctx);
    sv.ReplyWithLongLong(ctx, table_generation());
    sv.ReplyWithLongLong(ctx, (long long)table_version(slice_of(r.topic)));
    reply_ranges(ctx, &slots, true);
    return SERVER_OK;
}

/* ---- ROUTE.INFO -------------------------------------------------------------------------------------------- */

static void reply_number(server_ctx *ctx, const char *name, size_t value) {
    sv.ReplyWithCString(ctx, name);
    sv.ReplyWithLongLong(ctx, (long long)value);
}

int route_info_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    if (!route_begin_look(&a)) return SERVER_OK;
    size_t own = own_routes_count(index_of(ctx)->routes);
    sv.ReplyWithMap(ctx, 8);
    sv.ReplyWithCString(ctx, "node");
    reply_id(ctx);
    reply_number(ctx, "generation", (size_t)table_generation());
    reply_number(ctx, "own", own);
    reply_number(ctx, "routes", table_routes());
    reply_number(ctx, "bytes", table_bytes());
    reply_number(ctx, "forgotten", table_forgotten_bytes());
    sv.ReplyWithCString(ctx, "uncovered");
    reply_ranges(ctx, table_covered(), false);
    sv.ReplyWithCString(ctx, "homes");
    homes_reply(ctx);
    return SERVER_OK;
}
