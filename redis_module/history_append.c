/* history_append.c - writes a message into history. */
#include "history_append.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../src/history_index.h"
#include "../src/history_postings.h"
#include "../src/topic.h"
#include "errors.h"
#include "history_shard.h"
#include "history_ticks.h"
#include "replication.h"

#define EXACT_MAX_BYTES 2048 /* shorter lists are set anew at their exact size: nothing is kept free behind them */
#define ENTRY_BYTES 12       /* of a log, beyond its value */
#define EPOCHS_OF_A_STORE 8  /* at least so many make up its bytes */

/* A string to be appended to. */
typedef struct growing {
    server_string *name;
    server_key *key;
    hmq_slice old;
    uint8_t added[HMQ_POSTINGS_APPEND_BYTES];
    size_t len;
} growing;

typedef struct append {
    server_ctx *ctx;
    bool reply;
    history_shard state;
    hmq_message_id id;
    bool new_epoch, new_shard;
    uint64_t number; /* in the epoch, 1 is the first */
    hmq_topic_place place;
    uint8_t bits[HMQ_PATTERNS_MAX_SLOTS]; /* of the pattern's slots */
    server_string *log_name, *value;
    server_key *log;
    growing lists[HMQ_PATTERNS_MAX_SLOTS + 1]; /* the marks among them, if one is due */
    size_t count;
} append;

static bool fail_type(const append *a, const server_string *name, const char *expected) {
    if (a->reply) reply_wrong_type(a->ctx, name, expected);
    return false;
}

static bool fail(const append *a, const char *why) {
    if (a->reply) {
        reply_error(a->ctx, ERROR_SYNTAX, "history of store %s, shard %u: %s", shown_slice(a->state.store->name),
                    a->state.shard, why);
    }
    return false;
}

/* ---- looking ----------------------------------------------------------------------------------------------- */

static bool epoch_is_full(const history_shard *s, hmq_message_id id) {
    const history_store *store = s->store;
    if (id.time_us - s->begun_us >= (uint64_t)store->epoch_s * 1000000) return true;
    if (id.sequence - s->first + 1 > HMQ_POSTINGS_MAX_NUMBER) return true;
    uint64_t most = (uint64_t)store->bytes / store->shards / EPOCHS_OF_A_STORE;
    return store->bytes > 0 && s->bytes >= most;
}

static bool choose_epoch(append *a) {
    history_shard *s = &a->state;
    a->new_shard = !s->exists;
    if (!hmq_message_id_next(s->last, history_now_us(), &a->id)) return fail(a, "no id is left");
    a->new_epoch = a->new_shard || epoch_is_full(s, a->id);
    if (a->new_epoch && s->epoch >= INT32_MAX) return fail(a, "no epoch is left");
    a->number = a->new_epoch ? 1 : a->id.sequence - s->first + 1;
    return true;
}

static uint32_t next_epoch(const append *a) {
    return a->state.epoch + (a->new_epoch ? 1 : 0);
}

/* Where the topic belongs, and its short form. */
static bool find_place(append *a, const hmq_record *record) {
    const history_shard *s = &a->state;
    char first[64];
    const hmq_patterns *set;
    hmq_patterns *own = NULL;
    if (a->new_shard) {
        int len = snprintf(first, sizeof first, "holdmq-patterns 1 levels=%u\n#\n", s->store->levels);
        set = own = hmq_patterns_parse(&server_allocator, first, (size_t)len, NULL, 0);
    } else {
        set = history_patterns(a->ctx, s->store, s->shard, s->generation);
    }
    if (set == NULL) return fail(a, "its pattern set is missing or was changed");
    hmq_patterns_find(set, (const char *)record->topic.data, record->topic.len, &a->place);
    char *text = sv.Alloc(record->topic.len + 1);
    hmq_record kept = *record;
    kept.topic.len =
        hmq_patterns_shorten(set, (const char *)record->topic.data, record->topic.len, text, record->topic.len);
    kept.topic.data = (const uint8_t *)text;
    size_t size = hmq_record_size(&kept);
    if (size > 0) {
        uint8_t *bytes = sv.Alloc(size);
        hmq_record_encode(&kept, bytes, size);
        a->value = sv.CreateString(NULL, (const char *)bytes, size);
        sv.Free(bytes);
    }
    sv.Free(text);
    const hmq_pattern *pattern = hmq_patterns_at(set, a->place.pattern);
    memcpy(a->bits, pattern->bits, sizeof a->bits);
    if (own != NULL) hmq_patterns_free(own);
    return size > 0 || fail(a, "the message is too long to be kept");
}

