/* tail.c - collects entries of posting lists and writes them list by list. */
#include "history/tail.h"

#include <inttypes.h>
#include <string.h>

#include "base/decimal.h"
#include "history/index.h"
#include "history/postings.h"
#include "server/errors.h"
#include "server/keyspace.h"
#include "server/memory.h"
#include "server/replication.h"

#define EXACT_MAX_BYTES 256 /* shorter lists are rewritten at their exact size, without spare room */
#define NONE UINT32_MAX
#define NAME_MAX_BYTES (HISTORY_NAME_MAX + 160)
#define FIRST_FLUSH_BYTES 4096
#define SCRATCH_MAX_BYTES (4 << 20) /* larger scratch memory is freed after a flush */

/* Bits of a list's number, lowest first: 22 group, 4 page, 5 slot, 33 pattern. */
#define GROUP_BITS 22
#define PAGE_BITS 4
#define SLOT_BITS 5

_Static_assert(2 * (HMQ_INDEX_MAX_PAGES - 1) <= GROUP_BITS, "a group has its bits");
_Static_assert(HMQ_INDEX_MAX_PAGES <= 1 << PAGE_BITS, "a page has its bits");
_Static_assert(HMQ_PATTERNS_MAX_SLOTS <= 1 << SLOT_BITS, "a slot has its bits");

/* ---- gathering --------------------------------------------------------------------------------------------- */

void history_tail_clear(history_tail *tail) {
    tail->count = tail->mark_count = 0;
}

void history_tail_free(history_tail *tail) {
    sv.Free(tail->postings);
    sv.Free(tail->marks);
    *tail = (history_tail){0};
}

/* Marks arrive in the order of their numbers, except when logs are read one after the other. */
static void add_mark(history_tail *tail, hmq_message_id id) {
    tail->marks = array_reserve(tail->marks, &tail->mark_room, tail->mark_count, 1, 64, sizeof *tail->marks);
    size_t at = tail->mark_count++;
    for (; at > 0 && tail->marks[at - 1].sequence > id.sequence; at--) tail->marks[at] = tail->marks[at - 1];
    tail->marks[at] = id;
}

void history_tail_add(history_tail *tail, const history_shard *state, const hmq_pattern *pattern,
                      const hmq_topic_place *place, uint64_t before, hmq_message_id id) {
    unsigned page = hmq_index_page(before);
    for (unsigned slot = 0; slot < place->slots; slot++) {
        uint32_t hash = hmq_index_hash(&state->store->seed, place->levels[slot], pattern->bits[slot]);
        hmq_index_place at = hmq_index_place_of(hash, pattern->bits[slot], page);
        tail->postings = array_reserve(tail->postings, &tail->room, tail->count, 1, 64, sizeof *tail->postings);
        tail->postings[tail->count++] = (history_posting){
            .list = (((uint64_t)place->pattern << SLOT_BITS | slot) << PAGE_BITS | page) << GROUP_BITS | at.group,
            .number = (id.sequence - state->first + 1) & HMQ_POSTINGS_MAX_NUMBER,
            .fragment_bits = at.fragment_bits,
            .fragment = at.fragment,
            .next = NONE};
    }
    if (hmq_mark_due(state->first, id.sequence)) add_mark(tail, id);
}

