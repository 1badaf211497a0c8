/* writable.c - does the server take writes of clients now? */
#include "server/writable.h"

#include <errno.h>
#include <string.h>

static bool begins(const char *text, size_t len, const char *word) {
    return len >= strlen(word) && memcmp(text, word, strlen(word)) == 0;
}

/* The checks that a write of a script has to pass, without the write. */
static bool passes_checks(server_ctx *ctx) {
    errno = 0;
    server_reply *reply = sv.Call(ctx, "SET", "SDcc", "holdmq", "");
    if (reply == NULL && errno == EBADF) reply = sv.Call(ctx, "UNLINK", "SEc", "holdmq:no-key"); /* before 7.2 */
    if (reply == NULL) return errno != ESPIPE;
    size_t len = 0;
    const char *text = sv.CallReplyStringPtr(reply, &len);
    bool refused = text != NULL && (begins(text, len, "MISCONF") || begins(text, len, "NOREPLICAS"));
    sv.FreeCallReply(reply);
    return !refused;
}

bool writable_now(server_ctx *ctx, bool thoroughly) {
    int flags = sv.GetContextFlags(ctx);
    return (flags & SERVER_CTX_MASTER) && !(flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING)) &&
           !sv.AvoidReplicaTraffic() && /* CLIENT PAUSE, a failover: no writes now */
           (!thoroughly || passes_checks(ctx));
}
