/* removal.c - removes what is no longer needed. */
#include "cluster/removal.h"

#include "server/errors.h"
#include "server/slots.h"
#include "cluster/homes.h"
#include "cluster/life.h"
#include "cluster/own.h"
#include "cluster/table.h"

int route_token_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *filter;
    unsigned slot;
    if (!route_begin_answer(&a) || !route_pair(&a, &filter, &slot)) return SERVER_OK;
    uint32_t token = table_token(slice_of(filter), slot);
    if (token == 0) {
        sv.ReplyWithNull(ctx);
        return SERVER_OK;
    }
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithLongLong(ctx, table_generation());
    sv.ReplyWithLongLong(ctx, token);
    return SERVER_OK;
}

int route_unused_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *filter;
    unsigned slot;
    if (!route_begin(&a) || !route_pair(&a, &filter, &slot) || !route_check_slot(ctx, slot)) return SERVER_OK;
    sv.ReplyWithLongLong(ctx, !own_routes_has(index_of(ctx)->routes, slice_of(filter), slot));
    return SERVER_OK;
}

int route_del_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *filter;
    unsigned slot;
    long long n, token;
    if (!route_begin_answer(&a) || !route_pair(&a, &filter, &slot) || !route_generation(&a, &n)) return SERVER_OK;
    if (!args_number(&a, "token", 1, UINT32_MAX, &token)) return SERVER_OK;
    bool same = n == table_generation() && table_token(slice_of(filter), slot) == (uint32_t)token;
    if (same) table_remove(slice_of(filter), slot);
    sv.ReplyWithLongLong(ctx, same);
    return SERVER_OK;
}

int route_drophome_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    hmq_slice node;
    long long n;
    if (!route_begin(&a) || !route_node(&a, &node) || !route_generation(&a, &n)) return SERVER_OK;
    if (slots_node_has_any(node)) return reply_error(ctx, ERROR_ROUTES_NODE_LIVES, shown_slice(node));
    bool noted = homes_of(node) == n;
    if (noted) homes_drop(node);
    sv.ReplyWithLongLong(ctx, noted);
    return SERVER_OK;
}

int route_renew_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    long long n;
    if (!route_begin_answer(&a) || !route_generation(&a, &n)) return SERVER_OK;
    if (n >= table_generation()) table_forget(n);
    sv.ReplyWithLongLong(ctx, table_generation());
    return SERVER_OK;
}
