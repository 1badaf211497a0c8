/* homes.c - the generations that this node exported its routes to. */
#include "cluster/homes.h"

static server_dict *homes; /* node id -> n, as a pointer; NULL: none yet */

long long homes_of(hmq_slice node) {
    if (homes == NULL) return 0;
    return (long long)(intptr_t)sv.DictGetC(homes, (void *)(uintptr_t)node.data, node.len, NULL);
}

bool homes_note(hmq_slice node, long long n) {
    if (homes == NULL) homes = sv.CreateDict(NULL);
    if (homes_of(node) == 0 && sv.DictSize(homes) >= HOMES_MOST) return false;
    sv.DictReplaceC(homes, node.data, node.len, (void *)(intptr_t)n);
    return true;
}

void homes_drop(hmq_slice node) {
    if (homes != NULL) sv.DictDelC(homes, node.data, node.len, NULL);
}

void homes_forget(void) {
    if (homes != NULL) sv.FreeDict(NULL, homes);
    homes = NULL;
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
