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

bool slice_is(hmq_slice slice, const char *word) {
    return slice.len == strlen(word) && strncasecmp((const char *)slice.data, word, slice.len) == 0;
}
