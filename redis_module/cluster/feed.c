/* feed.c - ROUTE.FEED and ROUTE.ADD. */
#include "cluster/feed.h"

#include <string.h>

#include "server/errors.h"
#include "server/slots.h"
#include "server/slots_option.h"
#include "cluster/cursor.h"
#include "cluster/life.h"
#include "cluster/table.h"

#define MOST_ROUTES 5000 /* in a command: as in a page of an export */

typedef struct fed {
    hmq_slice node;
    long long n;
    server_string *from, *to;
    route_cursor begin, end;
    slots_option slots;
} fed;

static bool parse_cursor(args *a, const char *name, server_string **text, route_cursor *cursor) {
    if (!args_string(a, name, text)) return false;
    if (route_cursor_read(slice_of(*text), cursor)) return true;
    reply_error(a->ctx, ERROR_PAGE_CURSOR_INVALID, shown(*text));
    return false;
}

static bool is_own_generation(const fed *f) {
    hmq_slice own = slots_own_id();
    return f->n == table_generation() && hmq_slice_equal(f->node, own);
}

/* Are the rest pairs of filter and slot?  False after replying an error; nothing was added. */
static bool check_pairs(args a) {
    server_string *filter;
    unsigned slot;
    int given = a.argc - a.at;
    if (given % 2 != 0 || given / 2 > MOST_ROUTES) {
        reply_error(a.ctx, ERROR_ROUTES_PAIRS, given, MOST_ROUTES);
        return false;
    }
    while (args_left(&a)) {
        if (!route_pair(&a, &filter, &slot)) return false;
    }
    return true;
}

/* Adds the pairs that were checked; false after replying that the bytes do not suffice. */
static bool add_pairs(args *a, bool (*add)(hmq_slice filter, unsigned slot)) {
    server_string *filter;
    unsigned slot;
    while (args_left(a) && route_pair(a, &filter, &slot)) {
        if (add(slice_of(filter), slot)) continue;
        reply_error(a->ctx, ERROR_ROUTES_BYTES, table_bytes(), settings.max_route_bytes);
        return false;
    }
    return true;
}

/* Reads everything but the routes. */
static bool parse(args *a, fed *f) {
    slots_option_begin(&f->slots);
    if (!route_node(a, &f->node) || !route_generation(a, &f->n)) return false;
    if (!parse_cursor(a, "cursor", &f->from, &f->begin) || !parse_cursor(a, "next", &f->to, &f->end)) return false;
    if (args_take_word(a, "SLOTS") && !slots_option_parse(a, &f->slots)) return false;
    return !args_left(a) || args_take_word(a, "ROUTES") || args_end(a);
}

int route_feed_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    fed f;
    if (!route_begin_answer(&a) || !parse(&a, &f) || !check_pairs(a)) return SERVER_OK;
    if (!is_own_generation(&f))
        return reply_error(ctx, ERROR_ROUTES_GENERATION_OVER, f.n, shown_slice(f.node), table_generation());
    if (f.begin.is_within && !table_feed_continues(slice_of(f.from)))
        return reply_error(ctx, ERROR_ROUTES_GAP, shown(f.from));
    if (!add_pairs(&a, table_feed)) return SERVER_OK;
    if (f.slots.given) table_mark_covered(&f.slots.asked);
    if (f.end.is_within) table_feed_note_end(slice_of(f.to));
    sv.ReplyWithSimpleString(ctx, "OK");
    return SERVER_OK;
}

int route_add_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    if (!route_begin_answer(&a) || !check_pairs(a) || !add_pairs(&a, table_add)) return SERVER_OK;
    hmq_slice own = slots_own_id();
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithStringBuffer(ctx, (const char *)own.data, own.len);
    sv.ReplyWithLongLong(ctx, table_generation());
    return SERVER_OK;
}
