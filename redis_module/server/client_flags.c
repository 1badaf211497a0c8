/* client_flags.c - reads the flags of clients from CLIENT LIST. */
#include "server/client_flags.h"

#include <stdlib.h>
#include <string.h>

/* A line of CLIENT LIST: "id=7 addr=... flags=PT db=0 ...". */
static void take_line(const char *line, size_t len, void (*use)(uint64_t client, char flag)) {
    static const char id[] = "id=", flags[] = " flags=";
    const char *found = memmem(line, len, flags, sizeof flags - 1), *end = line + len;
    if (found == NULL || memcmp(line, id, sizeof id - 1) != 0) return;
    uint64_t client = strtoull(line + sizeof id - 1, NULL, 10);
    for (const char *at = found + sizeof flags - 1; at < end && *at != ' '; at++) use(client, *at);
}

static void take_lines(server_reply *reply, void (*use)(uint64_t client, char flag)) {
    size_t len = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len), *end = text + len;
    for (const char *line = text; line != NULL && line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL) stop = end;
        take_line(line, (size_t)(stop - line), use);
        line = stop + 1;
    }
    if (reply != NULL) sv.FreeCallReply(reply);
}

void client_flags_each(server_ctx *ctx, void (*use)(uint64_t client, char flag)) {
    take_lines(sv.Call(ctx, "CLIENT", "c", "LIST"), use);
}

void client_flags_of(server_ctx *ctx, uint64_t client, void (*use)(uint64_t client, char flag)) {
    take_lines(sv.Call(ctx, "CLIENT", "ccl", "LIST", "ID", (long long)client), use);
}
