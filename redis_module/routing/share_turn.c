/* share_turn.c - hands out pending messages of groups, from the queue of each and from history. */
#include "routing/share_turn.h"

#include "index/shares.h"
#include "routing/share.h"
#include "routing/share_replay.h"
#include "routing/share_replay_keys.h"

#define SHORT_SLICE 50 /* messages between two checks of the clock */
#define STEP_MS 1      /* of a step; then other work is done */

/* The next name after this one in the list of shares that may have pending messages; NULL at the end. */
static server_string *next_waiting(const index_t *index, const server_string *after) {
    size_t len;
    hmq_slice text = after == NULL ? (hmq_slice){0} : slice_of(after);
    server_dict_iter *iter = after == NULL ? sv.DictIteratorStartC(index->waiting, "^", NULL, 0)
                                           : sv.DictIteratorStartC(index->waiting, ">", text.data, text.len);
    const char *name = sv.DictNextC(iter, &len, NULL);
    server_string *next = name == NULL ? NULL : sv.CreateString(NULL, name, len);
    sv.DictIteratorStop(iter);
    return next;
}

bool share_serve_pending(server_ctx *ctx, index_t *index, long long until_ms) {
    bool has_more = false;
    server_string *filter = NULL;
    if (until_ms > sv.Milliseconds() + STEP_MS) until_ms = sv.Milliseconds() + STEP_MS;
    while (sv.DictSize(index->waiting) > 0 && sv.Milliseconds() < until_ms) {
        server_string *next = next_waiting(index, filter);
        if (filter != NULL) sv.FreeString(NULL, filter);
        filter = next;
        if (filter == NULL) break;
        hmq_slice text = slice_of(filter);
        index_pin(index, INDEX_SESSIONS);
        share *s = share_find(index->shares, text);
        bool served = s != NULL && share_has_connected_member(ctx, index, s),
             waits = served && share_has_pending(ctx, s);
        if (waits && share_deliver_pending(ctx, index, s, SHORT_SLICE)) has_more = true;
        if (served && !share_has_pending(ctx, s) && share_replay_on(ctx, index, s)) has_more = true;
        /* Retried as long as a member exists that may take a message later. */
        if (!served || (!s->waits && !share_replays(index, text)))
            sv.DictDelC(index->waiting, (void *)(uintptr_t)text.data, text.len, NULL);
        index_unpin(index, INDEX_SESSIONS);
    }
    if (filter != NULL) sv.FreeString(NULL, filter);
    return has_more || (filter != NULL && sv.DictSize(index->waiting) > 0 && sv.Milliseconds() >= until_ms);
}
