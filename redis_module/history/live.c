/* live.c - builds the remembered state of a shard, and decides when it is in doubt. */
#include "history/live.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "topic/record.h"
#include "topic/topic.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/slots.h"
#include "history/runs.h"
#include "history/slots.h"

#define SUFFIX "_history"

static unsigned long long turn = 1;

void history_before_sleep(void) {
    turn++;
}

/* ---- making and freeing ------------------------------------------------------------------------------------ */

static void forget_logs(history_live *live) {
    for (uint32_t p = 0; p < live->log_count; p++) {
        if (live->logs[p].name != NULL) sv.FreeString(NULL, live->logs[p].name);
    }
    sv.Free(live->logs);
    live->logs = NULL;
    live->log_count = 0;
}

void history_live_begin_epoch(history_live *live) {
    forget_logs(live);
    history_tail_clear(&live->tail);
    live->log_count = hmq_patterns_count(live->set->patterns);
    live->logs = sv.Calloc(live->log_count, sizeof *live->logs);
}

static void forget(history_live *live) {
    live->is_valid = false;
    forget_logs(live);
    history_tail_clear(&live->tail);
    history_set_release(live->set);
    live->set = NULL;
}

void history_live_free(history_live *live) {
    if (live == NULL) return;
    forget(live);
    history_tail_free(&live->tail);
    sv.FreeString(NULL, live->state_key);
    sv.Free(live);
}

static history_live *live_new(const history_store *store, unsigned shard) {
    history_live *live = sv.Calloc(1, sizeof *live);
    live->state_key = history_key(store, shard, "%s", "");
    live->state = (history_shard){.store = store, .shard = shard};
    live->slot = history_slot(store->name, shard);
    return live;
}

history_log *history_live_log(history_live *live, uint32_t pattern) {
    history_log *log = &live->logs[pattern];
    const history_shard *s = &live->state;
    if (log->name == NULL) log->name = history_key(s->store, s->shard, "_%" PRIu32 "_%" PRIu32, s->epoch, pattern);
    return log;
}

/* ---- from the keys ----------------------------------------------------------------------------------------- */

/* Takes one message of the tail: adds it to the state, and its postings to the tail.  An entry that is not a message, or that
 * belongs to another pattern, was written by another program and gets no postings. */
static void take_entry(history_live *live, uint32_t pattern, uint64_t before, hmq_message_id id, hmq_slice value) {
    static char topic[HMQ_TOPIC_MAX_BYTES];
    const hmq_patterns *set = live->set->patterns;
    history_shard *s = &live->state;
    if (id.sequence > s->last.sequence) s->last.sequence = id.sequence;
    if (id.time_us > s->last.time_us) s->last.time_us = id.time_us;
    s->bytes += value.len + HISTORY_ENTRY_BYTES;
    hmq_record record;
    if (hmq_record_decode(value.data, value.len, &record) != 0 || record.type != HMQ_RECORD_PUBLISH) return;
    int64_t len =
        hmq_patterns_restore(set, pattern, (const char *)record.topic.data, record.topic.len, topic, sizeof topic);
    if (len <= 0 || len > (int64_t)sizeof topic) return;
    hmq_topic_place place;
    hmq_patterns_find(set, topic, (size_t)len, &place);
    if (place.pattern == pattern) history_tail_add(&live->tail, s, hmq_patterns_at(set, pattern), &place, before, id);
}

/* The value of an iterator's current entry; NULL if it has none. */
static server_string *take_value(server_key *log) {
    server_string *field, *value, *first = NULL;
    while (sv.StreamIteratorNextField(log, &field, &value) == SERVER_OK) {
        sv.FreeString(NULL, field);
        if (first == NULL)
            first = value;
        else
            sv.FreeString(NULL, value);
    }
    return first;
}

/* Reads backwards from the last entry, because each entry needs the number of entries before it. */
static void read_tail(history_live *live, uint32_t pattern, server_key *log, uint64_t length) {
    server_stream_id first = {live->state.indexed.sequence + 1, 0}, last = {UINT64_MAX, UINT64_MAX}, id;
    size_t begun = live->tail.count;
    long fields;
    if (sv.StreamIteratorStart(log, SERVER_STREAM_REVERSE, &first, &last) != SERVER_OK) return;
    while (length > 0 && sv.StreamIteratorNextID(log, &id, &fields) == SERVER_OK) {
        server_string *value = take_value(log);
        hmq_message_id of = {.time_us = id.second, .sequence = id.first};
        if (value != NULL) {
            take_entry(live, pattern, --length, of, slice_of(value));
            sv.FreeString(NULL, value);
        }
    }
    sv.StreamIteratorStop(log);
    history_tail_reverse(&live->tail, begun);
}

