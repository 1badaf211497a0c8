/* check.c - compares an epoch's posting lists and marks with its logs. */
#include "history/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "topic/record.h"
#include "history/index.h"
#include "history/postings.h"
#include "server/errors.h"
#include "server/memory.h"
#include "history/epoch.h"

#define SENTENCE_BYTES 320

/* The expected content of a posting list, for the messages of this part. */
typedef struct expected {
    uint8_t *bytes; /* after those of earlier messages */
    size_t len, room;
    size_t offset; /* where they begin in the list */
    uint64_t last; /* the last number so far */
} expected;

typedef struct check {
    server_ctx *ctx;
    const history_shard *state;
    history_check_place *place;
    uint64_t left; /* remaining comparisons */
    history_epoch epoch;
    uint64_t end; /* first sequence number after the epoch */
    const hmq_patterns *set;
    const hmq_pattern *shape; /* of the current pattern */
    server_dict *lists;       /* of the current part: slot, page, group -> expected */
    uint64_t from;            /* its first sequence number */
    server_key *log;          /* NULL: it does not exist */
    hmq_slice marks;
    char *topic;
    history_report report;
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
    c->report(c->context, sentence);
}

/* ---- what is expected -------------------------------------------------------------------------------------- */

typedef struct list_name {
    uint32_t slot, page, group;
} list_name;

static server_string *key_of(const check *c, list_name at) {
    return history_key(c->state->store, c->state->shard, "_%" PRIu64 "_%" PRIu64 "_%u_%u_%" PRIu32, c->place->epoch,
                       c->place->pattern, at.slot, at.page, at.group);
}

static uint64_t number_of(const check *c, uint64_t sequence) {
    return sequence - c->epoch.first + 1;
}

/* Finds where the messages of this part begin in the list.  An unreadable list is reported when it is compared. */
static void find_offset(check *c, list_name name, unsigned fragment_bits, expected *e) {
    server_string *key_name = key_of(c, name);
    server_key *key;
    hmq_slice list;
    if (history_open_string(c->ctx, key_name, SERVER_READ, &key, &list) &&
        hmq_postings_place(list.data, list.len, fragment_bits, number_of(c, c->from), &e->offset, &e->last) ==
            HMQ_POSTINGS_CORRUPT)
        e->offset = e->last = 0;
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
}

static expected *expect(check *c, list_name name, unsigned fragment_bits) {
    expected *e = sv.DictGetC(c->lists, &name, sizeof name, NULL);
    if (e != NULL) return e;
    e = sv.Calloc(1, sizeof *e);
    sv.DictSetC(c->lists, &name, sizeof name, e);
    find_offset(c, name, fragment_bits, e);
    return e;
}

static void expect_posting(check *c, list_name name, hmq_index_place at, uint64_t number) {
    expected *e = expect(c, name, at.fragment_bits);
    e->bytes = array_reserve(e->bytes, &e->room, e->len, HMQ_POSTINGS_APPEND_BYTES, 64, 1);
    e->len +=
        hmq_postings_append(e->offset + e->len, e->last, at.fragment_bits, number, at.fragment, e->bytes + e->len);
    e->last = number;
}

/* ---- logs -------------------------------------------------------------------------------------------------- */

/* The topic of an entry's value; 0 after reporting that it does not belong to this pattern. */
static size_t read_topic(check *c, uint64_t sequence, const server_string *value) {
    hmq_record record;
    hmq_slice bytes = value == NULL ? (hmq_slice){NULL, 0} : slice_of(value);
    int64_t len = -1;
    if (bytes.len > 0 && hmq_record_decode(bytes.data, bytes.len, &record) == 0 && record.type == HMQ_RECORD_PUBLISH)
        len = hmq_patterns_restore(c->set, (uint32_t)c->place->pattern, (const char *)record.topic.data,
                                   record.topic.len, c->topic, HMQ_TOPIC_MAX_BYTES);
    if (len > 0 && len <= HMQ_TOPIC_MAX_BYTES) return (size_t)len;
    differ(c, "entry %" PRIu64 " of the log of pattern %" PRIu64 " is not a message of this pattern", sequence,
           c->place->pattern);
    return 0;
}

