/* check.c - HOLDMQ.CHECK: compares the indexes of a database with a rebuild from its keys, kind by kind. */
#include "index/check.h"

#include "index/internal.h"

static long differences;

static void report(void *context, const char *what, hmq_slice name) {
    server_ctx *ctx = context;
    server_string *text = sv.CreateStringPrintf(NULL, "%s: %.*s", what, (int)name.len, (const char *)name.data);
    sv.ReplyWithString(ctx, text);
    sv.FreeString(NULL, text);
    differences++;
}

void index_compare_names(server_dict *a, server_dict *b, bool values, const char *what, index_differ differ,
                         void *context) {
    server_dict_iter *iter = sv.DictIteratorStartC(a, "^", NULL, 0);
    hmq_slice name;
    void *value;
    while ((name.data = sv.DictNextC(iter, &name.len, &value)) != NULL) {
        int missing = 0;
        void *other = sv.DictGetC(b, (void *)(uintptr_t)name.data, name.len, &missing);
        if (missing || (values && other != value)) differ(context, what, name);
    }
    sv.DictIteratorStop(iter);
}

int index_check_command(server_ctx *ctx, server_string **argv, int argc) {
    (void)argv;
    if (argc != 1) return sv.WrongArity(ctx);
    index_t *kept = index_of(ctx);
    for (const index_kind *const *kind = index_kinds(); *kind != NULL; kind++) {
        if ((*kind)->look != NULL) (*kind)->look(ctx, kept);
    }
    index_t *rebuilt = index_rebuild(ctx);
    kept = index_of(ctx); /* the scan may have expired keys */
    differences = 0;
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    for (const index_kind *const *kind = index_kinds(); *kind != NULL; kind++) {
        if ((*kind)->check != NULL) (*kind)->check(ctx, kept, rebuilt, report, ctx);
    }
    sv.ReplySetArrayLength(ctx, differences);
    index_free(rebuilt);
    return SERVER_OK;
}