void history_tail_reverse(history_tail *tail, size_t begun) {
    for (size_t low = begun, high = tail->count; low + 1 < high; low++, high--) {
        history_posting swapped = tail->postings[low];
        tail->postings[low] = tail->postings[high - 1];
        tail->postings[high - 1] = swapped;
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------- */

void history_tail_each(const history_tail *tail, history_tail_visit visit, void *context) {
    for (size_t begin = 0, end; begin < tail->count; begin = end) {
        const history_posting *first = &tail->postings[begin];
        for (end = begin + 1; end < tail->count && tail->postings[end].number == first->number; end++) {}
        visit(context, (uint32_t)(first->list >> (GROUP_BITS + PAGE_BITS + SLOT_BITS)), first->number, first,
              end - begin);
    }
}

bool history_tail_has(const history_posting *postings, size_t count, const hmq_plan_slot *slot) {
    for (size_t i = 0; i < count; i++) {
        uint64_t list = postings[i].list;
        if ((list >> (GROUP_BITS + PAGE_BITS) & ((1 << SLOT_BITS) - 1)) != slot->slot) continue;
        unsigned page = (unsigned)(list >> GROUP_BITS & ((1 << PAGE_BITS) - 1));
        hmq_index_place at = hmq_index_place_of(slot->hash, slot->bits, page);
        return at.group == (list & ((1 << GROUP_BITS) - 1)) && at.fragment == postings[i].fragment;
    }
    return false;
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

/* A string that grows. */
typedef struct growing {
    uint64_t list;
    uint32_t first, last; /* of its postings */
    server_string *name;
    server_key *key;
    hmq_slice old;
    size_t added, len; /* place in flush.bytes */
} growing;

/* The current flush. */
static struct {
    growing *lists;
    size_t count, room;
    uint32_t *table; /* open addressing: hash of a list's number -> its place in `lists` */
    size_t slots;
    uint8_t *bytes;
    size_t used, bytes_room;
    char name[NAME_MAX_BYTES];
    size_t prefix; /* length of the common beginning of all names */
} flush;

static growing *add_list(uint64_t list) {
    flush.lists = array_reserve(flush.lists, &flush.room, flush.count, 1, 64, sizeof *flush.lists);
    flush.lists[flush.count] = (growing){.list = list, .first = NONE, .last = NONE};
    return &flush.lists[flush.count++];
}

static growing *find_list(uint64_t list) {
    size_t at = (size_t)(list * UINT64_C(0x9E3779B97F4A7C15) >> 32) & (flush.slots - 1);
    for (; flush.table[at] != NONE; at = (at + 1) & (flush.slots - 1)) {
        if (flush.lists[flush.table[at]].list == list) return &flush.lists[flush.table[at]];
    }
    flush.table[at] = (uint32_t)flush.count;
    return add_list(list);
}

static void gather(const history_tail *tail) {
    size_t slots = 256;
    while (slots < 2 * tail->count) slots *= 2;
    if (slots > flush.slots) flush.table = sv.Realloc(flush.table, slots * sizeof *flush.table);
    flush.slots = slots;
    memset(flush.table, 0xFF, slots * sizeof *flush.table);
    for (size_t i = 0; i < tail->count; i++) {
        growing *list = find_list(tail->postings[i].list);
        tail->postings[i].next = NONE;
        if (list->first == NONE)
            list->first = (uint32_t)i;
        else
            tail->postings[list->last].next = (uint32_t)i;
        list->last = (uint32_t)i;
    }
}

static server_string *name_of(uint64_t list) {
    const uint64_t numbers[] = {list >> (GROUP_BITS + PAGE_BITS + SLOT_BITS),
                                list >> (GROUP_BITS + PAGE_BITS) & ((1 << SLOT_BITS) - 1),
                                list >> GROUP_BITS & ((1 << PAGE_BITS) - 1), list & ((1 << GROUP_BITS) - 1)};
    size_t len = flush.prefix;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        flush.name[len++] = '_';
        len += hmq_decimal_put(numbers[i], flush.name + len);
    }
    return sv.CreateString(NULL, flush.name, len);
}

static bool fail(server_ctx *ctx, const growing *g, const char *expected, bool reply) {
    if (reply) reply_wrong_type(ctx, g->name, expected);
    return false;
}

static bool open_growing(server_ctx *ctx, growing *g, bool reply) {
    return history_open_string(ctx, g->name, SERVER_READ | SERVER_WRITE, &g->key, &g->old) ||
           fail(ctx, g, "a string", reply);
}

static uint8_t *room_for(size_t bytes) {
    flush.bytes = array_reserve(flush.bytes, &flush.bytes_room, flush.used, bytes, FIRST_FLUSH_BYTES, 1);
    return flush.bytes + flush.used;
}

static bool open_list(server_ctx *ctx, const history_tail *tail, growing *g, bool reply) {
    g->name = name_of(g->list);
    if (!open_growing(ctx, g, reply)) return false;
    uint64_t last = 0;
    unsigned bits = tail->postings[g->first].fragment_bits;
    if (hmq_postings_last(g->old.data, g->old.len, bits, &last) == HMQ_POSTINGS_CORRUPT)
        return fail(ctx, g, "a posting list", reply);
    if (g->old.len == 0) last = 0;
    g->added = flush.used;
    for (uint32_t i = g->first; i != NONE; i = tail->postings[i].next) {
        const history_posting *p = &tail->postings[i];
        size_t len = hmq_postings_append(g->old.len + g->len, last, bits, p->number, p->fragment,
                                         room_for(HMQ_POSTINGS_APPEND_BYTES));
        if (len == 0) return fail(ctx, g, "a posting list that ends earlier", reply);
        flush.used += len;
        g->len += len;
        last = p->number;
    }
    return true;
}

static bool open_marks(server_ctx *ctx, const history_shard *state, const history_tail *tail, bool reply) {
    if (tail->mark_count == 0) return true;
    growing *g = add_list(UINT64_MAX);
    g->name = history_key(state->store, state->shard, "_%" PRIu32 "_marks", state->epoch);
    g->added = flush.used;
    g->len = tail->mark_count * HMQ_MARK_BYTES;
    uint8_t *out = room_for(g->len);
    for (size_t i = 0; i < tail->mark_count; i++) hmq_mark_encode(tail->marks[i], out + i * HMQ_MARK_BYTES);
    flush.used += g->len;
    return open_growing(ctx, g, reply);
}

bool history_flush_begin(server_ctx *ctx, const history_shard *state, const history_tail *tail, bool reply) {
    server_string *prefix = history_key(state->store, state->shard, "_%" PRIu32, state->epoch);
    hmq_slice text = slice_of(prefix);
    memcpy(flush.name, text.data, text.len);
    flush.prefix = text.len;
    sv.FreeString(NULL, prefix);
    flush.count = flush.used = 0;
    gather(tail);
    for (size_t i = 0; i < flush.count; i++) {
        if (!open_list(ctx, tail, &flush.lists[i], reply)) return false;
    }
    return open_marks(ctx, state, tail, reply);
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static void set_exactly(const growing *g, const uint8_t *added) {
    char text[EXACT_MAX_BYTES];
    if (g->old.len > 0) memcpy(text, g->old.data, g->old.len);
    memcpy(text + g->old.len, added, g->len);
    server_string *whole = sv.CreateString(NULL, text, g->old.len + g->len);
    sv.StringSet(g->key, whole);
    sv.FreeString(NULL, whole);
}

static void grow(server_ctx *ctx, const growing *g, bool taken) {
    const uint8_t *added = flush.bytes + g->added;
    size_t len = g->old.len, now;
    if (len + g->len <= EXACT_MAX_BYTES) {
        set_exactly(g, added);
    } else {
        sv.StringTruncate(g->key, len + g->len);
        memcpy(sv.StringDMA(g->key, &now, SERVER_WRITE) + len, added, g->len);
    }
    if (taken) sv.Replicate(ctx, "APPEND", "sb", g->name, (const char *)added, g->len);
    index_notify(ctx, SERVER_NOTIFY_STRING, "append", g->name);
}

uint64_t history_flush_write(server_ctx *ctx) {
    bool taken = replication_is_needed(ctx);
    for (size_t i = 0; i < flush.count; i++) grow(ctx, &flush.lists[i], taken);
    if (!taken) sv.ReplicateVerbatim(ctx);
    return flush.used;
}

void history_flush_end(void) {
    for (size_t i = 0; i < flush.count; i++) {
        if (flush.lists[i].key != NULL) sv.CloseKey(flush.lists[i].key);
        if (flush.lists[i].name != NULL) sv.FreeString(NULL, flush.lists[i].name);
    }
    flush.count = 0;
    if (flush.slots * sizeof *flush.table + flush.room * sizeof *flush.lists + flush.bytes_room <= SCRATCH_MAX_BYTES)
        return;
    sv.Free(flush.lists);
    sv.Free(flush.table);
    sv.Free(flush.bytes);
    memset(&flush, 0, sizeof flush);
}
