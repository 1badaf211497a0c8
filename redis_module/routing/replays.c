/* replays.c - reads and writes the keys of subscriptions that read history. */
#include "routing/replays.h"

#include <string.h>

#include "topic/session_key.h"
#include "topic/topic.h"
#include "server/errors.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/session_keys.h"
#include "history/filters.h"
#include "history/history.h"
#include "history/runs.h"

#define TEXT_MAX_BYTES (HISTORY_NAME_MAX + 16 + HISTORY_SHARDS_MAX * (HMQ_CURSOR_MAX_BYTES + 1))

static const char replay_word[] = "replay", application_word[] = "application";

/* ---- the value of a field ---------------------------------------------------------------------------------- */

/* Takes the word up to the next space or the end, and skips the space. */
static hmq_slice take_word(hmq_slice *text) {
    const uint8_t *space = text->len == 0 ? NULL : memchr(text->data, ' ', text->len);
    size_t len = space == NULL ? text->len : (size_t)(space - text->data);
    hmq_slice word = {text->data, len}, rest = {NULL, 0};
    if (space != NULL) rest = (hmq_slice){space + 1, text->len - len - 1};
    *text = rest;
    return word;
}

static bool read_cursors(hmq_slice text, session_replay *r) {
    bool seen[HISTORY_SHARDS_MAX] = {false};
    size_t at = 0;
    while (at <= text.len) {
        const uint8_t *end = at == text.len ? NULL : memchr(text.data + at, ',', text.len - at);
        size_t len = end == NULL ? text.len - at : (size_t)(end - text.data) - at;
        hmq_cursor c;
        hmq_cursor_store of;
        if (r->shards == HISTORY_SHARDS_MAX || hmq_cursor_decode((const char *)text.data + at, len, &c, &of) != 0)
            return false;
        if (c.sequence == 0 || c.shard >= HISTORY_SHARDS_MAX || seen[c.shard]) return false;
        if (of.name_len > 0 && r->store != NULL && !history_store_is_of(r->store, &of)) r->store = NULL;
        seen[c.shard] = true;
        r->cursors[r->shards++] = c;
        at += len + 1;
    }
    /* New shards of the store are read from their beginning, after the others. */
    for (size_t shard = 0; r->store != NULL && shard < r->store->shards; shard++) {
        if (!seen[shard]) r->cursors[r->shards++] = (hmq_cursor){.shard = (uint16_t)shard, .sequence = 1};
    }
    /* The store has fewer shards: it is another store with the same name. */
    if (r->store != NULL && r->shards > r->store->shards) r->store = NULL;
    return true;
}

bool session_replay_read(const index_t *index, const server_string *value, session_replay *r) {
    hmq_slice text = slice_of(value), kind = take_word(&text);
    *r = (session_replay){.store_name = take_word(&text)};
    if (slice_is(kind, replay_word))
        r->kind = SUBSCRIPTION_REPLAYS;
    else if (slice_is(kind, application_word))
        r->kind = SUBSCRIPTION_APPLICATION;
    else
        return false;
    r->store = history_stores_find(index->histories, r->store_name);
    return r->store_name.len > 0 && text.data != NULL && read_cursors(text, r);
}

server_string *session_replay_text(const session_replay *r, size_t first) {
    char text[TEXT_MAX_BYTES];
    const char *word = r->kind == SUBSCRIPTION_APPLICATION ? application_word : replay_word;
    size_t used = strlen(word);
    memcpy(text, word, used);
    text[used++] = ' ';
    memcpy(text + used, r->store_name.data, r->store_name.len);
    used += r->store_name.len;
    for (size_t i = 0; i < r->shards; i++) {
        text[used++] = i == 0 ? ' ' : ',';
        used += hmq_cursor_encode(&r->cursors[(first + i) % r->shards], NULL, text + used);
    }
    return sv.CreateString(NULL, text, used);
}

/* ---- beginning --------------------------------------------------------------------------------------------- */

static const history_store *choose_store(server_ctx *ctx, hmq_slice filter) {
    const history_stores *stores = index_of(ctx)->histories;
    const history_store *part, *found = history_stores_covering(stores, filter);
    if (found != NULL) return found;
    if (history_stores_of_filter(stores, filter, &part) == 0)
        reply_error(ctx, ERROR_STORE_UNKNOWN_OF_FILTER, shown_slice(filter));
    else
        reply_error(ctx, ERROR_REPLAY_STORE_PARTIAL, shown_slice(filter), shown_slice(part->name));
    return NULL;
}

