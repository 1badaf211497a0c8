/* history_check.c - compares an epoch's posting lists and marks with its logs; HISTORY.CHECK. */
#include "history_check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../src/history_index.h"
#include "../src/history_postings.h"
#include "../src/record.h"
#include "errors.h"
#include "history.h"

#define SENTENCE_BYTES 256
#define SENTENCES_MAX 100 /* of a command */

/* A posting list as it ought to be. */
typedef struct expected {
    uint8_t *bytes;
    size_t len, room;
    uint64_t last;
} expected;

typedef struct check {
    server_ctx *ctx;
    const history_shard *state;
    history_epoch epoch;
    uint64_t end; /* first sequence number behind the epoch */
    const hmq_patterns *set;
    server_dict *lists; /* of the present pattern: slot, page, group -> expected */
    uint64_t *times;    /* of each message that leaves a mark; 0: not seen */
    uint64_t marks;
    uint64_t messages;
    char *topic;
    history_tell tell;
    void *context;
} check;

static void differ(check *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void differ(check *c, const char *format, ...) {
    char sentence[SENTENCE_BYTES];
    int used = snprintf(sentence, sizeof sentence, "epoch %" PRIu32 ": ", c->epoch.epoch);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence + used, sizeof sentence - (size_t)used, format, arguments);
    va_end(arguments);
    c->tell(c->context, sentence);
}

/* ---- what ought to be -------------------------------------------------------------------------------------- */

typedef struct list_name {
    uint32_t slot, page, group;
} list_name;

static expected *expect(check *c, list_name name) {
    expected *e = sv.DictGetC(c->lists, &name, sizeof name, NULL);
    if (e != NULL) return e;
    e = sv.Calloc(1, sizeof *e);
    sv.DictSetC(c->lists, &name, sizeof name, e);
    return e;
}

static void expect_posting(check *c, list_name name, unsigned fragment_bits, uint64_t number, uint32_t fragment) {
    expected *e = expect(c, name);
    if (e->room - e->len < HMQ_POSTINGS_APPEND_BYTES) {
        e->room = e->room == 0 ? HMQ_POSTINGS_BLOCK_BYTES : e->room * 2;
        e->bytes = sv.Realloc(e->bytes, e->room);
    }
    e->len += hmq_postings_append(e->len, e->last, fragment_bits, number, fragment, e->bytes + e->len);
    e->last = number;
}

static void forget_lists(check *c) {
    server_dict_iter *iter = sv.DictIteratorStartC(c->lists, "^", NULL, 0);
    void *list;
    while (sv.DictNextC(iter, NULL, &list) != NULL) {
        sv.Free(((expected *)list)->bytes);
        sv.Free(list);
    }
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, c->lists);
}

/* ---- logs -------------------------------------------------------------------------------------------------- */

/* The topic of an entry's value; 0 after telling that it is none of this pattern. */
static size_t read_topic(check *c, uint32_t pattern, uint64_t sequence, const server_string *value) {
    hmq_record record;
    hmq_slice bytes = value == NULL ? (hmq_slice){NULL, 0} : slice_of(value);
    int64_t len = -1;
    if (bytes.len > 0 && hmq_record_decode(bytes.data, bytes.len, &record) == 0 && record.type == HMQ_RECORD_PUBLISH)
        len = hmq_patterns_restore(c->set, pattern, (const char *)record.topic.data, record.topic.len, c->topic,
                                   HMQ_TOPIC_MAX_BYTES);
    if (len > 0 && len <= HMQ_TOPIC_MAX_BYTES) return (size_t)len;
    differ(c, "what the log of pattern %" PRIu32 " has at %" PRIu64 " is no message of it", pattern, sequence);
    return 0;
}

static void take_message(check *c, uint32_t pattern, uint64_t before, server_stream_id id, const server_string *value) {
    size_t len = read_topic(c, pattern, id.first, value);
    if (len == 0) return;
    if (id.first < c->epoch.first || id.first >= c->end) {
        differ(c, "the log of pattern %" PRIu32 " has %" PRIu64 ", a number of another epoch", pattern, id.first);
        return;
    }
    hmq_topic_place place;
    hmq_patterns_find(c->set, c->topic, len, &place);
    if (place.pattern != pattern) {
        differ(c, "message %" PRIu64 " is in the log of pattern %" PRIu32 ", and belongs to %" PRIu32, id.first,
               pattern, place.pattern);
        return;
    }
    uint64_t number = id.first - c->epoch.first + 1;
    if (hmq_mark_due(c->epoch.first, id.first) && number / HMQ_MARKS_EVERY < c->marks)
        c->times[number / HMQ_MARKS_EVERY] = id.second;
    if (id.first > c->state->indexed.sequence) return; /* of the tail */
    const hmq_pattern *shape = hmq_patterns_at(c->set, pattern);
    for (unsigned slot = 0; slot < place.slots; slot++) {
        unsigned page = hmq_index_page(before);
        uint32_t hash = hmq_index_hash(&c->state->store->seed, place.levels[slot], shape->bits[slot]);
        hmq_index_place at = hmq_index_place_of(hash, shape->bits[slot], page);
        expect_posting(c, (list_name){slot, page, at.group}, at.fragment_bits, number, at.fragment);
    }
}

