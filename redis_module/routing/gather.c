/* gather.c - collects the deliveries of several publishes of one command, and makes those of each session together.
 *
 *      publishes     p1 -> A, B      p2 -> A      p3 -> B, A
 *      delivered     A: p1 p2 p3     B: p1 p3
 *
 * Opening a queue, moving its counter and replicating its references are most of a message's cost.  Here they happen once per
 * session.  Each session gets its messages in the order of the publishes.  Only the order among different sessions differs
 * from executing the publishes one by one.
 *
 * A queue without room for all of its messages gets them one by one: each may push out an older one, which listeners have
 * received before. */
#include "routing/delivery_parts.h"

#include "server/memory.h"
#include "index/filters.h"
#include "routing/step_budget.h"

/* Maximum number of noted deliveries; then they are made.  It bounds memory, and does not change the order. */
#define GATHERED_MOST 8192
#define AT_ONCE 64 /* messages of one session that are added together */

typedef struct gathered {
    server_string *value;
    long long expire_ms;
    long long *reached;
    uint32_t next; /* place of the session's next one, plus 1; 0: none */
    uint8_t qos;
    bool retain, stored;
} gathered;

typedef struct gathering { /* of one session */
    indexed_session *session;
    uint32_t first, last; /* places of deliveries, plus 1 */
} gathering;

static struct {
    index_t *index; /* pinned while deliveries are noted; NULL: none are */
    gathered *list;
    size_t count, room;
    gathering *sessions;
    size_t session_count, session_room;
    uint64_t mark;
} noted = {.mark = 1};

/* ---- noting ------------------------------------------------------------------------------------------------ */

static void make_room(void) {
    noted.list = array_reserve(noted.list, &noted.room, noted.count, 1, 256, sizeof *noted.list);
    noted.sessions =
        array_reserve(noted.sessions, &noted.session_room, noted.session_count, 1, 64, sizeof *noted.sessions);
}

static gathering *gathering_of(indexed_session *session) {
    if (session->gathered.number == noted.mark) return &noted.sessions[session->gathered.slot];
    session->gathered = (session_mark){noted.mark, (uint32_t)noted.session_count};
    noted.sessions[noted.session_count] = (gathering){.session = session};
    return &noted.sessions[noted.session_count++];
}

void gather(server_ctx *ctx, index_t *index, indexed_session *session, message *m, const delivery_how *how,
            long long *reached) {
    bool nobody, stored = delivery_is_stored(ctx, session, m, how, &nobody);
    if (nobody) return;
    if (noted.count >= GATHERED_MOST) gather_settle(ctx);
    if (noted.index == NULL) index_pin(noted.index = index, INDEX_SESSIONS);
    make_room();
    noted.list[noted.count++] = (gathered){.value = sv.HoldString(NULL, delivery_encoded(m, how)),
                                           .expire_ms = m->expire_ms,
                                           .reached = reached,
                                           .qos = how->qos,
                                           .retain = how->retain,
                                           .stored = stored};
    step_budget_note(step_units(slice_of(noted.list[noted.count - 1].value).len, how->qos));
    gathering *g = gathering_of(session);
    uint32_t place = (uint32_t)noted.count;
    if (g->first == 0)
        g->first = place;
    else
        noted.list[g->last - 1].next = place;
    g->last = place;
}

/* ---- handing over ------------------------------------------------------------------------------------------ */

/* Up to AT_ONCE deliveries of one session, and the items to store. */
typedef struct portion {
    gathered *deliveries[AT_ONCE];
    size_t count;
    queue_item items[AT_ONCE];
    size_t stored;
} portion;

/* Returns the place where the next portion begins; 0: this was the last. */
static uint32_t take(portion *p, uint32_t from) {
    p->count = p->stored = 0;
    for (; from != 0 && p->count < AT_ONCE; from = p->deliveries[p->count++]->next) {
        gathered *d = p->deliveries[p->count] = &noted.list[from - 1];
        if (d->stored) p->items[p->stored++] = (queue_item){.value = d->value, .expire_ms = d->expire_ms};
    }
    return from;
}

/* False if the queue may not take all of them: then it takes none. */
static bool store(server_ctx *ctx, const indexed_session *session, portion *p) {
    queue q;
    queue_result result;
    size_t limit = (size_t)settings.session_limit;
    bool open = queue_open(&q, ctx, slice_of(session->key), SERVER_READ | SERVER_WRITE);
    queue_status status = QUEUE_BAD_SESSION;
    if (open) status = queue_add_whole(&q, p->items, p->stored, limit, &result);
    queue_close(&q);
    return status == QUEUE_OK || status == QUEUE_FULL;
}

/* Pushes a message that was stored, or that must not be stored. */
static bool hand_over(server_ctx *ctx, const indexed_session *session, const gathered *d, const queue_item *item) {
    if (!d->stored) return delivery_qos0(ctx, session, d->value, d->retain, d->expire_ms);
    if (item->packet_id == 0) return false;
    hmq_delivery delivery = delivery_of(item, d->qos, d->retain);
    delivery_push(ctx, session, d->value, &delivery);
    return true;
}

static void serve(server_ctx *ctx, const indexed_session *session, portion *p) {
    bool together = p->stored > 0 && store(ctx, session, p);
    queue_item *item = p->items;
    for (size_t i = 0; i < p->count; i++) {
        gathered *d = p->deliveries[i];
        if (d->stored && !together) delivery_store(ctx, session, item, false);
        if (d->stored && together) delivery_count(item);
        *d->reached += hand_over(ctx, session, d, item);
        item += d->stored;
    }
}

void gather_settle(server_ctx *ctx) {
    portion p;
    step_budget_settle();
    queue_replicate_begin();
    for (size_t i = 0; i < noted.session_count; i++) {
        const gathering *g = &noted.sessions[i];
        for (uint32_t from = g->first; from != 0;) {
            from = take(&p, from);
            serve(ctx, g->session, &p);
        }
    }
    queue_replicate_end(ctx);
    for (size_t i = 0; i < noted.count; i++) sv.FreeString(NULL, noted.list[i].value);
    noted.count = noted.session_count = 0;
    noted.mark++;
    if (noted.index != NULL) index_unpin(noted.index, INDEX_SESSIONS);
    noted.index = NULL;
    step_budget_settled();
}
