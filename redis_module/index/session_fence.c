/* session_fence.c - compares a command's epoch with the session's. */
#include "index/session_fence.h"

#include "server/errors.h"
#include "server/keys.h"
#include "server/numbers.h"
#include "server/session_keys.h"
#include "index/index.h"
#include "index/session_state.h"
#include "index/sessions.h"

/* The session's epoch; 0 if it was not opened or is over.  Precedes most commands of a bridge, so it reads only two
 * fields. */
static bool read_epoch(server_ctx *ctx, hmq_slice session, long long *epoch) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    server_key *key = sv.OpenKey(ctx, name, SERVER_READ);
    *epoch = 0;
    if (sv.KeyType(key) == SERVER_HASH) {
        server_string *epoch_text = NULL, *ends_text = NULL;
        sv.HashGet(key, SERVER_HASH_CFIELDS, "epoch", &epoch_text, "ends", &ends_text, NULL);
        long long ends_ms = number_or_default(ends_text, MAX_TIME_MS, 0);
        if (ends_ms == 0 || ends_ms > sv.Milliseconds()) *epoch = number_or_default(epoch_text, MAX_EPOCH, 0);
        if (epoch_text != NULL) sv.FreeString(NULL, epoch_text);
        if (ends_text != NULL) sv.FreeString(NULL, ends_text);
    }
    bool usable = key_check(ctx, key, name, SERVER_HASH);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return usable;
}

bool session_epoch_matches(server_ctx *ctx, hmq_slice session, long long epoch) {
    long long current;
    if (!read_epoch(ctx, session, &current)) return false;
    if (current == 0) {
        reply_error(ctx, ERROR_SESSION_UNKNOWN, shown_slice(session));
        return false;
    }
    if (current == epoch) return true;
    counters.fenced++;
    reply_error(ctx, ERROR_SESSION_FENCED, epoch, shown_slice(session), current);
    return false;
}

bool session_is_owner(server_ctx *ctx, hmq_slice session, long long epoch) {
    const session_entry *entry = session_index_find(index_of(ctx)->opened, session);
    return entry != NULL && entry->connected && entry->epoch == epoch &&
           (entry->due_ms == 0 || entry->due_ms > sv.Milliseconds());
}

bool session_require_epoch(server_ctx *ctx, hmq_slice session, long long epoch) {
    return epoch == 0 || session_is_owner(ctx, session, epoch) || session_epoch_matches(ctx, session, epoch);
}

int session_reply_leaving(server_ctx *ctx, hmq_slice session) {
    return reply_error(ctx, ERROR_SESSION_LEAVING, shown_slice(session));
}

bool session_check_ending(server_ctx *ctx, hmq_slice session) {
    const session_entry *entry = session_index_find(index_of(ctx)->opened, session);
    if (entry == NULL || !entry->ending) return true;
    session_reply_leaving(ctx, session);
    return false;
}

bool session_check_epoch(args *a, hmq_slice session) {
    if (!args_take_word(a, "EPOCH")) return true;
    long long epoch;
    return args_number(a, "EPOCH", 0, INT64_MAX, &epoch) && session_require_epoch(a->ctx, session, epoch);
}
