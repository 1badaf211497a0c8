/* state.c - what all files share: settings, what the server can do, counters, and its allocator. */
#include "server/state.h"

#include <string.h>
#include <strings.h>

struct settings settings;
struct capabilities can;
struct counters counters;
server_ctx *detached;

static void *allocate(size_t size) {
    return sv.Alloc(size);
}
static void *resize(void *old, size_t size) {
    return sv.Realloc(old, size);
}
static void release(void *memory) {
    sv.Free(memory);
}
const hmq_allocator server_allocator = {allocate, resize, release};

hmq_slice slice_of(const server_string *string) {
    hmq_slice slice;
    slice.data = (const uint8_t *)sv.StringPtrLen(string, &slice.len);
    return slice;
}

void slow_step(const char *event, long long begun_ms) {
    sv.LatencyAddSample(event, sv.Milliseconds() - begun_ms);
}

/* A server before 7.2 knows only the flag NOTOUCH.  It counts and announces look-ups, unless they are for writing. */
static server_key *look_up(server_ctx *ctx, server_string *name, int flags) {
    int unseen = can.filter_client ? SERVER_OPEN_NONOTIFY | SERVER_OPEN_NOSTATS : SERVER_WRITE;
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | unseen | flags);
    if (key == NULL || sv.KeyType(key) != SERVER_EMPTY) return key;
    sv.CloseKey(key);
    return NULL;
}

bool key_exists_unseen(server_ctx *ctx, server_string *name) {
    server_key *key = look_up(ctx, name, SERVER_OPEN_NOTOUCH | SERVER_OPEN_NOEXPIRE);
    if (key != NULL) sv.CloseKey(key);
    return key != NULL;
}

server_key *key_open_unseen(server_ctx *ctx, server_string *name, bool aside) {
    return look_up(ctx, name, aside ? SERVER_OPEN_NOTOUCH : 0);
}

bool slice_is(hmq_slice slice, const char *word) {
    return slice.len == strlen(word) && strncasecmp((const char *)slice.data, word, slice.len) == 0;
}