/* Finds the list for a slot of a message's topic; false if the topic has no such level. */
static bool list_of(const check *c, const hmq_topic_place *where, unsigned slot, uint64_t before, list_name *name,
                    hmq_index_place *at) {
    if (slot >= where->slots) return false;
    unsigned page = hmq_index_page(before);
    uint32_t hash = hmq_index_hash(&c->state->store->seed, where->levels[slot], c->shape->bits[slot]);
    *at = hmq_index_place_of(hash, c->shape->bits[slot], page);
    *name = (list_name){slot, page, at->group};
    return true;
}

static void compare_mark(check *c, server_stream_id id) {
    uint64_t i = number_of(c, id.first) / HMQ_MARKS_EVERY;
    uint8_t wanted[HMQ_MARK_BYTES];
    if (!hmq_mark_due(c->epoch.first, id.first) || id.first > c->place->indexed) return;
    hmq_mark_encode((hmq_message_id){id.second, id.first}, wanted);
    if ((i + 1) * HMQ_MARK_BYTES <= c->marks.len &&
        memcmp(c->marks.data + i * HMQ_MARK_BYTES, wanted, sizeof wanted) != 0)
        differ(c, "mark %" PRIu64 " is not that of message %" PRIu64, i, id.first);
}

static void take_message(check *c, server_stream_id id, const server_string *value) {
    hmq_topic_place where;
    list_name name;
    hmq_index_place at;
    size_t len = read_topic(c, id.first, value);
    if (len == 0) return;
    if (id.first < c->epoch.first || id.first >= c->end) {
        differ(c, "the log of pattern %" PRIu64 " has %" PRIu64 ", a number of another epoch", c->place->pattern,
               id.first);
        return;
    }
    hmq_patterns_find(c->set, c->topic, len, &where);
    if (where.pattern != c->place->pattern) {
        differ(c, "message %" PRIu64 " is in the log of pattern %" PRIu64 ", and belongs to %" PRIu32, id.first,
               c->place->pattern, where.pattern);
        return;
    }
    compare_mark(c, id);
    if (id.first > c->place->indexed) return; /* it is in the tail */
    for (unsigned slot = 0; list_of(c, &where, slot, c->place->before, &name, &at); slot++)
        expect_posting(c, name, at, number_of(c, id.first));
}

/* The first field's value of the iterator's entry; the caller frees it. */
static server_string *take_value(server_key *log) {
    server_string *field, *one, *value = NULL;
    for (long i = 0; sv.StreamIteratorNextField(log, &field, &one) == SERVER_OK; i++) {
        sv.FreeString(NULL, field);
        if (i > 0) sv.FreeString(NULL, one);
        if (i == 0) value = one;
    }
    return value;
}

/* Continues in the log.  True at its end; messages that arrived after the check began are ignored. */
static bool read_log(check *c) {
    server_stream_id first = {c->place->next, 0}, last = {UINT64_MAX, UINT64_MAX}, id;
    long fields;
    bool more = true;
    if (c->log == NULL || sv.StreamIteratorStart(c->log, 0, &first, &last) != SERVER_OK) return true;
    while (c->left > 0) {
        more = sv.StreamIteratorNextID(c->log, &id, &fields) == SERVER_OK;
        if (!more) break;
        server_string *value = take_value(c->log);
        bool since = id.first > c->place->last && id.first < c->end;
        if (!since) take_message(c, id, value);
        if (value != NULL) sv.FreeString(NULL, value);
        if (since) continue;
        c->place->next = id.first + 1;
        c->place->before++;
        c->place->messages++;
        c->left--;
    }
    sv.StreamIteratorStop(c->log);
    return !more;
}

static void compare_expected(check *c, list_name name, const expected *e) {
    server_string *key_name = key_of(c, name);
    server_key *key;
    hmq_slice list;
    size_t end = 0, same = 0;
    uint64_t last;
    unsigned bits = hmq_index_place_of(0, c->shape->bits[name.slot], name.page).fragment_bits;
    if (!history_open_string(c->ctx, key_name, SERVER_READ, &key, &list)) {
        differ(c, "%s is not a string", shown(key_name));
    } else if (hmq_postings_place(list.data, list.len, bits, e->last + 1, &end, &last) == HMQ_POSTINGS_CORRUPT) {
        differ(c, "%s is not a posting list", shown(key_name));
    } else {
        size_t len = end < e->offset ? 0 : end - e->offset;
        while (same < len && same < e->len && list.data[e->offset + same] == e->bytes[same]) same++;
        if (same < len || same < e->len)
            differ(c, "%s has %zu bytes of messages %" PRIu64 " to %" PRIu64 "; expected %zu; the first %zu are right",
                   shown(key_name), len, c->from, c->place->next - 1, e->len, same);
    }
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
}