/* The place after the last message, or at the beginning of the page.  The user must be allowed to read the shard. */
static bool place(history_page *page, bool now, hmq_cursor *cursor) {
    history_shard state;
    if (!history_open_shard(page->ctx, page->store, cursor->shard, &state)) return false;
    if (!state.exists) {
        cursor->sequence = 1;
        return true;
    }
    cursor->generation = state.generation;
    cursor->epoch = state.epoch;
    if (now) {
        cursor->sequence = state.last.sequence + 1;
        cursor->time_us = state.last.time_us;
        history_runs_note(&state, cursor);
        return true;
    }
    if (history_page_start(page, &state, cursor)) return true;
    reply_error(page->ctx, ERROR_HISTORY_FOREIGN, shown_slice(page->store->name), (unsigned)cursor->shard);
    return false;
}

server_string *session_replay_begin(server_ctx *ctx, hmq_slice filter, const subscription_request *request) {
    if (can.cluster) {
        reply_error(ctx, ERROR_REPLAY_IN_CLUSTER, shown_slice(filter));
        return NULL;
    }
    const history_store *store = choose_store(ctx, filter);
    if (store == NULL) return NULL;
    history_page page = {.ctx = ctx,
                         .store = store,
                         .filter = filter,
                         .from_us = request->from_ms * 1000,
                         .to_us = UINT64_MAX,
                         .now_us = clock_us()};
    session_replay r = {.kind = request->wanted.kind, .store = store, .store_name = store->name};
    for (; r.shards < store->shards; r.shards++) {
        r.cursors[r.shards].shard = (uint16_t)r.shards;
        if (!place(&page, request->now || request->resumes, &r.cursors[r.shards])) return NULL;
    }
    return session_replay_text(&r, 0);
}

/* ---- the hash ---------------------------------------------------------------------------------------------- */

server_string *session_replays_get(server_ctx *ctx, hmq_slice session, server_string *filter) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_REPLAYS), *value = NULL;
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    if (sv.KeyType(hash) == SERVER_HASH) sv.HashGet(hash, SERVER_HASH_NONE, filter, &value, NULL);
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    return value;
}

bool session_replays_prepare(server_ctx *ctx, hmq_slice session, server_string *filter,
                             const subscription_request *request, server_string **value) {
    *value = NULL;
    if (!request->replay) return true;
    if (request->resumes) {
        server_string *stands = session_replays_get(ctx, session, filter);
        session_replay r;
        if (stands != NULL && session_replay_read(index_of(ctx), stands, &r) && r.shards > 0) {
            r.kind = request->wanted.kind;
            *value = session_replay_text(&r, 0);
        }
        if (stands != NULL) sv.FreeString(NULL, stands);
    }
    hmq_slice text = slice_of(filter), group, inner;
    if (hmq_topic_split_share((const char *)text.data, text.len, &group, &inner)) text = inner;
    if (*value == NULL) *value = session_replay_begin(ctx, text, request);
    return *value != NULL;
}

bool session_replays_have_room(server_ctx *ctx, hmq_slice session, size_t more) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_REPLAYS);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    size_t count = sv.KeyType(hash) != SERVER_HASH ? 0 : sv.ValueLength(hash);
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
    if (count + more <= SESSION_REPLAYS_MAX) return true;
    reply_error(ctx, ERROR_REPLAYS_COUNT, count, shown_slice(session), more, SESSION_REPLAYS_MAX);
    return false;
}

void session_replays_write(server_ctx *ctx, hmq_slice session, server_string *filter, server_string *value) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_REPLAYS);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (value != NULL) {
        sv.HashSet(hash, SERVER_HASH_NONE, filter, value, NULL);
        replicate(ctx, "HSET", "sss", name, filter, value);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
    } else if (sv.KeyType(hash) == SERVER_HASH &&
               sv.HashSet(hash, SERVER_HASH_COUNT_ALL, filter, SERVER_HASH_DELETE, NULL) > 0) {
        replicate(ctx, "HDEL", "ss", name, filter);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
        if (sv.KeyType(hash) == SERVER_EMPTY) index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
    }
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

void session_replays_expire(server_ctx *ctx, hmq_slice session, long long expire_ms) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_REPLAYS);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (sv.KeyType(hash) == SERVER_HASH && sv.GetAbsExpire(hash) != expire_ms)
        key_set_expiry(ctx, hash, name, expire_ms);
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

typedef struct visiting {
    session_replays_visit visit;
    void *context;
} visiting;

static void visit_field(server_key *key, server_string *field, server_string *value, void *data) {
    (void)key;
    const visiting *v = data;
    if (value != NULL) v->visit(v->context, field, value);
}

void session_replays_each(server_ctx *ctx, hmq_slice session, session_replays_visit visit, void *context) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_REPLAYS);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ);
    visiting v = {visit, context};
    if (sv.KeyType(hash) == SERVER_HASH) {
        server_scan_cursor *cursor = sv.ScanCursorCreate();
        while (sv.ScanKey(hash, cursor, visit_field, &v)) {}
        sv.ScanCursorDestroy(cursor);
    }
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}