/* False if the key has another type. */
static bool read_log(server_ctx *ctx, history_live *live, uint32_t pattern) {
    history_log *log = history_live_log(live, pattern);
    server_key *key = sv.OpenKey(ctx, log->name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    if (key == NULL) {
        sv.FreeString(NULL, log->name);
        log->name = NULL;
        return true;
    }
    bool right = sv.KeyType(key) == SERVER_STREAM;
    if (right) {
        log->messages = sv.ValueLength(key);
        read_tail(live, pattern, key, log->messages);
    }
    sv.CloseKey(key);
    return right;
}

static bool changed(server_ctx *ctx, const history_live *live, const char *what, bool reply) {
    const history_shard *s = &live->state;
    if (reply) reply_error(ctx, ERROR_HISTORY_FOREIGN_PART, shown_slice(s->store->name), s->shard, what);
    return false;
}

static bool make(server_ctx *ctx, history_live *live, bool reply) {
    forget(live);
    live->turn = turn;
    live->doubts = replication_change_count();
    live->view = slots_view_number();
    if (!history_shard_load(ctx, live->state_key, &live->state)) {
        if (reply) reply_wrong_type(ctx, live->state_key, "the state of a shard of history");
        return false;
    }
    history_shard *s = &live->state;
    live->set = s->exists ? history_set_hold(ctx, s->store, s->shard, s->generation) : history_set_first(s->store);
    if (live->set == NULL) return changed(ctx, live, "the pattern set is missing or invalid", reply);
    history_live_begin_epoch(live);
    for (uint32_t p = 0; s->exists && p < live->log_count; p++) {
        if (!read_log(ctx, live, p)) return changed(ctx, live, shown(live->logs[p].name), reply);
    }
    if (s->trimmed > s->last.sequence) return changed(ctx, live, "the state is invalid", reply);
    live->was_on_replica = (sv.GetContextFlags(ctx) & SERVER_CTX_REPLICA) != 0;
    live->is_valid = true;
    return true;
}

/* ---- doubts ------------------------------------------------------------------------------------------------ */

static bool set_is_same(server_ctx *ctx, const history_live *live) {
    const history_shard *s = &live->state;
    server_string *name = history_key(s->store, s->shard, "_%" PRIu32 "_patterns", s->generation);
    server_key *key;
    hmq_slice text = {NULL, 0};
    bool right = history_open_string(ctx, name, SERVER_READ, &key, &text);
    bool same = right && text.len == live->set->len && memcmp(text.data, live->set->text, text.len) == 0;
    if (right && key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
    return same;
}

/* Searches for changes that are not reported. */
static bool is_consistent(server_ctx *ctx, history_live *live) {
    if (live->turn == turn) return true;
    if (live->was_on_replica) return false;
    live->turn = turn;
    if (key_type_of(ctx, live->state_key, SERVER_READ | SERVER_OPEN_NOTOUCH) !=
        (live->state.exists ? SERVER_HASH : SERVER_EMPTY))
        return false;
    return !live->state.exists || set_is_same(ctx, live);
}

bool history_live_policy(server_ctx *ctx, const history_store *store, unsigned shard) {
    unsigned of = can.cluster ? shard : 0;
    if (store->checked_turns[of] == turn) return true;
    server_string *name = history_policy_key(store->name, shard);
    int type = key_type_of(ctx, name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    sv.FreeString(NULL, name);
    if (type != SERVER_HASH) return false;
    store->checked_turns[of] = turn;
    return true;
}

/* The shard may have arrived with its slot since then. */
static bool slot_is_same(const history_live *live) {
    return !can.cluster || slots_changed(live->slot) <= live->view;
}

history_live *history_live_of(server_ctx *ctx, const history_store *store, unsigned shard, bool reply) {
    history_live *live = store->live[shard];
    if (live == NULL) live = store->live[shard] = live_new(store, shard);
    if (live->is_valid && live->doubts == replication_change_count() && slot_is_same(live) && is_consistent(ctx, live))
        return live;
    return make(ctx, live, reply) ? live : NULL;
}

void history_live_written(history_live *live) {
    live->is_valid = true;
}

/* Takes store and shard from "{<store>/<shard>}_history", with or without "_<number>..." after it. */
static bool take_name(hmq_slice key, hmq_slice *store, unsigned *shard) {
    const size_t n = sizeof SUFFIX - 1;
    if (key.len < n + 5 || key.data[0] != '{') return false;
    const uint8_t *end = memchr(key.data, '}', key.len), *slash = memchr(key.data, '/', key.len);
    if (end == NULL || slash == NULL || slash > end || (size_t)(key.data + key.len - end) <= n) return false;
    hmq_slice rest = {end + 1 + n, (size_t)(key.data + key.len - end) - 1 - n};
    uint64_t number;
    if (memcmp(end + 1, SUFFIX, n) != 0) return false;
    if (rest.len > 0 && (rest.len < 2 || rest.data[0] != '_' || rest.data[1] < '0' || rest.data[1] > '9')) return false;
    if (!numbers_read((hmq_slice){slash + 1, (size_t)(end - slash) - 1}, &number, 1)) return false;
    *store = (hmq_slice){key.data + 1, (size_t)(slash - key.data) - 1};
    *shard = number < HISTORY_SHARDS_MAX ? (unsigned)number : HISTORY_SHARDS_MAX;
    return true;
}

void history_live_mark_stale(const history_stores *stores, hmq_slice key) {
    hmq_slice name;
    unsigned shard;
    if (!take_name(key, &name, &shard)) return;
    const history_store *store = history_stores_find(stores, name);
    if (store != NULL && shard < store->shards && store->live[shard] != NULL) store->live[shard]->is_valid = false;
}

void history_live_mark_all_stale(const history_stores *stores) {
    for (const history_store *s = NULL; (s = history_stores_next(stores, s)) != NULL;) {
        for (unsigned shard = 0; shard < s->shards; shard++) {
            if (s->live[shard] != NULL) s->live[shard]->is_valid = false;
        }
    }
}

/* ---- checking ---------------------------------------------------------------------------------------------- */

static bool same_id(hmq_message_id a, hmq_message_id b) {
    return a.sequence == b.sequence && a.time_us == b.time_us;
}

static bool same_state(const history_shard *a, const history_shard *b) {
    return a->exists == b->exists && same_id(a->last, b->last) && same_id(a->indexed, b->indexed) &&
           a->generation == b->generation && a->epoch == b->epoch && a->oldest == b->oldest && a->first == b->first &&
           a->begun_us == b->begun_us && a->before == b->before && a->trimmed == b->trimmed &&
           a->dropping == b->dropping && a->writer == b->writer && a->bytes == b->bytes &&
           a->indexed_bytes == b->indexed_bytes && history_runs_same(a, b);
}

static int compare_postings(const void *a, const void *b) {
    const history_posting *p = a, *q = b;
    if (p->list != q->list) return p->list < q->list ? -1 : 1;
    return (p->number > q->number) - (p->number < q->number);
}

static bool same_tail(history_tail *a, history_tail *b) {
    if (a->count != b->count || a->mark_count != b->mark_count) return false;
    for (size_t i = 0; i < a->mark_count; i++) {
        if (!same_id(a->marks[i], b->marks[i])) return false;
    }
    if (a->count == 0) return true;
    qsort(a->postings, a->count, sizeof *a->postings, compare_postings);
    qsort(b->postings, b->count, sizeof *b->postings, compare_postings);
    for (size_t i = 0; i < a->count; i++) {
        const history_posting *p = &a->postings[i], *q = &b->postings[i];
        if (p->list != q->list || p->number != q->number || p->fragment != q->fragment) return false;
    }
    return true;
}

static bool same_logs(const history_live *a, const history_live *b) {
    if (a->log_count != b->log_count) return false;
    for (uint32_t p = 0; p < a->log_count; p++) {
        if (a->logs[p].messages != b->logs[p].messages) return false;
    }
    return true;
}

static bool same_live(history_live *a, history_live *b) {
    bool same_sets = a->set == NULL || b->set == NULL
                         ? a->set == b->set
                         : a->set->len == b->set->len && memcmp(a->set->text, b->set->text, a->set->len) == 0;
    return same_sets && same_state(&a->state, &b->state) && same_logs(a, b) && same_tail(&a->tail, &b->tail);
}

void history_live_check(server_ctx *ctx, const history_stores *stores,
                        void (*differ)(void *context, const char *what, hmq_slice name), void *context) {
    for (const history_store *s = NULL; (s = history_stores_next(stores, s)) != NULL;) {
        for (unsigned shard = 0; shard < s->shards; shard++) {
            history_live *kept = s->live[shard];
            if (kept == NULL || !kept->is_valid || !slot_is_same(kept) || !is_consistent(ctx, kept)) continue;
            history_live *made = live_new(s, shard);
            if (!make(ctx, made, false) || !same_live(kept, made))
                differ(context, "what is remembered of a shard of history differs from its keys",
                       slice_of(kept->state_key));
            history_live_free(made);
        }
    }
}

/* ---- for who only reads ------------------------------------------------------------------------------------- */

bool history_shard_read(server_ctx *ctx, const history_store *store, unsigned shard, history_shard *state, bool reply) {
    const history_live *live = history_live_of(ctx, store, shard, reply);
    *state = live != NULL ? live->state : (history_shard){.store = store, .shard = shard};
    return live != NULL;
}
