/* answer.c - ROUTE.CHECK, ROUTE.MCHECK and ROUTE.INFO. */
#include "cluster/answer.h"

#include <string.h>

#include "topic/session_key.h"
#include "topic/topic.h"
#include "server/errors.h"
#include "server/reply.h"
#include "server/slots.h"
#include "index/session_fence.h"
#include "cluster/homes.h"
#include "cluster/life.h"
#include "cluster/own.h"
#include "cluster/standstill.h"
#include "cluster/table.h"

static void reply_id(server_ctx *ctx) {
    hmq_slice own = slots_own_id();
    sv.ReplyWithStringBuffer(ctx, (const char *)own.data, own.len);
}

/* ---- what is known ------------------------------------------------------------------------------------------ */

/* What the caller knows of a topic. */
typedef struct known {
    hmq_slice node; /* len 0: nothing */
    long long n, version; /* version -1: nothing */
} known;

static bool is_right(const known *k, hmq_slice topic) {
    hmq_slice own = slots_own_id();
    return k->n == table_generation() && k->version >= 0 && (unsigned long long)k->version == table_version(topic) &&
           hmq_slice_equal(k->node, own);
}

static bool take_topic(args *a, server_string **topic) {
    if (!args_string(a, "topic", topic)) return false;
    hmq_slice text = slice_of(*topic);
    hmq_topic_error error = hmq_topic_check_name((const char *)text.data, text.len);
    if (error == HMQ_TOPIC_OK) return true;
    reply_invalid_topic(a->ctx, "the topic", *topic, error);
    return false;
}

/* May this node answer now?  False after replying why not. */
static bool can_answer(server_ctx *ctx) {
    long long stood_ms;
    unsigned covered = table_covered_count();
    if (standstill_may_be_replaced(&stood_ms))
        reply_error(ctx, ERROR_ROUTES_STOOD_STILL, stood_ms);
    else if (covered < HMQ_SLOTS)
        reply_error(ctx, ERROR_ROUTES_MISSING, covered, HMQ_SLOTS);
    else
        return true;
    return false;
}

static void reply_version_and_slots(server_ctx *ctx, hmq_slice topic) {
    hmq_slot_set slots;
    table_match(topic, &slots);
    sv.ReplyWithLongLong(ctx, (long long)table_version(topic));
    reply_ranges(ctx, &slots, true);
}

bool route_reaches_nobody(server_ctx *ctx, hmq_slice topic) {
    static const hmq_slot_set none;
    hmq_slot_set slots;
    if (!route_look(ctx) || table_covered_count() < HMQ_SLOTS) return false;
    table_match(topic, &slots);
    return memcmp(&slots, &none, sizeof slots) == 0;
}

/* ---- ROUTE.CHECK ------------------------------------------------------------------------------------------- */

int route_check_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *key, *topic;
    known k = {.version = -1};
    if (!route_begin_answer(&a) || !args_session_key(&a, &key) || !take_topic(&a, &topic)) return SERVER_OK;
    if (!session_check_epoch(&a, slice_of(key))) return SERVER_OK;
    if (args_take_word(&a, "KNOWN") && !(route_node(&a, &k.node) && route_generation(&a, &k.n) &&
                                         args_number(&a, "version", 0, INT64_MAX, &k.version)))
        return SERVER_OK;
    if (!args_end(&a) || !can_answer(ctx)) return SERVER_OK;
    if (is_right(&k, slice_of(topic))) {
        sv.ReplyWithSimpleString(ctx, "OK");
        return SERVER_OK;
    }
    sv.ReplyWithArray(ctx, 4);
    reply_id(ctx);
    sv.ReplyWithLongLong(ctx, table_generation());
    reply_version_and_slots(ctx, slice_of(topic));
    return SERVER_OK;
}

/* ---- ROUTE.MCHECK ------------------------------------------------------------------------------------------ */

#define MCHECK_MOST 1024
#define MCHECK_MS 2
#define MCHECK_WORDS 4 /* of a check */

typedef struct check {
    server_string *key, *topic;
    long long epoch, version;
} check;

static bool take_key(args *a, server_string **key) {
    if (!args_string(a, "key", key)) return false;
    hmq_slice text = slice_of(*key);
    if (hmq_session_key_check((const char *)text.data, text.len)) return true;
    reply_error(a->ctx, ERROR_SESSION_KEY_INVALID, shown(*key));
    return false;
}

static bool take_check(args *a, check *c) {
    return take_key(a, &c->key) && take_topic(a, &c->topic) && args_number(a, "epoch", 0, INT64_MAX, &c->epoch) &&
           args_number(a, "version", -1, INT64_MAX, &c->version);
}

/* Are the rest checks?  False after replying an error. */
static bool are_checks(args a) {
    check c;
    int given = a.argc - a.at;
    if (given == 0 || given % MCHECK_WORDS != 0 || given / MCHECK_WORDS > MCHECK_MOST) {
        reply_error(a.ctx, ERROR_ROUTES_CHECKS, given, MCHECK_MOST);
        return false;
    }
    while (args_left(&a)) {
        if (!take_check(&a, &c)) return false;
    }
    return true;
}

/* Has this node the publisher's session, with this epoch?  False after replying why not. */
static bool may_ask(server_ctx *ctx, const check *c) {
    hmq_slice session = slice_of(c->key);
    return route_check_slot(ctx, slots_of_key(session)) && session_require_epoch(ctx, session, c->epoch);
}

static void reply_check(server_ctx *ctx, const check *c, const known *k) {
    if (!may_ask(ctx, c)) return;
    if (is_right(k, slice_of(c->topic))) {
        sv.ReplyWithSimpleString(ctx, "OK");
        return;
    }
    sv.ReplyWithArray(ctx, 2);
    reply_version_and_slots(ctx, slice_of(c->topic));
}

int route_mcheck_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    known k;
    check c;
    if (!route_begin_answer(&a) || !route_node(&a, &k.node) || !route_generation(&a, &k.n)) return SERVER_OK;
    if (!are_checks(a) || !can_answer(ctx)) return SERVER_OK;
    uint64_t until_us = monotonic_us() + 1000ULL * MCHECK_MS;
    sv.ReplyWithArray(ctx, 3);
    reply_id(ctx);
    sv.ReplyWithLongLong(ctx, table_generation());
    sv.ReplyWithArray(ctx, (a.argc - a.at) / MCHECK_WORDS);
    while (args_left(&a) && take_check(&a, &c)) {
        k.version = c.version;
        if (monotonic_us() < until_us)
            reply_check(ctx, &c, &k);
        else
            reply_error(ctx, ERROR_ROUTES_CHECKS_LONG, MCHECK_MS);
    }
    return SERVER_OK;
}

/* ---- ROUTE.INFO -------------------------------------------------------------------------------------------- */

int route_info_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    if (!route_begin_look(&a)) return SERVER_OK;
    size_t own = own_routes_count(index_of(ctx)->routes);
    sv.ReplyWithMap(ctx, 8);
    sv.ReplyWithCString(ctx, "node");
    reply_id(ctx);
    reply_field(ctx, "generation", (size_t)table_generation());
    reply_field(ctx, "own", own);
    reply_field(ctx, "routes", table_routes());
    reply_field(ctx, "bytes", table_bytes());
    reply_field(ctx, "forgotten", table_forgotten_bytes());
    sv.ReplyWithCString(ctx, "uncovered");
    reply_ranges(ctx, table_covered_slots(), false);
    sv.ReplyWithCString(ctx, "homes");
    homes_reply(ctx);
    return SERVER_OK;
}
