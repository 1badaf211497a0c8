/* places.c - how far the retained messages of new subscriptions were handed over, in a cluster. */
#include "session/places.h"

#include <string.h>

#include "topic/session_key.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/replication.h"
#include "server/session_keys.h"

static void set_place(server_ctx *ctx, server_key *hash, server_string *name, server_string *filter,
                      server_string *value) {
    sv.HashSet(hash, SERVER_HASH_NONE, filter, value, NULL);
    replicate(ctx, "HSET", "sss", name, filter, value);
    index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
}

void places_begin(server_ctx *ctx, hmq_slice session, server_string *filter, const server_string *options,
                  long long expire_ms) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_PLACES);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (key_may_be(hash, SERVER_HASH)) {
        hmq_slice text = slice_of(options);
        server_string *value = sv.CreateStringPrintf(NULL, "%.*s ", (int)text.len, (const char *)text.data);
        set_place(ctx, hash, name, filter, value);
        if (sv.GetAbsExpire(hash) != expire_ms) key_set_expiry(ctx, hash, name, expire_ms);
        sv.FreeString(NULL, value);
    }
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

void places_end(server_ctx *ctx, hmq_slice session, server_string *filter) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_PLACES);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(hash) == SERVER_HASH &&
        sv.HashSet(hash, SERVER_HASH_COUNT_ALL, filter, SERVER_HASH_DELETE, NULL) > 0) {
        replicate(ctx, "HDEL", "ss", name, filter);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
        if (sv.KeyType(hash) == SERVER_EMPTY) index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

/* ---- RETAINED of SESSION.DELIVER --------------------------------------------------------------------------- */

bool place_move_parse(args *a, place_move *move) {
    *move = (place_move){0};
    if (!args_take_word(a, "RETAINED")) return true;
    if (!args_string(a, "the filter of RETAINED", &move->filter) ||
        !args_string(a, "the former place of RETAINED", &move->from) ||
        !args_string(a, "the new place of RETAINED", &move->to))
        return false;
    size_t len = slice_of(move->to).len;
    if (len <= PLACE_BYTES) return true;
    reply_error(a->ctx, ERROR_PLACE_LENGTH, len, PLACE_BYTES);
    return false;
}

bool place_move_check(server_ctx *ctx, hmq_slice session, const place_move *move) {
    if (move->filter == NULL) return true;
    server_string *name = session_key_name(session, HMQ_SUFFIX_PLACES), *value = NULL;
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    if (sv.KeyType(hash) == SERVER_HASH) sv.HashGet(hash, SERVER_HASH_NONE, move->filter, &value, NULL);
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    hmq_slice is = value == NULL ? (hmq_slice){0} : slice_of(value), from = slice_of(move->from);
    bool is_right = value != NULL && is.len == from.len && memcmp(is.data, from.data, is.len) == 0;
    if (value != NULL) sv.FreeString(NULL, value);
    if (!is_right) reply_error(ctx, ERROR_PLACE_STALE, shown(move->from), shown(move->filter), shown_slice(session));
    return is_right;
}

void place_move_do(server_ctx *ctx, hmq_slice session, const place_move *move) {
    if (move->filter == NULL) return;
    hmq_slice from = slice_of(move->from), to = slice_of(move->to);
    if (to.len == 0) {
        places_end(ctx, session, move->filter);
    } else if (from.len != to.len || memcmp(from.data, to.data, to.len) != 0) {
        server_string *name = session_key_name(session, HMQ_SUFFIX_PLACES);
        server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
        set_place(ctx, hash, name, move->filter, move->to);
        sv.CloseKey(hash);
        sv.FreeString(NULL, name);
    }
}