static bool open_log(append *a) {
    const history_shard *s = &a->state;
    a->log_name = history_key(s->store, s->shard, "_%" PRIu32 "_%" PRIu32, next_epoch(a), a->place.pattern);
    a->log = sv.OpenKey(a->ctx, a->log_name, SERVER_READ | SERVER_WRITE);
    int type = sv.KeyType(a->log);
    return type == SERVER_STREAM || type == SERVER_EMPTY || fail_type(a, a->log_name, "a stream");
}

static bool open_growing(append *a, growing *g) {
    a->count++;
    return history_open_string(a->ctx, g->name, SERVER_READ | SERVER_WRITE, &g->key, &g->old) ||
           fail_type(a, g->name, "a string");
}

static bool open_list(append *a, unsigned slot, unsigned bits, unsigned page) {
    const history_shard *s = &a->state;
    uint32_t hash = hmq_index_hash(&s->store->seed, a->place.levels[slot], bits);
    hmq_index_place at = hmq_index_place_of(hash, bits, page);
    growing *g = &a->lists[a->count];
    g->name = history_key(s->store, s->shard, "_%" PRIu32 "_%" PRIu32 "_%u_%u_%" PRIu32, next_epoch(a),
                          a->place.pattern, slot, page, at.group);
    if (!open_growing(a, g)) return false;
    uint64_t last = 0;
    if (hmq_postings_last(g->old.data, g->old.len, at.fragment_bits, &last) == HMQ_POSTINGS_CORRUPT)
        return fail_type(a, g->name, "a posting list");
    if (g->old.len == 0) last = 0;
    g->len = hmq_postings_append(g->old.len, last, at.fragment_bits, a->number, at.fragment, g->added);
    return g->len > 0 || fail_type(a, g->name, "a posting list that ends earlier");
}

