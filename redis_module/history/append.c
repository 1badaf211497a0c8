/* append.c - appends messages to history. */
#include "history/append.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "history/index.h"
#include "history/postings.h"
#include "server/errors.h"
#include "server/keyspace.h"
#include "server/memory.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "history/epoch.h"
#include "history/live.h"
#include "history/policy_write.h"
#include "history/slots.h"
#include "history/ticks.h"

#define EPOCHS_OF_A_STORE 8 /* a store has at least this many epochs per BYTES */
#define TOPIC_ROOM 65536

typedef struct append {
    server_ctx *ctx;
    bool reply;
    history_live *live;
    hmq_message_id id;
    bool new_epoch;
    bool flushes;
    hmq_topic_place place;
    const hmq_pattern *pattern;
    server_string *log_name, *value;
    server_key *log;
    uint64_t before; /* messages in the log */
} append;

static bool fail_type(const append *a, const server_string *name, const char *expected) {
    if (a->reply) reply_wrong_type(a->ctx, name, expected);
    return false;
}

static bool fail(const append *a, const char *why) {
    if (a->reply) {
        reply_error(a->ctx, ERROR_HISTORY_REFUSED, shown_slice(a->live->state.store->name), a->live->state.shard, why);
    }
    return false;
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

static bool epoch_is_full(const history_shard *s, hmq_message_id id) {
    const history_store *store = s->store;
    if (id.time_us - s->begun_us >= (uint64_t)store->epoch_s * 1000000) return true;
    if (id.sequence - s->first + 1 > HMQ_POSTINGS_MAX_NUMBER) return true;
    uint64_t most = (uint64_t)store->bytes / store->spread / EPOCHS_OF_A_STORE;
    return store->bytes > 0 && s->bytes >= most;
}

static bool epoch_may_begin(append *a) {
    if (a->live->state.epoch >= INT32_MAX) return fail(a, "no epoch is left");
    return history_epoch_may_begin(a->ctx, &a->live->state, a->reply);
}

static bool choose_epoch(append *a) {
    const history_shard *s = &a->live->state;
    if (!hmq_message_id_next(s->last, clock_us(), &a->id)) return fail(a, "no id is left");
    a->new_epoch = !s->exists || s->writer != history_writer() || epoch_is_full(s, a->id);
    return !a->new_epoch || epoch_may_begin(a);
}

/* The value for the log, with the topic in short form. */
static server_string *make_value(const hmq_patterns *set, const hmq_record *record) {
    static char topic[TOPIC_ROOM];
    static uint8_t small[4096];
    hmq_record kept = *record;
    kept.topic.len =
        hmq_patterns_shorten(set, (const char *)record->topic.data, record->topic.len, topic, sizeof topic);
    kept.topic.data = (const uint8_t *)topic;
    size_t size = hmq_record_size(&kept);
    if (size == 0) return NULL;
    uint8_t *bytes = scratch_alloc(small, sizeof small, size);
    hmq_record_encode(&kept, bytes, size);
    server_string *value = sv.CreateString(NULL, (const char *)bytes, size);
    scratch_free(bytes, small);
    return value;
}

/* Finds the pattern of the topic, and its short form. */
static bool find_place(append *a, const hmq_record *record) {
    const hmq_patterns *set = a->live->set->patterns;
    hmq_patterns_find(set, (const char *)record->topic.data, record->topic.len, &a->place);
    a->pattern = hmq_patterns_at(set, a->place.pattern);
    a->value = make_value(set, record);
    return a->value != NULL || fail(a, "the message is too long to be stored");
}

static bool open_log(append *a) {
    const history_shard *s = &a->live->state;
    a->log_name = a->new_epoch
                      ? history_key(s->store, s->shard, "_%" PRIu32 "_%" PRIu32, s->epoch + 1, a->place.pattern)
                      : sv.HoldString(NULL, history_live_log(a->live, a->place.pattern)->name);
    a->log = sv.OpenKey(a->ctx, a->log_name, SERVER_READ | SERVER_WRITE);
    int type = sv.KeyType(a->log);
    a->before = type == SERVER_STREAM ? sv.ValueLength(a->log) : 0;
    return type == SERVER_STREAM || type == SERVER_EMPTY || fail_type(a, a->log_name, "a stream");
}

/* Has another program written to the log?  Then the remembered state of the shard is wrong. */
static bool log_has_changed(const append *a) {
    return !a->new_epoch && a->before != a->live->logs[a->place.pattern].messages;
}

static uint64_t tail_limit(const history_live *live) {
    const history_shard *s = &live->state;
    uint64_t limit = (s->last.sequence - s->first + 1) / HISTORY_TAIL_PART;
    if (limit < HISTORY_TAIL_MIN || live->tail.count >= HISTORY_TAIL_ENTRIES) return HISTORY_TAIL_MIN;
    return limit < HISTORY_TAIL_MAX ? limit : HISTORY_TAIL_MAX;
}

static bool begin_flush(append *a) {
    const history_shard *s = &a->live->state;
    uint64_t waiting = s->last.sequence - s->indexed.sequence;
    a->flushes = waiting > 0 && (a->new_epoch || waiting >= tail_limit(a->live));
    return !a->flushes || history_flush_begin(a->ctx, s, &a->live->tail, a->reply);
}

static void end_one(append *a) {
    if (a->log != NULL) sv.CloseKey(a->log);
    if (a->log_name != NULL) sv.FreeString(NULL, a->log_name);
    if (a->value != NULL) sv.FreeString(NULL, a->value);
    a->log = NULL;
    a->log_name = a->value = NULL;
}

static void append_end(append *a) {
    if (a->flushes) history_flush_end();
    end_one(a);
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static bool write_log(append *a) {
    static server_string *field;
    if (field == NULL) field = sv.CreateString(NULL, "m", 1);
    server_string *pair[2] = {field, a->value};
    server_stream_id id = {a->id.sequence, a->id.time_us};
    if (sv.StreamAdd(a->log, 0, &id, pair, 1) != SERVER_OK) {
        a->live->is_valid = false;
        return fail_type(a, a->log_name, "a stream that ends earlier");
    }
    if (replication_is_needed(a->ctx)) {
        char text[48];
        snprintf(text, sizeof text, "%" PRIu64 "-%" PRIu64, a->id.sequence, a->id.time_us);
        sv.Replicate(a->ctx, "XADD", "scss", a->log_name, text, field, a->value);
    } else {
        sv.ReplicateVerbatim(a->ctx);
    }
    index_notify(a->ctx, SERVER_NOTIFY_STREAM, "xadd", a->log_name);
    return true;
}

static void write_flush(append *a) {
    history_shard *s = &a->live->state;
    s->bytes += history_flush_write(a->ctx);
    s->indexed = s->last;
    s->indexed_bytes = s->bytes;
    history_tail_clear(&a->live->tail);
}

/* Writes the state that precedes the first message of an epoch. */
static void begin_epoch(append *a) {
    history_live *live = a->live;
    history_shard *s = &live->state;
    if (!s->exists) {
        s->exists = true;
        s->generation = s->oldest = s->dropping = 1;
        history_patterns_begin(a->ctx, s->store, s->shard, s->generation);
    }
    history_epoch_begin(a->ctx, s, a->id);
    history_live_begin_epoch(live);
}

static void remember(append *a) {
    history_live *live = a->live;
    history_log *log = history_live_log(live, a->place.pattern);
    history_tail_add(&live->tail, &live->state, a->pattern, &a->place, a->before, a->id);
    log->messages = a->before + 1;
    live->state.last = a->id;
    live->state.bytes += slice_of(a->value).len + HISTORY_ENTRY_BYTES;
}

static bool write_all(append *a) {
    if (!write_log(a)) return false;
    if (a->flushes) write_flush(a);
    if (a->new_epoch) begin_epoch(a);
    if (a->flushes || a->new_epoch) history_shard_write(a->ctx, &a->live->state, a->new_epoch);
    history_live_written(a->live);
    remember(a);
    return true;
}

typedef enum outcome { KEPT, REFUSED, CHANGED } outcome;

static outcome try_append(append *a, const hmq_record *record) {
    if (!choose_epoch(a) || !find_place(a, record) || !open_log(a)) return REFUSED;
    if (log_has_changed(a)) return CHANGED;
    return begin_flush(a) && write_all(a) ? KEPT : REFUSED;
}

bool history_append(server_ctx *ctx, const history_store *store, const hmq_record *record, history_place *place,
                    bool reply) {
    unsigned shard = hmq_index_shard(&store->seed, (const char *)record->topic.data, record->topic.len, store->spread);
    for (int attempt = 0; attempt < 2; attempt++) {
        append a = {.ctx = ctx, .reply = reply, .live = history_live_of(ctx, store, shard, reply)};
        if (a.live == NULL) return false;
        outcome result = try_append(&a, record);
        append_end(&a);
        if (result == REFUSED) return false;
        if (result == CHANGED) { /* retries once, with state from the keys */
            a.live->is_valid = false;
            continue;
        }
        *place = (history_place){shard, a.id.sequence, a.id.time_us};
        counters.history_appended++;
        history_tick(ctx, store, shard, a.id.sequence);
        return true;
    }
    if (reply) reply_error(ctx, ERROR_HISTORY_CHANGING);
    return false;
}

/* ---- many -------------------------------------------------------------------------------------------------- */

/* Does the stream accept this number?  Its last id may be beyond its last entry, which only XINFO shows. */
static bool takes_number(server_ctx *ctx, server_string *name, uint64_t sequence) {
    server_reply *reply = sv.Call(ctx, "XINFO", "cs", "STREAM", name);
    bool takes = false;
    for (size_t i = 0; reply != NULL && i + 1 < sv.CallReplyLength(reply); i += 2) {
        hmq_slice field = {NULL, 0}, id = {NULL, 0};
        server_reply *key = sv.CallReplyArrayElement(reply, i), *value = sv.CallReplyArrayElement(reply, i + 1);
        field.data = (const uint8_t *)sv.CallReplyStringPtr(key, &field.len);
        if (!slice_is(field, "last-generated-id")) continue;
        id.data = (const uint8_t *)sv.CallReplyStringPtr(value, &id.len);
        const uint8_t *dash = id.data == NULL ? NULL : memchr(id.data, '-', id.len);
        uint64_t last;
        takes =
            dash != NULL && numbers_read((hmq_slice){id.data, (size_t)(dash - id.data)}, &last, 1) && last < sequence;
    }
    if (reply != NULL) sv.FreeCallReply(reply);
    return takes;
}

/* Checks every log that will be written. */
static outcome look_at_logs(append *a, const hmq_record *records, size_t count) {
    uint8_t *seen = sv.Calloc(a->live->log_count, 1);
    outcome result = KEPT;
    for (size_t i = 0; i < count && result == KEPT; i++) {
        const hmq_record *record = &records[i];
        hmq_patterns_find(a->live->set->patterns, (const char *)record->topic.data, record->topic.len, &a->place);
        if (seen[a->place.pattern]) continue;
        seen[a->place.pattern] = 1;
        if (!open_log(a))
            result = REFUSED;
        else if (log_has_changed(a))
            result = CHANGED;
        else if (sv.KeyType(a->log) == SERVER_STREAM && !takes_number(a->ctx, a->log_name, a->id.sequence)) {
            fail_type(a, a->log_name, "a stream that ends earlier");
            result = REFUSED;
        }
        end_one(a);
    }
    sv.Free(seen);
    return result;
}

static outcome try_all(append *a, const hmq_record *records, size_t count) {
    if (!choose_epoch(a)) return REFUSED;
    if (a->id.sequence > HMQ_ID_MAX - count || a->id.time_us > HMQ_ID_MAX - count) {
        fail(a, "no id is left");
        return REFUSED;
    }
    outcome result = look_at_logs(a, records, count);
    if (result != KEPT) return result;
    if (!begin_flush(a)) return REFUSED;
    for (size_t i = 0; i < count; i++) { /* from here on nothing can fail */
        if (i > 0) hmq_message_id_next(a->live->state.last, clock_us(), &a->id);
        if (!find_place(a, &records[i]) || !open_log(a) || !write_all(a)) return REFUSED;
        end_one(a);
        if (a->flushes) history_flush_end();
        a->flushes = a->new_epoch = false;
    }
    return KEPT;
}

bool history_append_all(server_ctx *ctx, const history_store *store, unsigned shard, const hmq_record *records,
                        size_t count, history_place *last) {
    for (int attempt = 0; attempt < 2; attempt++) {
        append a = {.ctx = ctx, .reply = true, .live = history_live_of(ctx, store, shard, true)};
        if (a.live == NULL) return false;
        outcome result = try_all(&a, records, count);
        append_end(&a);
        if (result == REFUSED) return false;
        if (result == CHANGED) {
            a.live->is_valid = false;
            continue;
        }
        *last = (history_place){shard, a.id.sequence, a.id.time_us};
        counters.history_appended += count;
        history_tick(ctx, store, shard, a.id.sequence);
        return true;
    }
    reply_error(ctx, ERROR_HISTORY_CHANGING);
    return false;
}

/* ---- the end of an epoch ----------------------------------------------------------------------------------- */

bool history_tail_may_end(server_ctx *ctx, const history_shard *state, bool reply) {
    append a = {.ctx = ctx, .reply = reply, .new_epoch = true};
    a.live = history_live_of(ctx, state->store, state->shard, reply);
    bool right = a.live != NULL && begin_flush(&a);
    append_end(&a);
    return right;
}

void history_tail_end(server_ctx *ctx, history_shard *state) {
    append a = {.ctx = ctx, .new_epoch = true};
    a.live = history_live_of(ctx, state->store, state->shard, false);
    if (a.live != NULL && begin_flush(&a) && a.flushes) write_flush(&a);
    append_end(&a);
    if (a.live == NULL) return;
    state->indexed = a.live->state.indexed;
    state->bytes = a.live->state.bytes;
    state->indexed_bytes = a.live->state.indexed_bytes;
    a.live->is_valid = false; /* until the state is written */
}

static unsigned shard_of(const history_store *store, hmq_slice topic) {
    return hmq_index_shard(&store->seed, (const char *)topic.data, topic.len, store->spread);
}

/* The store that selects the topic, if its policy is still there. */
static const history_store *selects(server_ctx *ctx, index_t *index, hmq_slice topic) {
    const history_store *store = history_stores_of_topic(index->histories, topic);
    if (store == NULL) return NULL;
    unsigned shard = can.cluster ? shard_of(store, topic) : 0;
    bool to_be_written = can.cluster && !(store->copies >> shard & 1); /* this shard has no copy of the policy yet */
    if (to_be_written || history_live_policy(ctx, store, shard)) return store;
    server_string *key = history_policy_key(store->name, shard);
    index_mark_stale(index, slice_of(key));
    sv.FreeString(NULL, key);
    return NULL;
}

bool history_topic_slot(server_ctx *ctx, index_t *index, hmq_slice topic, unsigned *slot) {
    const history_store *store = selects(ctx, index, topic);
    if (store != NULL) *slot = history_slot(store->name, shard_of(store, topic));
    return store != NULL;
}

bool history_append_publish(server_ctx *ctx, index_t *index, const hmq_record *record, bool reply) {
    history_place place;
    const history_store *store = selects(ctx, index, record->topic);
    if (store == NULL) return true;
    if (!history_append(ctx, store, record, &place, reply)) return false;
    history_policy_copy_to_shard(ctx, store, place.shard);
    return true;
}