/* Returns how many entries the log has. */
static uint64_t read_log(check *c, uint32_t pattern) {
    server_string *name =
        history_key(c->state->store, c->state->shard, "_%" PRIu32 "_%" PRIu32, c->epoch.epoch, pattern);
    server_key *log = sv.OpenKey(c->ctx, name, SERVER_READ);
    server_stream_id first = {0, 0}, last = {UINT64_MAX, UINT64_MAX}, id;
    uint64_t count = 0;
    long fields;
    sv.FreeString(NULL, name);
    if (log == NULL) return 0;
    if (sv.KeyType(log) != SERVER_STREAM) differ(c, "the log of pattern %" PRIu32 " is no stream", pattern);
    if (sv.KeyType(log) == SERVER_STREAM && sv.StreamIteratorStart(log, 0, &first, &last) == SERVER_OK) {
        while (sv.StreamIteratorNextID(log, &id, &fields) == SERVER_OK) {
            server_string *field = NULL, *value = NULL, *one = NULL;
            for (long i = 0; sv.StreamIteratorNextField(log, &field, &one) == SERVER_OK; i++) {
                sv.FreeString(NULL, field);
                if (i > 0) sv.FreeString(NULL, one);
                if (i == 0) value = one;
            }
            take_message(c, pattern, count++, id, value);
            if (value != NULL) sv.FreeString(NULL, value);
        }
        sv.StreamIteratorStop(log);
    }
    sv.CloseKey(log);
    return count;
}

/* ---- lists and marks --------------------------------------------------------------------------------------- */

static void compare_list(check *c, uint32_t pattern, list_name at) {
    static const expected nothing;
    const expected *wanted = sv.DictGetC(c->lists, &at, sizeof at, NULL);
    server_string *name = history_key(c->state->store, c->state->shard, "_%" PRIu32 "_%" PRIu32 "_%u_%u_%" PRIu32,
                                      c->epoch.epoch, pattern, at.slot, at.page, at.group);
    server_key *key;
    hmq_slice list;
    size_t same = 0;
    if (wanted == NULL) wanted = &nothing;
    bool right = history_open_string(c->ctx, name, SERVER_READ, &key, &list);
    while (right && same < list.len && same < wanted->len && list.data[same] == wanted->bytes[same]) same++;
    if (!right)
        differ(c, "%s is no string", shown(name));
    else if (same < list.len || same < wanted->len)
        differ(c, "%s has %zu bytes, %zu expected; the first %zu are right", shown(name), list.len, wanted->len, same);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, name);
}

static void compare_lists(check *c, uint32_t pattern, uint64_t entries) {
    const hmq_pattern *shape = hmq_patterns_at(c->set, pattern);
    unsigned pages = hmq_index_page(entries) + 1;
    for (unsigned slot = 0; slot < shape->slots; slot++) {
        for (unsigned page = 0; page < pages; page++) {
            hmq_index_place at = hmq_index_place_of(0, shape->bits[slot], page);
            for (uint32_t group = 0; group < UINT32_C(1) << at.group_bits; group++)
                compare_list(c, pattern, (list_name){slot, page, group});
        }
    }
}

/* How many the epoch ought to have. */
static uint64_t marks_due(const check *c) {
    uint64_t last = c->end - 1 < c->state->indexed.sequence ? c->end - 1 : c->state->indexed.sequence;
    return last < c->epoch.first ? 0 : (last - c->epoch.first) / HMQ_MARKS_EVERY + 1;
}

static server_key *open_marks(const check *c, hmq_slice *marks) {
    server_string *name = history_key(c->state->store, c->state->shard, "_%" PRIu32 "_marks", c->epoch.epoch);
    server_key *key;
    history_open_string(c->ctx, name, SERVER_READ, &key, marks);
    sv.FreeString(NULL, name);
    return key;
}