static bool open_lists(append *a) {
    unsigned page = hmq_index_page(sv.KeyType(a->log) == SERVER_EMPTY ? 0 : sv.ValueLength(a->log));
    for (unsigned slot = 0; slot < a->place.slots; slot++) {
        if (!open_list(a, slot, a->bits[slot], page)) return false;
    }
    if ((a->number - 1) % HMQ_MARKS_EVERY != 0) return true;
    growing *marks = &a->lists[a->count];
    marks->name = history_key(a->state.store, a->state.shard, "_%" PRIu32 "_marks", next_epoch(a));
    hmq_mark_encode(a->id, marks->added);
    marks->len = HMQ_MARK_BYTES;
    return open_growing(a, marks);
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static bool write_log(append *a) {
    static const char field_name[] = "m";
    server_string *field = sv.CreateString(NULL, field_name, 1);
    server_string *pair[2] = {field, a->value};
    server_stream_id id = {a->id.sequence, a->id.time_us};
    bool added = sv.StreamAdd(a->log, 0, &id, pair, 1) == SERVER_OK;
    if (added) {
        char text[48];
        snprintf(text, sizeof text, "%" PRIu64 "-%" PRIu64, a->id.sequence, a->id.time_us);
        replicate(a->ctx, "XADD", "scss", a->log_name, text, field, a->value);
        index_notify(a->ctx, SERVER_NOTIFY_STREAM, "xadd", a->log_name);
    }
    sv.FreeString(NULL, field);
    return added || fail_type(a, a->log_name, "a stream that ends earlier");
}

static void set_exactly(growing *g) {
    char text[EXACT_MAX_BYTES + HMQ_POSTINGS_APPEND_BYTES];
    if (g->old.len > 0) memcpy(text, g->old.data, g->old.len);
    memcpy(text + g->old.len, g->added, g->len);
    server_string *whole = sv.CreateString(NULL, text, g->old.len + g->len);
    sv.StringSet(g->key, whole);
    sv.FreeString(NULL, whole);
}

static void grow(append *a, growing *g) {
    if (g->old.len <= EXACT_MAX_BYTES) {
        set_exactly(g);
    } else {
        size_t len = g->old.len, now;
        sv.StringTruncate(g->key, len + g->len);
        memcpy(sv.StringDMA(g->key, &now, SERVER_WRITE) + len, g->added, g->len);
    }
    replicate(a->ctx, "APPEND", "sb", g->name, (const char *)g->added, g->len);
    index_notify(a->ctx, SERVER_NOTIFY_STRING, "append", g->name);
    a->state.bytes += g->len;
}

/* What stands before the first message of an epoch.  After the log: what the log refuses must change nothing. */
static void begin_epoch(append *a) {
    history_shard *s = &a->state;
    if (a->new_shard) {
        s->exists = true;
        s->generation = s->oldest = s->dropping = 1;
        history_patterns_begin(a->ctx, s->store, s->shard, s->generation);
    }
    history_epoch_begin(a->ctx, s, a->id);
}

static bool write_all(append *a) {
    if (!write_log(a)) return false;
    if (a->new_epoch) begin_epoch(a);
    a->state.last = a->id;
    a->state.bytes += slice_of(a->value).len + ENTRY_BYTES;
    for (size_t i = 0; i < a->count; i++) grow(a, &a->lists[i]);
    history_shard_write(a->ctx, &a->state, a->new_epoch);
    return true;
}

static void append_end(append *a) {
    for (size_t i = 0; i < a->count; i++) {
        if (a->lists[i].key != NULL) sv.CloseKey(a->lists[i].key);
        sv.FreeString(NULL, a->lists[i].name);
    }
    if (a->log != NULL) sv.CloseKey(a->log);
    if (a->log_name != NULL) sv.FreeString(NULL, a->log_name);
    if (a->value != NULL) sv.FreeString(NULL, a->value);
}

bool history_append(server_ctx *ctx, const history_store *store, const hmq_record *record, history_place *place,
                    bool reply) {
    append a = {.ctx = ctx, .reply = reply};
    unsigned shard = hmq_index_shard(&store->seed, (const char *)record->topic.data, record->topic.len, store->shards);
    bool kept = history_shard_read(ctx, store, shard, &a.state, reply) && choose_epoch(&a) && find_place(&a, record) &&
                (!a.new_epoch || history_epoch_may_begin(ctx, &a.state, reply)) && open_log(&a) && open_lists(&a) &&
                write_all(&a);
    append_end(&a);
    if (!kept) return false;
    *place = (history_place){shard, a.id.sequence, a.id.time_us};
    counters.history_appended++;
    history_tick(ctx, store, shard, a.id.sequence);
    return true;
}

/* The store that selects the topic, if its policy is still there. */
static const history_store *selects(server_ctx *ctx, index_t *index, hmq_slice topic) {
    const history_store *store = history_stores_of_topic(index->histories, topic);
    if (store == NULL) return NULL;
    server_key *key = sv.OpenKey(ctx, store->key, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool lives = key != NULL && sv.KeyType(key) == SERVER_HASH;
    if (key != NULL) sv.CloseKey(key);
    if (lives) return store;
    index_doubt(index, slice_of(store->key));
    return NULL;
}

bool history_keep(server_ctx *ctx, index_t *index, const hmq_record *record, bool reply) {
    history_place place;
    const history_store *store = selects(ctx, index, record->topic);
    return store == NULL || history_append(ctx, store, record, &place, reply);
}
