/* no_touch.c - remembers who has CLIENT NO-TOUCH. */
#include "server/no_touch.h"

#include <stdlib.h>
#include <string.h>

static server_dict *clients; /* ids; NULL: no client has used NO-TOUCH yet */

void no_touch_comes(uint64_t client) {
    if (client == 0) return;
    if (clients == NULL) clients = sv.CreateDict(NULL);
    sv.DictReplaceC(clients, &client, sizeof client, clients);
}

void no_touch_client_gone(uint64_t client) {
    if (clients != NULL) sv.DictDelC(clients, &client, sizeof client, NULL);
}

bool no_touch_may_look(uint64_t client) {
    return clients == NULL || sv.DictGetC(clients, &client, sizeof client, NULL) == NULL;
}

/* A line of CLIENT LIST: "id=7 addr=... flags=NT db=0 ..."; T is NO-TOUCH. */
static void take_line(const char *line, size_t len) {
    static const char id[] = "id=", flags[] = " flags=";
    const char *found = memmem(line, len, flags, sizeof flags - 1), *end = line + len;
    if (found == NULL || memcmp(line, id, sizeof id - 1) != 0) return;
    for (const char *at = found + sizeof flags - 1; at < end && *at != ' '; at++) {
        if (*at == 'T') no_touch_comes(strtoull(line + sizeof id - 1, NULL, 10));
    }
}

void no_touch_start(server_ctx *ctx) {
    server_reply *reply = sv.Call(ctx, "CLIENT", "c", "LIST");
    size_t len = 0;
    const char *text = reply == NULL ? NULL : sv.CallReplyStringPtr(reply, &len), *end = text + len;
    for (const char *line = text; line != NULL && line < end;) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        if (stop == NULL) stop = end;
        take_line(line, (size_t)(stop - line));
        line = stop + 1;
    }
    if (reply != NULL) sv.FreeCallReply(reply);
}
