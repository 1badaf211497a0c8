/* attempt.c - the field `attempt` of a session's hash. */
#include "queue/attempt.h"

#include <stdio.h>
#include <string.h>

#include "topic/session_key.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/session_keys.h"

#define HEAD_BYTES 32

static size_t put_head(char *out, long long epoch, bool present) {
    return (size_t)snprintf(out, HEAD_BYTES, "%lld:%d:", epoch, present);
}

static bool equals(const server_string *field, const char *head, size_t head_len, hmq_slice token) {
    hmq_slice text = slice_of(field);
    return text.len == head_len + token.len && memcmp(text.data, head, head_len) == 0 &&
           memcmp(text.data + head_len, token.data, token.len) == 0;
}

bool attempt_is_repeated(server_ctx *ctx, hmq_slice session, hmq_slice token, long long epoch, bool *present) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION), *field = NULL;
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    if (sv.KeyType(key) == SERVER_HASH) sv.HashGet(key, SERVER_HASH_CFIELDS, "attempt", &field, NULL);
    bool repeated = false;
    for (int was_present = 0; field != NULL && was_present <= 1; was_present++) {
        char head[HEAD_BYTES];
        if (!equals(field, head, put_head(head, epoch, was_present), token)) continue;
        repeated = true;
        *present = was_present != 0;
    }
    if (field != NULL) sv.FreeString(NULL, field);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return repeated;
}

void attempt_note(server_ctx *ctx, hmq_slice session, hmq_slice token, long long epoch, bool present) {
    char text[HEAD_BYTES + ATTEMPT_MAX_BYTES];
    size_t len = put_head(text, epoch, present);
    memcpy(text + len, token.data, token.len);
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_string *value = sv.CreateString(NULL, text, len + token.len);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    sv.HashSet(key, SERVER_HASH_CFIELDS, "attempt", value, NULL);
    sv.CloseKey(key);
    replicate(ctx, "HSET", "scs", name, "attempt", value);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    sv.FreeString(NULL, value);
    sv.FreeString(NULL, name);
}
