/* publisher_epochs.c - the highest epoch of each publisher that a slot has seen. */
#include "routing/publisher_epochs.h"

#include <stdio.h>

#include "topic/session_key.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/memory.h"
#include "server/numbers.h"
#include "server/replication.h"

#define HEAD_MAX_BYTES 32
#define ON_STACK 512

static server_string *key_of(unsigned slot, hmq_slice id) {
    char small[ON_STACK];
    size_t room = HEAD_MAX_BYTES + id.len * 3 + 2;
    char *name = scratch_alloc(small, sizeof small, room);
    size_t len = (size_t)snprintf(name, HEAD_MAX_BYTES, "{%u}_epoch", hmq_slot_tag(slot));
    len += hmq_session_key_encode((const char *)id.data, id.len, name + len, room - len);
    server_string *key = sv.CreateString(NULL, name, len);
    scratch_free(name, small);
    return key;
}

epoch_verdict publisher_epoch_judge(server_ctx *ctx, unsigned slot, hmq_slice client_id, long long epoch) {
    server_string *name = key_of(slot, client_id);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    epoch_verdict verdict = EPOCH_NEW;
    uint64_t seen;
    if (sv.KeyType(key) != SERVER_EMPTY) {
        hmq_slice text = {NULL, 0};
        if (sv.KeyType(key) == SERVER_STRING) text.data = (const uint8_t *)sv.StringDMA(key, &text.len, SERVER_READ);
        if (!numbers_read(text, &seen, 1)) {
            reply_wrong_type(ctx, name, "'<epoch>'");
            verdict = EPOCH_REFUSED;
        } else if (seen >= (uint64_t)epoch) {
            verdict = seen == (uint64_t)epoch ? EPOCH_SEEN : EPOCH_FENCED;
        }
    }
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return verdict;
}

bool publisher_epoch_seen(server_ctx *ctx, unsigned slot, hmq_slice client_id, long long epoch) {
    server_string *name = key_of(slot, client_id);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    hmq_slice text = {NULL, 0};
    uint64_t seen;
    if (sv.KeyType(key) == SERVER_STRING) text.data = (const uint8_t *)sv.StringDMA(key, &text.len, SERVER_READ);
    bool is_seen = text.data != NULL && numbers_read(text, &seen, 1) && seen == (uint64_t)epoch;
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return is_seen;
}

void publisher_epoch_note(server_ctx *ctx, unsigned slot, hmq_slice client_id, long long epoch) {
    long long expire_ms = sv.Milliseconds() + PUBLISHER_EPOCH_MS;
    server_string *name = key_of(slot, client_id), *text = sv.CreateStringFromLongLong(NULL, epoch);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    sv.StringSet(key, text);
    sv.SetAbsExpire(key, expire_ms);
    sv.CloseKey(key);
    replicate(ctx, "SET", "sscl", name, text, "PXAT", expire_ms);
    index_notify(ctx, SERVER_NOTIFY_STRING, "set", name);
    index_notify(ctx, SERVER_NOTIFY_GENERIC, "expire", name);
    sv.FreeString(NULL, text);
    sv.FreeString(NULL, name);
}
