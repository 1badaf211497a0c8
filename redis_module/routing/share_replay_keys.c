/* share_replay_keys.c - the positions of groups that read history, in keys and index. */
#include "routing/share_replay_keys.h"

#include <string.h>

#include "topic/session_key.h"
#include "server/session_keys.h"
#include "index/check.h"
#include "index/shares.h"
#include "routing/replays.h"

bool share_replays(const index_t *index, hmq_slice filter) {
    return sv.DictSize(index->group_replays) > 0 &&
           sv.DictGetC(index->group_replays, filter.data, filter.len, NULL) != NULL;
}

bool share_replay_is_key(hmq_slice name) {
    static const char begin[] = "{$share/";
    const size_t n = sizeof begin - 1;
    return name.len > n && memcmp(name.data, begin, n) == 0 &&
           hmq_session_key_of((const char *)name.data, name.len, HMQ_SUFFIX_REPLAYS) > 0;
}

static void note(index_t *index, hmq_slice filter, bool replays) {
    if (replays)
        sv.DictSetC(index->group_replays, filter.data, filter.len, index);
    else
        sv.DictDelC(index->group_replays, (void *)(uintptr_t)filter.data, filter.len, NULL);
}

void share_replay_refresh(server_ctx *ctx, index_t *index, hmq_slice name) {
    size_t key_len = hmq_session_key_of((const char *)name.data, name.len, HMQ_SUFFIX_REPLAYS);
    char *filter = sv.Alloc(name.len);
    int64_t len = hmq_session_key_decode((const char *)name.data, key_len, filter, name.len);
    server_string *key_name = sv.CreateString(NULL, (const char *)name.data, name.len), *value = NULL;
    server_key *key = sv.OpenKey(ctx, key_name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    if (len > 0) {
        server_string *field = sv.CreateString(NULL, filter, (size_t)len);
        if (sv.KeyType(key) == SERVER_HASH) sv.HashGet(key, SERVER_HASH_NONE, field, &value, NULL);
        note(index, (hmq_slice){(const uint8_t *)filter, (size_t)len}, value != NULL);
        sv.FreeString(NULL, field);
    }
    if (value != NULL) sv.FreeString(NULL, value);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
    sv.Free(filter);
}

void share_replay_write(server_ctx *ctx, index_t *index, hmq_slice key, server_string *filter, server_string *value) {
    session_replays_write(ctx, key, filter, value);
    note(index, slice_of(filter), value != NULL);
}

void share_replay_begin(server_ctx *ctx, index_t *index, server_string *filter, server_string *value) {
    if (share_find(index->shares, slice_of(filter)) != NULL) return; /* the first member's start counts */
    server_string *key = session_key_of(slice_of(filter));
    share_replay_write(ctx, index, slice_of(key), filter, value);
    sv.FreeString(NULL, key);
}

void share_replay_end(server_ctx *ctx, index_t *index, hmq_slice filter) {
    if (!share_replays(index, filter)) return;
    server_string *key = session_key_of(filter), *field = sv.CreateString(NULL, (const char *)filter.data, filter.len);
    share_replay_write(ctx, index, slice_of(key), field, NULL);
    sv.FreeString(NULL, field);
    sv.FreeString(NULL, key);
}

/* ---- the kind ---------------------------------------------------------------------------------------------- */

static void make(index_t *index) {
    index->group_replays = sv.CreateDict(NULL);
}

static void release(index_t *index) {
    sv.FreeDict(NULL, index->group_replays);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    index_compare_names(kept->group_replays, rebuilt->group_replays, false, "group that replays, but not in the keys",
                        differ, context);
    index_compare_names(rebuilt->group_replays, kept->group_replays, false, "group that replays in the keys alone",
                        differ, context);
}

const index_kind share_replays_kind = {
    .make = make,
    .release = release,
    .is_key = share_replay_is_key,
    .refresh = share_replay_refresh,
    .check = check,
};
