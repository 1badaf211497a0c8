/* homes.c - the generations that this node exported its routes to. */
#include "cluster/homes.h"

#include <string.h>

#include "base/assert.h"
#include "server/slots.h"

static server_dict *homes; /* node id -> n, as a pointer; NULL: none yet */

/* The marks that were given out in this era: bit i is that of given[i]. */
static struct {
    uint32_t era;
    unsigned count;
    struct {
        char node[SLOTS_NODE_ID_BYTES];
        long long n;
    } given[HOMES_MARKS];
} marks;

long long homes_of(hmq_slice node) {
    if (homes == NULL) return 0;
    return (long long)(intptr_t)sv.DictGetC(homes, (void *)(uintptr_t)node.data, node.len, NULL);
}

/* ---- marks ------------------------------------------------------------------------------------------------- */

static hmq_slice node_of_mark(unsigned i) {
    return (hmq_slice){(const uint8_t *)marks.given[i].node, SLOTS_NODE_ID_BYTES};
}

static void give_mark(hmq_slice node, long long n) {
    if (marks.count == HOMES_MARKS || node.len != SLOTS_NODE_ID_BYTES) return;
    memcpy(marks.given[marks.count].node, node.data, node.len);
    marks.given[marks.count++].n = n;
}

static bool is_noted(unsigned i) {
    return homes_of(node_of_mark(i)) == marks.given[i].n;
}

static void begin_era(void) {
    marks.era++;
    marks.count = 0;
}

/* Makes room for one more mark, if some generation with a mark is over. */
static void make_room(void) {
    unsigned noted = 0;
    for (unsigned i = 0; i < marks.count; i++) noted += is_noted(i);
    if (marks.count < HOMES_MARKS || noted == HOMES_MARKS) return;
    unsigned before = marks.count;
    begin_era();
    for (unsigned i = 0; i < before; i++) {
        if (is_noted(i)) marks.given[marks.count++] = marks.given[i]; /* never overtakes the index that is read */
    }
}

uint32_t homes_era(void) {
    return marks.era;
}

uint64_t homes_mark(hmq_slice node, long long n) {
    if (homes_of(node) != n) return 0;
    for (unsigned i = 0; i < marks.count; i++) {
        hmq_slice given = node_of_mark(i);
        if (marks.given[i].n == n && hmq_slice_equal(given, node)) return 1ULL << i;
    }
    return 0;
}

/* ---- homes ------------------------------------------------------------------------------------------------- */

bool homes_note(hmq_slice node, long long n) {
    if (homes == NULL) homes = sv.CreateDict(NULL);
    long long before = homes_of(node);
    if (before == n) return true;
    hmq_assert(before < n);
    if (before == 0 && sv.DictSize(homes) >= HOMES_MOST) return false;
    sv.DictReplaceC(homes, node.data, node.len, (void *)(intptr_t)n);
    if (homes_mark(node, n) != 0) return true; /* it had been dropped */
    make_room();
    give_mark(node, n);
    return true;
}

void homes_drop(hmq_slice node) {
    if (homes != NULL) sv.DictDelC(homes, node.data, node.len, NULL);
}

void homes_forget(void) {
    if (homes != NULL) sv.FreeDict(NULL, homes);
    homes = NULL;
    begin_era();
}

size_t homes_marks(uint64_t found[HOMES_MOST]) {
    size_t count = 0, len;
    if (homes == NULL) return 0;
    server_dict_iter *iter = sv.DictIteratorStartC(homes, "^", NULL, 0);
    const uint8_t *node;
    void *n;
    while ((node = sv.DictNextC(iter, &len, &n)) != NULL) {
        hmq_assert(count < HOMES_MOST);
        found[count++] = homes_mark((hmq_slice){node, len}, (long long)(intptr_t)n);
    }
    sv.DictIteratorStop(iter);
    return count;
}

void homes_reply(server_ctx *ctx) {
    long count = 0;
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    if (homes != NULL) {
        server_dict_iter *iter = sv.DictIteratorStartC(homes, "^", NULL, 0);
        const char *node;
        size_t len;
        void *n;
        for (; (node = sv.DictNextC(iter, &len, &n)) != NULL; count += 2) {
            sv.ReplyWithStringBuffer(ctx, node, len);
            sv.ReplyWithLongLong(ctx, (long long)(intptr_t)n);
        }
        sv.DictIteratorStop(iter);
    }
    sv.ReplySetArrayLength(ctx, count);
}