static void compare_all_expected(check *c) {
    server_dict_iter *iter = sv.DictIteratorStartC(c->lists, "^", NULL, 0);
    const void *name;
    size_t len;
    void *list;
    while ((name = sv.DictNextC(iter, &len, &list)) != NULL) {
        list_name at;
        memcpy(&at, name, sizeof at);
        compare_expected(c, at, list);
        sv.Free(((expected *)list)->bytes);
        sv.Free(list);
    }
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, c->lists);
}

/* True at the end of the log. */
static bool check_log(check *c) {
    c->lists = sv.CreateDict(NULL);
    c->from = c->place->next < c->epoch.first ? c->epoch.first : c->place->next;
    bool end = read_log(c);
    compare_all_expected(c);
    return end;
}

/* ---- lists ------------------------------------------------------------------------------------------------- */

/* Is the message in this log?  The number of messages before it is unknown, but the entry's page bounds it. */
static bool is_in_log(check *c, list_name name, uint64_t number, uint32_t fragment) {
    server_stream_id first = {c->epoch.first + number - 1, 0}, last = {first.first, UINT64_MAX}, id;
    hmq_topic_place where;
    long fields;
    bool right = false;
    if (c->log == NULL || sv.StreamIteratorStart(c->log, 0, &first, &last) != SERVER_OK) return false;
    if (sv.StreamIteratorNextID(c->log, &id, &fields) == SERVER_OK) {
        server_string *value = take_value(c->log);
        size_t len = read_topic(c, id.first, value);
        if (value != NULL) sv.FreeString(NULL, value);
        if (len > 0) hmq_patterns_find(c->set, c->topic, len, &where);
        if (len > 0 && name.slot < where.slots) {
            uint32_t hash = hmq_index_hash(&c->state->store->seed, where.levels[name.slot], c->shape->bits[name.slot]);
            hmq_index_place at = hmq_index_place_of(hash, c->shape->bits[name.slot], name.page);
            right = at.group == name.group && at.fragment == fragment;
        }
    }
    sv.StreamIteratorStop(c->log);
    return right;
}

/* Continues in one list.  True at its end; entries that arrived after the check began are ignored. */
static bool read_list(check *c, list_name name) {
    server_string *key_name = key_of(c, name);
    unsigned bits = hmq_index_place_of(0, c->shape->bits[name.slot], name.page).fragment_bits;
    server_key *key;
    hmq_slice list;
    hmq_postings p;
    hmq_postings_result result = HMQ_POSTINGS_END;
    if (!history_open_string(c->ctx, key_name, SERVER_READ, &key, &list)) {
        differ(c, "%s is not a string", shown(key_name));
    } else if (list.len > 0 && hmq_postings_open(&p, list.data, list.len, bits, 0)) {
        uint64_t from = c->place->next < c->epoch.first ? 0 : number_of(c, c->place->next);
        while ((result = hmq_postings_step(&p, from)) == HMQ_POSTINGS_FOUND && c->left > 0) {
            uint64_t sequence = c->epoch.first + p.number - 1;
            bool since = sequence > c->place->indexed && sequence < c->end;
            if (!since && !is_in_log(c, name, p.number, p.fragment))
                differ(c, "%s has %" PRIu64 ", which does not belong there", shown(key_name), sequence);
            c->place->next = sequence + 1;
            c->left--;
        }
        if (result == HMQ_POSTINGS_CORRUPT)
            differ(c, "%s is not a posting list from %" PRIu64 " on", shown(key_name), c->place->next);
    }
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
    return result != HMQ_POSTINGS_FOUND;
}

/* The list with this number of a slot; false if no page has it. */
static bool list_at(const check *c, unsigned slot, uint64_t number, list_name *name) {
    unsigned pages = hmq_index_page(c->log == NULL ? 0 : sv.ValueLength(c->log)) + 1;
    for (unsigned page = 0; page < pages; page++) {
        uint64_t groups = UINT64_C(1) << hmq_index_place_of(0, c->shape->bits[slot], page).group_bits;
        *name = (list_name){slot, page, (uint32_t)number};
        if (number < groups) return true;
        number -= groups;
    }
    return false;
}

/* True at the end of the last list of the slot. */
static bool check_lists(check *c) {
    list_name name;
    while (list_at(c, (unsigned)c->place->part - 1, c->place->list, &name)) {
        if (c->left == 0 || !read_list(c, name)) return false;
        c->left -= c->left > 0;
        c->place->list++;
        c->place->next = 0;
    }
    return true;
}

