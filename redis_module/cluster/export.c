/* export.c - ROUTE.EXPORT. */
#include "cluster/export.h"

#include <string.h>

#include "topic/topic.h"
#include "server/errors.h"
#include "server/slots.h"
#include "cluster/cursor.h"
#include "cluster/homes.h"
#include "cluster/life.h"
#include "cluster/own.h"
#include "cluster/table.h"

#define DEFAULT_COUNT 1000
#define MAX_COUNT 5000 /* two to three milliseconds */
#define MAX_BYTES (256 << 10) /* of filters in a page; one more may exceed them */

typedef struct request {
    hmq_slice node;
    long long n;
    server_string *cursor_text; /* NULL: not given */
    route_cursor cursor;
    long long count;
} request;

static bool parse(args *a, request *r) {
    if (!route_node(a, &r->node) || !route_generation(a, &r->n)) return false;
    while (args_left(a)) {
        if (args_take_word(a, "CURSOR")) {
            if (!args_string(a, "CURSOR", &r->cursor_text)) return false;
        } else if (args_take_word(a, "COUNT")) {
            if (!args_number(a, "COUNT", 1, MAX_COUNT, &r->count)) return false;
        } else {
            return args_end(a);
        }
    }
    if (r->cursor_text == NULL || route_cursor_read(slice_of(r->cursor_text), &r->cursor)) return true;
    reply_error(a->ctx, ERROR_PAGE_CURSOR_INVALID, shown(r->cursor_text));
    return false;
}

/* Is it the cursor of an export to this generation, which began since this node began to remember? */
static bool continues(const request *r) {
    hmq_slice own = slots_own_id(), node = r->cursor.node;
    return hmq_slice_equal(node, own) && r->cursor.generation == table_generation() && homes_of(r->node) == r->n;
}

/* Notes the generation; false after replying why not. */
static bool note_generation(server_ctx *ctx, const request *r) {
    if (!slots_node_has_any(r->node)) {
        reply_error(ctx, ERROR_ROUTES_NODE_UNKNOWN, shown_slice(r->node));
        return false;
    }
    if (homes_of(r->node) > r->n) {
        reply_error(ctx, ERROR_ROUTES_GENERATION_OVER, r->n, shown_slice(r->node), homes_of(r->node));
        return false;
    }
    if (!r->cursor.is_end && !continues(r)) {
        reply_error(ctx, ERROR_ROUTES_CURSOR_OVER);
        return false;
    }
    if (!slots_owns_any() || homes_note(r->node, r->n)) return true;
    reply_error(ctx, ERROR_ROUTES_HOMES_COUNT, HOMES_MOST);
    return false;
}

/* ---- a page ------------------------------------------------------------------------------------------------ */

typedef struct page {
    unsigned first; /* slot */
    hmq_slot_set served;
    long long rows;
    size_t bytes;
    unsigned slot; /* of the last route */
    uint8_t filter[HMQ_TOPIC_MAX_BYTES]; /* ... and its filter */
    size_t filter_len;
    route_cursor next;
} page;

static void ask_for_slots(page *p) {
    memset(&p->served, 0, sizeof p->served);
    hmq_slot_set_add(&p->served, p->first, HMQ_SLOTS - 1);
    const hmq_slot_set *served = slots_served(&p->served);
    for (size_t i = 0; i < HMQ_SLOTS / 64; i++) p->served.words[i] &= served->words[i];
}

static void reply_route(server_ctx *ctx, page *p, const own_routes_walk *walk) {
    sv.ReplyWithStringBuffer(ctx, (const char *)walk->filter.data, walk->filter.len);
    sv.ReplyWithLongLong(ctx, walk->slot);
    p->rows++;
    p->bytes += walk->filter.len;
    p->slot = walk->slot;
    p->filter_len = walk->filter.len;
    memcpy(p->filter, walk->filter.data, walk->filter.len);
}

/* The page is full: where does it end, before this route? */
static void end_before(page *p, const own_routes *routes, unsigned slot) {
    p->next.is_end = false;
    p->next.node = slots_own_id();
    p->next.generation = table_generation();
    p->next.slot = slot;
    p->next.is_within = slot == p->slot;
    p->next.vanished = own_routes_vanished(routes, slot);
    p->next.filter = (hmq_slice){p->filter, p->filter_len};
}

static void reply_routes(server_ctx *ctx, page *p, const own_routes *routes, const request *r) {
    bool continues_slot = r->cursor.is_within && hmq_slot_set_has(&p->served, p->first) &&
                          own_routes_vanished(routes, p->first) == r->cursor.vanished;
    own_routes_walk walk;
    own_routes_walk_begin(&walk, routes, p->first, continues_slot ? r->cursor.filter : (hmq_slice){0});
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    while (p->next.is_end && own_routes_walk_next(&walk)) {
        if (!hmq_slot_set_has(&p->served, walk.slot)) {
            if (walk.slot == HMQ_SLOTS - 1) break;
            own_routes_walk_skip_to(&walk, walk.slot + 1);
        } else if (p->rows == r->count || p->bytes >= MAX_BYTES) {
            end_before(p, routes, walk.slot);
        } else {
            reply_route(ctx, p, &walk);
        }
    }
    sv.ReplySetArrayLength(ctx, (long)(2 * p->rows));
    own_routes_walk_end(&walk);
}

/* Leaves the slots that are complete. */
static void keep_complete(page *p) {
    for (unsigned slot = p->next.slot; !p->next.is_end && slot < HMQ_SLOTS; slot++)
        p->served.words[slot / 64] &= ~(1ULL << (slot % 64));
}

static void reply_page(server_ctx *ctx, const request *r) {
    static page p;
    p.first = r->cursor.slot;
    p.rows = 0;
    p.bytes = p.filter_len = 0;
    p.slot = HMQ_SLOTS; /* none yet */
    p.next = (route_cursor){.is_end = true};
    const own_routes *routes = index_of(ctx)->routes;
    ask_for_slots(&p);
    sv.ReplyWithArray(ctx, 3);
    reply_routes(ctx, &p, routes, r);
    keep_complete(&p);
    reply_ranges(ctx, &p.served, true);
    server_string *text = route_cursor_text(&p.next);
    sv.ReplyWithString(ctx, text);
    sv.FreeString(NULL, text);
}

int route_export_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    request r = {.count = DEFAULT_COUNT, .cursor = {.is_end = true}};
    if (route_begin(&a) && parse(&a, &r) && note_generation(ctx, &r)) reply_page(ctx, &r);
    return SERVER_OK;
}
