/* publish_producer.c - remembers the last chunk of each producer. */
#include "routing/publish_producer.h"

#include <inttypes.h>
#include <string.h>

#include "topic/session_key.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/session_keys.h"

#define MAX_NUMBER 9007199254740991LL /* 2^53 - 1: all languages represent integers up to it exactly */
#define UNUSED_MS (7LL * 24 * 3600 * 1000)

bool publish_producer_parse_id(args *a, publish_producer *by) {
    if (!args_string(a, "the id of PRODUCER", &by->id)) return false;
    size_t len = slice_of(by->id).len;
    if (len >= 1 && len <= PUBLISH_PRODUCER_ID_MAX) return true;
    reply_error(a->ctx, ERROR_PRODUCER_ID_LENGTH, len, PUBLISH_PRODUCER_ID_MAX);
    return false;
}

bool publish_producer_parse(args *a, publish_producer *by, bool *taken) {
    *taken = args_take_word(a, "PRODUCER");
    if (!*taken) return true;
    return publish_producer_parse_id(a, by) && args_number(a, "the epoch of PRODUCER", 0, MAX_NUMBER, &by->epoch) &&
           args_number(a, "the chunk of PRODUCER", 0, MAX_NUMBER, &by->chunk);
}

bool publish_producer_parse_after(args *a, publish_producer *by) {
    by->follows = args_take_word(a, "AFTER");
    return !by->follows || args_number(a, "AFTER", 0, by->chunk - 1, &by->after);
}

server_string *publish_producer_key(hmq_slice id) {
    static const char suffix[] = "_producer";
    char name[PUBLISH_PRODUCER_ID_MAX * 3 + 2 + sizeof suffix];
    size_t len = hmq_session_key_encode((const char *)id.data, id.len, name, sizeof name - sizeof suffix);
    memcpy(name + len, suffix, sizeof suffix - 1);
    return sv.CreateString(NULL, name, len + sizeof suffix - 1);
}

/* The progress of the producer. */
typedef struct progress {
    bool known; /* it has sent something in this epoch */
    uint64_t chunk;
} progress;

/* False after replying an error. */
static bool read_text(server_ctx *ctx, const publish_producer *by, hmq_slice text, progress *at) {
    uint64_t last[2], epoch = (uint64_t)by->epoch;
    if (!numbers_read(text, last, 2)) {
        reply_wrong_type(ctx, by->key, "'<epoch> <chunk>'");
        return false;
    }
    if (epoch < last[0]) {
        counters.fenced++;
        reply_error(ctx, ERROR_PRODUCER_FENCED, epoch, shown(by->id), last[0]);
        return false;
    }
    *at = (progress){.known = epoch == last[0], .chunk = last[1]};
    return true;
}

static bool read_progress(server_ctx *ctx, const publish_producer *by, progress *at) {
    server_key *key = sv.OpenKey(ctx, by->key, SERVER_READ);
    bool right = key_check(ctx, key, by->key, SERVER_STRING);
    *at = (progress){.known = false};
    if (sv.KeyType(key) == SERVER_STRING) {
        hmq_slice text;
        text.data = (const uint8_t *)sv.StringDMA(key, &text.len, SERVER_READ);
        right = read_text(ctx, by, text, at);
    }
    if (key != NULL) sv.CloseKey(key);
    return right;
}

producer_chunk publish_producer_judge(server_ctx *ctx, const publish_producer *by) {
    progress at;
    if (!read_progress(ctx, by, &at)) return PRODUCER_CHUNK_REFUSED;
    if (at.known && (uint64_t)by->chunk <= at.chunk) return PRODUCER_CHUNK_KNOWN;
    if (!by->follows || (at.known && (uint64_t)by->after <= at.chunk)) return PRODUCER_CHUNK_NEW;
    reply_error(ctx, ERROR_CHUNK_GAP, by->after, shown(by->id));
    return PRODUCER_CHUNK_REFUSED;
}

bool publish_producer_last(server_ctx *ctx, const publish_producer *by, uint64_t *last) {
    progress at;
    if (!read_progress(ctx, by, &at)) return false;
    *last = at.known ? at.chunk : 0;
    return true;
}

void publish_producer_note(server_ctx *ctx, const publish_producer *by) {
    long long expire_ms = sv.Milliseconds() + UNUSED_MS;
    server_string *text = sv.CreateStringPrintf(NULL, "%lld %lld", by->epoch, by->chunk);
    server_key *key = sv.OpenKey(ctx, by->key, SERVER_READ | SERVER_WRITE);
    sv.StringSet(key, text);
    sv.SetAbsExpire(key, expire_ms);
    sv.CloseKey(key);
    replicate(ctx, "SET", "sscl", by->key, text, "PXAT", expire_ms);
    index_notify(ctx, SERVER_NOTIFY_STRING, "set", by->key);
    index_notify(ctx, SERVER_NOTIFY_GENERIC, "expire", by->key);
    sv.FreeString(NULL, text);
}

/* Is the number of the note not higher than that of `by`? */
static bool is_not_above(server_key *key, const publish_producer *by) {
    uint64_t noted[2];
    hmq_slice text;
    if (sv.KeyType(key) != SERVER_STRING) return false;
    text.data = (const uint8_t *)sv.StringDMA(key, &text.len, SERVER_READ);
    if (!numbers_read(text, noted, 2)) return false;
    return noted[0] < (uint64_t)by->epoch || (noted[0] == (uint64_t)by->epoch && noted[1] <= (uint64_t)by->chunk);
}

bool publish_producer_end(server_ctx *ctx, const publish_producer *by, long long end_ms) {
    server_key *key = sv.OpenKey(ctx, by->key, SERVER_READ);
    if (key == NULL) return false; /* as most keys are */
    sv.CloseKey(key);
    key = sv.OpenKey(ctx, by->key, SERVER_READ | SERVER_WRITE);
    bool ends = is_not_above(key, by) && (sv.GetAbsExpire(key) == SERVER_NO_EXPIRE || sv.GetAbsExpire(key) > end_ms);
    if (ends) key_set_expiry(ctx, key, by->key, end_ms);
    sv.CloseKey(key);
    return ends;
}