static void compare_marks(check *c) {
    hmq_slice marks;
    server_key *key = open_marks(c, &marks);
    for (uint64_t i = 0; i < c->marks && (i + 1) * HMQ_MARK_BYTES <= marks.len; i++) {
        uint8_t wanted[HMQ_MARK_BYTES];
        uint64_t sequence = c->epoch.first + i * HMQ_MARKS_EVERY;
        hmq_mark_encode((hmq_message_id){c->times[i], sequence}, wanted);
        if (c->times[i] != 0 && memcmp(marks.data + i * HMQ_MARK_BYTES, wanted, sizeof wanted) != 0)
            differ(c, "mark %" PRIu64 " is not that of message %" PRIu64, i, sequence);
    }
    if (marks.len % HMQ_MARK_BYTES != 0 || marks.len / HMQ_MARK_BYTES != marks_due(c))
        differ(c, "it has %zu bytes of marks, %" PRIu64 " marks expected", marks.len, marks_due(c));
    if (key != NULL) sv.CloseKey(key);
}

/* As many as there are, whatever the state says: others may have changed it. */
static void expect_marks(check *c) {
    hmq_slice marks;
    server_key *key = open_marks(c, &marks);
    c->marks = marks.len / HMQ_MARK_BYTES < marks_due(c) ? marks.len / HMQ_MARK_BYTES : marks_due(c);
    c->times = sv.Calloc(c->marks + 1, sizeof *c->times);
    if (key != NULL) sv.CloseKey(key);
}

bool history_check_epoch(server_ctx *ctx, const history_shard *state, uint32_t epoch, history_tell tell,
                         void *context) {
    history_epoch after;
    check c = {.ctx = ctx, .state = state, .tell = tell, .context = context, .end = state->last.sequence + 1};
    if (!history_epoch_read(ctx, state, epoch, &c.epoch)) return false;
    if (epoch < state->epoch && !history_epoch_read(ctx, state, epoch + 1, &after)) return false;
    if (epoch < state->epoch) c.end = after.first;
    const hmq_patterns *set = history_patterns(ctx, state->store, state->shard, c.epoch.generation);
    if (set == NULL || c.end < c.epoch.first) return false;
    c.set = set;
    expect_marks(&c);
    c.topic = sv.Alloc(HMQ_TOPIC_MAX_BYTES);
    for (uint32_t pattern = 0; pattern < hmq_patterns_count(set); pattern++) {
        c.lists = sv.CreateDict(NULL);
        uint64_t entries = read_log(&c, pattern);
        c.messages += entries;
        compare_lists(&c, pattern, entries);
        forget_lists(&c);
    }
    compare_marks(&c);
    if (c.messages != c.end - c.epoch.first)
        differ(&c, "its logs have %" PRIu64 " messages, %" PRIu64 " expected", c.messages, c.end - c.epoch.first);
    sv.Free(c.topic);
    sv.Free(c.times);
    return true;
}

/* ---- the command ------------------------------------------------------------------------------------------- */

/* Kept until all is read: opening a key that has expired is an event, of which this client may hear in the middle of a
 * reply (before 7.2). */
typedef struct sentences {
    server_string *kept[SENTENCES_MAX];
    long count, left_out;
} sentences;

static void keep_sentence(void *context, const char *sentence) {
    sentences *s = context;
    if (s->count < SENTENCES_MAX)
        s->kept[s->count++] = sv.CreateString(NULL, sentence, strlen(sentence));
    else
        s->left_out++;
}

static int reply_sentences(server_ctx *ctx, const sentences *s) {
    sv.ReplyWithArray(ctx, s->count + (s->left_out > 0 ? 1 : 0));
    for (long i = 0; i < s->count; i++) {
        sv.ReplyWithString(ctx, s->kept[i]);
        sv.FreeString(NULL, s->kept[i]);
    }
    char more[64];
    snprintf(more, sizeof more, "and %ld more", s->left_out);
    if (s->left_out > 0) sv.ReplyWithCString(ctx, more);
    return SERVER_OK;
}

int history_check_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    const history_store *store = history_take_store(&a, 2);
    history_shard state;
    long long epoch = 0;
    if (store == NULL || !history_take_shard(&a, store, &state)) return SERVER_OK;
    if (args_take_word(&a, "EPOCH") && !args_number(&a, "EPOCH", state.oldest, state.epoch, &epoch)) return SERVER_OK;
    if (!args_end(&a)) return SERVER_OK;
    sentences s = {.count = 0};
    if (state.exists &&
        !history_check_epoch(ctx, &state, epoch == 0 ? state.epoch : (uint32_t)epoch, keep_sentence, &s))
        keep_sentence(&s, "the epochs or the pattern set are missing, or were changed");
    return reply_sentences(ctx, &s);
}