/* ---- the epoch --------------------------------------------------------------------------------------------- */

/* The number of marks that the epoch must have. */
static uint64_t marks_due(const check *c) {
    uint64_t last = c->end - 1 < c->state->indexed.sequence ? c->end - 1 : c->state->indexed.sequence;
    return last < c->epoch.first ? 0 : (last - c->epoch.first) / HMQ_MARKS_EVERY + 1;
}

static void compare_counts(check *c) {
    uint64_t last = c->place->last < c->end - 1 ? c->place->last : c->end - 1;
    uint64_t wanted = last < c->epoch.first ? 0 : last - c->epoch.first + 1;
    if (c->marks.len % HMQ_MARK_BYTES != 0 || c->marks.len / HMQ_MARK_BYTES != marks_due(c))
        differ(c, "the epoch has %zu bytes of marks; expected %" PRIu64 " marks", c->marks.len, marks_due(c));
    if (c->place->messages != wanted)
        differ(c, "the logs have %" PRIu64 " messages; expected %" PRIu64, c->place->messages, wanted);
}

static void open_log(check *c) {
    server_string *name =
        history_key(c->state->store, c->state->shard, "_%" PRIu64 "_%" PRIu64, c->place->epoch, c->place->pattern);
    c->log = sv.OpenKey(c->ctx, name, SERVER_READ);
    sv.FreeString(NULL, name);
    if (c->log == NULL || sv.KeyType(c->log) == SERVER_STREAM) return;
    if (c->place->part == 0) differ(c, "the log of pattern %" PRIu64 " is not a stream", c->place->pattern);
    sv.CloseKey(c->log);
    c->log = NULL;
}

/* Checks the current pattern: its log, then the lists of each slot.  True at its end. */
static bool check_pattern(check *c) {
    history_check_place *at = c->place;
    bool end = true;
    c->shape = hmq_patterns_at(c->set, (uint32_t)at->pattern);
    open_log(c);
    for (; end && at->part <= c->shape->slots; at->part += end) {
        end = at->part == 0 ? check_log(c) : check_lists(c);
        if (end) at->next = at->list = at->before = 0;
    }
    if (c->log != NULL) sv.CloseKey(c->log);
    return end;
}

static void check_patterns(check *c) {
    history_check_place *at = c->place;
    for (; at->pattern < hmq_patterns_count(c->set); at->pattern++, at->part = 0) {
        if (c->left == 0 || !check_pattern(c)) return;
        c->left -= c->left > 0;
    }
    compare_counts(c);
    at->epoch = 0;
}

/* Finds the epoch of the place, and its end. */
static bool find_epoch(check *c) {
    history_epoch after;
    const history_shard *state = c->state;
    uint64_t epoch = c->place->epoch;
    if (epoch < state->oldest || epoch > state->epoch) return false;
    if (!history_epoch_read(c->ctx, state, (uint32_t)epoch, &c->epoch)) return false;
    c->end = state->last.sequence + 1;
    if (epoch < state->epoch && !history_epoch_read(c->ctx, state, (uint32_t)epoch + 1, &after)) return false;
    if (epoch < state->epoch) c->end = after.first;
    return c->end >= c->epoch.first;
}

history_check_place history_check_begin(const history_shard *state, uint32_t epoch) {
    return (history_check_place){.epoch = epoch, .last = state->last.sequence, .indexed = state->indexed.sequence};
}

bool history_check_continue(server_ctx *ctx, const history_shard *state, history_check_place *place, uint64_t count,
                            history_report report, void *context) {
    check c = {.ctx = ctx, .state = state, .place = place, .left = count, .report = report, .context = context};
    if (!find_epoch(&c)) return false;
    history_set *set = history_set_hold(ctx, state->store, state->shard, c.epoch.generation);
    if (set == NULL) return false;
    c.set = set->patterns;
    server_string *name = history_key(state->store, state->shard, "_%" PRIu64 "_marks", place->epoch);
    server_key *marks;
    history_open_string(ctx, name, SERVER_READ, &marks, &c.marks);
    c.topic = sv.Alloc(HMQ_TOPIC_MAX_BYTES);
    check_patterns(&c);
    sv.Free(c.topic);
    if (marks != NULL) sv.CloseKey(marks);
    sv.FreeString(NULL, name);
    history_set_release(set);
    return true;
}
