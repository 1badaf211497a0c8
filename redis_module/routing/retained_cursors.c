/* retained_cursors.c - how far the retained messages of a subscription were handed over to its session. */
#include "routing/retained_cursors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "topic/session_key.h"
#include "topic/topic.h"
#include "topic/trie.h"
#include "server/keyspace.h"
#include "server/memory.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/seeded_trie.h"
#include "server/session_keys.h"
#include "server/timers.h"
#include "server/turns.h"
#include "index/filters.h"
#include "index/retained_topics.h"
#include "index/session_hash.h"
#include "index/sessions.h"
#include "routing/delivery.h"
#include "routing/delivery_parts.h"
#include "routing/fan_out_pending.h"
#include "routing/qos0.h"
#include "routing/retained.h"

/* One page, and one step of the server. */
#define PAGE_MESSAGES 200
#define PAGE_BYTES ((size_t)256 << 10)
#define PAGE_VISITS 2000
/* The minimum of a page, however slow the machine is. */
#define PAGE_LEAST 100
#define PAGE_LEAST_BYTES ((size_t)32 << 10)
#define PAGE_US 1000U /* acknowledging the page costs about as much */
#define KICKS_US 1000U /* for all pages that are read without a command */

/* From so many cursors on, a publish searches a trie for those that its topic matches, instead of comparing all. */
#define TRIE_FROM 32
/* What one publish may hand over ahead to one session, and the units that it may search for (topic/trie.h). */
#define REACHED_MOST 8
#define REACHED_BYTES ((size_t)1 << 20)
#define REACHED_UNITS 8192

static const char filter_prefix[] = "filter:", topic_prefix[] = "topic:", full_field[] = "full";
#define FILTER_PREFIX_LEN (sizeof filter_prefix - 1)
#define TOPIC_PREFIX_LEN (sizeof topic_prefix - 1)

typedef struct cursor {
    server_string *filter;
    subscription options;
    long long number; /* grows with each cursor of the session */
    long long since_ms;
    server_string *topic; /* handed over up to this topic; NULL: nothing yet */
} cursor;

typedef struct session_cursors {
    server_string *key;
    cursor *list; /* by number; those before `begin` have ended */
    size_t begin, count, room;
    server_dict *numbers; /* filter -> number (as a pointer) */
    hmq_trie *filters; /* filter -> number; NULL: there are few */
    server_dict *ahead; /* topic -> number (as a pointer): handed over for the cursors up to it */
    bool full;
    bool is_kept;     /* it is in the keys: a subscription with one page leaves no trace */
    size_t last_page; /* messages */
    server_string
        *waits_at; /* the first cursor waits before this topic, of which fan-outs are pending; NULL: it does not wait */
} session_cursors;

/* ---- in memory --------------------------------------------------------------------------------------------- */

static session_cursors *find(const index_t *index, hmq_slice session) {
    if (sv.DictSize(index->cursors) == 0) return NULL;
    return sv.DictGetC(index->cursors, session.data, session.len, NULL);
}

static session_cursors *make(index_t *index, hmq_slice session) {
    session_cursors *s = find(index, session);
    if (s != NULL) return s;
    s = sv.Calloc(1, sizeof *s);
    s->key = sv.CreateString(NULL, (const char *)session.data, session.len);
    s->ahead = sv.CreateDict(NULL);
    s->numbers = sv.CreateDict(NULL);
    s->last_page = PAGE_MESSAGES;
    sv.DictSetC(index->cursors, session.data, session.len, s);
    return s;
}

static void end_wait(session_cursors *s) {
    if (s->waits_at != NULL) sv.FreeString(NULL, s->waits_at);
    s->waits_at = NULL;
}

static void cursor_free(cursor *c) {
    sv.FreeString(NULL, c->filter);
    if (c->topic != NULL) sv.FreeString(NULL, c->topic);
}

static cursor *cursor_at(const session_cursors *s, size_t place) {
    return &s->list[s->begin + place];
}

static void cursors_free(session_cursors *s) {
    for (size_t i = 0; i < s->count; i++) cursor_free(cursor_at(s, i));
    sv.Free(s->list);
    if (s->filters != NULL) hmq_trie_free(s->filters);
    sv.FreeDict(NULL, s->numbers);
    sv.FreeDict(NULL, s->ahead);
    end_wait(s);
    sv.FreeString(NULL, s->key);
    sv.Free(s);
}

/* Only a reader that ends with it may have pinned them (invariant 3). */
static void forget(index_t *index, session_cursors *s) {
    hmq_assert(index->pins[INDEX_CURSORS] <= 1);
    hmq_slice key = slice_of(s->key);
    sv.DictDelC(index->cursors, key.data, key.len, NULL);
    cursors_free(s);
}

void retained_cursors_free_all(server_dict *cursors) {
    server_dict_iter *iter = sv.DictIteratorStartC(cursors, "^", NULL, 0);
    void *s;
    while (sv.DictNextC(iter, NULL, &s)) cursors_free(s);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, cursors);
}

static int by_number(const void *a, const void *b) {
    const cursor *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* NULL: there is none.  O(log(cursors)). */
static cursor *cursor_numbered(const session_cursors *s, long long number) {
    const cursor wanted = {.number = number};
    return s->count == 0 ? NULL : bsearch(&wanted, cursor_at(s, 0), s->count, sizeof *s->list, by_number);
}

static cursor *cursor_of(const session_cursors *s, hmq_slice filter) {
    long long number = (long long)(uintptr_t)sv.DictGetC(s->numbers, filter.data, filter.len, NULL);
    cursor *found = number == 0 ? NULL : cursor_numbered(s, number);
    return found != NULL && hmq_slice_equal(slice_of(found->filter), filter) ? found : NULL;
}

static void add_to_trie(session_cursors *s, const cursor *c) {
    hmq_slice filter = slice_of(c->filter);
    hmq_trie_set(s->filters, (const char *)filter.data, filter.len, (uint64_t)c->number, 0);
}

static void make_trie(session_cursors *s) {
    s->filters = seeded_trie_new();
    for (size_t i = 0; i < s->count; i++) add_to_trie(s, cursor_at(s, i));
}

static void take_out_of_trie(session_cursors *s, const cursor *c) {
    hmq_slice filter = slice_of(c->filter);
    hmq_trie_remove(s->filters, (const char *)filter.data, filter.len, (uint64_t)c->number);
    if (s->count > 0) return;
    hmq_trie_free(s->filters);
    s->filters = NULL;
}

/* The number must be greater than those of all others, or all are sorted before the next use. */
static cursor *add(session_cursors *s, hmq_slice filter, long long number) {
    if (s->begin > s->count) { /* more have ended than are left */
        memmove(s->list, cursor_at(s, 0), s->count * sizeof *s->list);
        s->begin = 0;
    }
    s->list = array_reserve(s->list, &s->room, s->begin + s->count, 1, 4, sizeof *s->list);
    cursor *c = cursor_at(s, s->count++);
    *c = (cursor){.filter = sv.CreateString(NULL, (const char *)filter.data, filter.len), .number = number};
    sv.DictReplaceC(s->numbers, filter.data, filter.len, (void *)(uintptr_t)number);
    if (s->filters != NULL)
        add_to_trie(s, c);
    else if (s->count == TRIE_FROM)
        make_trie(s);
    return c;
}

static void take_out(session_cursors *s, cursor *c) {
    size_t place = (size_t)(c - cursor_at(s, 0));
    hmq_assert(place < s->count);
    if (place == 0) end_wait(s);
    hmq_slice filter = slice_of(c->filter);
    sv.DictDelC(s->numbers, filter.data, filter.len, NULL);
    s->count--;
    if (s->filters != NULL) take_out_of_trie(s, c);
    cursor_free(c);
    if (place == 0)
        s->begin++;
    else
        memmove(c, c + 1, (s->count - place) * sizeof *c);
}

static long long newest_number(const session_cursors *s) {
    return s->count == 0 ? 0 : cursor_at(s, s->count - 1)->number;
}

static bool is_ahead(const session_cursors *s, const cursor *c, hmq_slice topic) {
    if (sv.DictSize(s->ahead) == 0) return false;
    return (long long)(uintptr_t)sv.DictGetC(s->ahead, topic.data, topic.len, NULL) >= c->number;
}

static bool has_passed(const cursor *c, hmq_slice topic) {
    static retained_position position;
    if (c->topic == NULL) return false;
    retained_position_set(&position, slice_of(c->topic));
    return !retained_position_is_before(&position, topic);
}

/* ---- the hash ---------------------------------------------------------------------------------------------- */

static server_string *field_of(const char *prefix, size_t len, hmq_slice name) {
    char *text = sv.Alloc(len + name.len);
    memcpy(text, prefix, len);
    if (name.len > 0) memcpy(text + len, name.data, name.len);
    server_string *field = sv.CreateString(NULL, text, len + name.len);
    sv.Free(text);
    return field;
}

static server_string *value_of(const cursor *c) {
    char head[64];
    server_string *options = subscription_text(c->options);
    hmq_slice text = slice_of(options), topic = c->topic == NULL ? (hmq_slice){NULL, 0} : slice_of(c->topic);
    int len =
        snprintf(head, sizeof head, "%.*s %lld %lld ", (int)text.len, (const char *)text.data, c->number, c->since_ms);
    sv.FreeString(NULL, options);
    return field_of(head, (size_t)len, topic);
}

/* Sets a field, or removes it (NULL); replicated. */
static void write_field(server_ctx *ctx, session_cursors *s, server_string *field, server_string *value) {
    server_string *name = session_key_name(slice_of(s->key), HMQ_SUFFIX_CURSORS);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    int type = sv.KeyType(hash);
    if (value != NULL && (type == SERVER_HASH || type == SERVER_EMPTY)) {
        sv.HashSet(hash, SERVER_HASH_NONE, field, value, NULL);
        replicate(ctx, "HSET", "sss", name, field, value);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hset", name);
        session_facts facts = session_facts_read(ctx, slice_of(s->key));
        long long end_ms = facts.exists ? facts.expire_ms : sv.Milliseconds() + settings.session_ttl_s * 1000;
        if (type == SERVER_EMPTY && end_ms != SERVER_NO_EXPIRE) key_set_expiry(ctx, hash, name, end_ms);
    } else if (value == NULL && type == SERVER_HASH) {
        sv.HashSet(hash, SERVER_HASH_NONE, field, SERVER_HASH_DELETE, NULL);
        replicate(ctx, "HDEL", "ss", name, field);
        index_notify(ctx, SERVER_NOTIFY_HASH, "hdel", name);
    }
    sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

static void write_cursor(server_ctx *ctx, session_cursors *s, const cursor *c, bool stands) {
    server_string *field = field_of(filter_prefix, FILTER_PREFIX_LEN, slice_of(c->filter));
    server_string *value = stands ? value_of(c) : NULL;
    write_field(ctx, s, field, value);
    sv.FreeString(NULL, field);
    if (value != NULL) sv.FreeString(NULL, value);
}

/* Writes to the keys what a first page has left. */
static void keep(server_ctx *ctx, index_t *index, session_cursors *s) {
    if (s->count == 0) {
        if (s->is_kept) session_delete_key(ctx, slice_of(s->key), HMQ_SUFFIX_CURSORS);
        forget(index, s);
        return;
    }
    for (size_t i = 0; i < s->count && !s->is_kept; i++) write_cursor(ctx, s, cursor_at(s, i), true);
    s->is_kept = true;
}

/* <options> <number> <since> <topic> */
static bool read_cursor(const server_string *value, cursor *c) {
    hmq_slice text = slice_of(value);
    const uint8_t *space = text.len == 0 ? NULL : memchr(text.data, ' ', text.len);
    if (space == NULL) return false;
    server_string *options = sv.CreateString(NULL, (const char *)text.data, (size_t)(space - text.data));
    bool right = subscription_read(options, &c->options);
    sv.FreeString(NULL, options);
    size_t at = (size_t)(space - text.data) + 1;
    long long *numbers[] = {&c->number, &c->since_ms};
    for (size_t i = 0; right && i < 2; i++) {
        size_t begin = at;
        for (; at < text.len && text.data[at] >= '0' && text.data[at] <= '9'; at++)
            *numbers[i] = *numbers[i] * 10 + (text.data[at] - '0');
        right = at > begin && at - begin <= 15 && at < text.len && text.data[at] == ' ';
        at += right;
    }
    right = right && c->number > 0;
    hmq_slice topic = {text.data + at, right ? text.len - at : 0};
    right = right && (topic.len == 0 || hmq_topic_check_name((const char *)topic.data, topic.len) == HMQ_TOPIC_OK);
    if (right && topic.len > 0) c->topic = sv.CreateString(NULL, (const char *)topic.data, topic.len);
    return right;
}

static void take_field(server_key *key, server_string *field, server_string *value, void *data) {
    (void)key;
    session_cursors *s = data;
    hmq_slice name = slice_of(field);
    cursor c = {0};
    long long number;
    if (value == NULL) return;
    if (name.len > FILTER_PREFIX_LEN && memcmp(name.data, filter_prefix, FILTER_PREFIX_LEN) == 0) {
        hmq_slice filter = {name.data + FILTER_PREFIX_LEN, name.len - FILTER_PREFIX_LEN};
        if (hmq_topic_check_filter((const char *)filter.data, filter.len) != HMQ_TOPIC_OK || !read_cursor(value, &c))
            return;
        cursor *added = add(s, filter, c.number);
        c.filter = added->filter;
        *added = c;
    } else if (name.len > TOPIC_PREFIX_LEN && memcmp(name.data, topic_prefix, TOPIC_PREFIX_LEN) == 0) {
        hmq_slice topic = {name.data + TOPIC_PREFIX_LEN, name.len - TOPIC_PREFIX_LEN};
        if (sv.StringToLongLong(value, &number) == SERVER_OK && number > 0)
            sv.DictReplaceC(s->ahead, topic.data, topic.len, (void *)(uintptr_t)number);
    } else if (slice_is(name, full_field)) {
        s->full = true;
    }
}

void retained_cursors_refresh(server_ctx *ctx, index_t *index, hmq_slice session) {
    server_string *name = session_key_name(session, HMQ_SUFFIX_CURSORS);
    if (index->pins[INDEX_CURSORS] > 0) {
        index_mark_stale(index, slice_of(name));
        sv.FreeString(NULL, name);
        return;
    }
    session_cursors *s = find(index, session);
    if (s != NULL) forget(index, s);
    server_key *hash = sv.OpenKey(ctx, name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    if (sv.KeyType(hash) == SERVER_HASH) {
        s = make(index, session);
        s->is_kept = true;
        server_scan_cursor *scan = sv.ScanCursorCreate();
        while (sv.ScanKey(hash, scan, take_field, s)) {}
        sv.ScanCursorDestroy(scan);
        if (s->count > 1) qsort(cursor_at(s, 0), s->count, sizeof *s->list, by_number);
        if (s->count == 0) forget(index, s);
    }
    if (hash != NULL) sv.CloseKey(hash);
    sv.FreeString(NULL, name);
}

/* ---- handing over ------------------------------------------------------------------------------------------ */

/* Who gets it. */
typedef struct receiver_session {
    server_ctx *ctx;
    indexed_session session; /* key and inbox */
    bool is_opened, is_connected;
    size_t seen, delivered, stored, bytes;
    bool is_full; /* the queue takes no more */
} receiver_session;

static receiver_session begin_receiver(server_ctx *ctx, const session_cursors *s) {
    const session_entry *entry = session_index_find(index_of(ctx)->opened, slice_of(s->key));
    return (receiver_session){
        .ctx = ctx,
        .session = {.key = s->key, .inbox = session_key_name(slice_of(s->key), HMQ_SUFFIX_INBOX)},
        .is_opened = entry != NULL,
        .is_connected = entry != NULL && entry->connected,
    };
}

/* Stores it in the queue, whatever the limit is. */
static bool store(receiver_session *to, queue_item *item) {
    queue q;
    queue_result result;
    hmq_slice key = slice_of(to->session.key);
    bool is_stored = queue_open(&q, to->ctx, key, SERVER_READ | SERVER_WRITE) &&
                     queue_add(&q, item, 1, QUEUE_MAX_LIMIT, &result) == QUEUE_OK && item->packet_id != 0;
    to->is_full = !is_stored && queue_length(&q) > 0; /* an empty queue never has room for this message */
    counters.topic_refused += !is_stored && !to->is_full;
    queue_close(&q);
    return is_stored;
}

static void hand_over_record(receiver_session *to, message *m, const delivery_how *how) {
    queue_item item = {.value = delivery_encoded(m, how), .expire_ms = m->expire_ms};
    if (how->qos == 0 && !to->is_connected) {
        to->delivered += delivery_qos0(to->ctx, &to->session, item.value, true, item.expire_ms);
        return;
    }
    if (!store(to, &item)) return;
    if (how->qos == 0) qos0_note(to->ctx, slice_of(to->session.key), item.serial);
    hmq_delivery delivery = delivery_of(&item, how->qos, true);
    delivery_push(to->ctx, &to->session, item.value, &delivery);
    counters.topic_stored++;
    to->delivered++;
    to->stored++;
    to->bytes += slice_of(item.value).len;
}

/* Did the session's own client publish it? */
static bool is_own(const receiver_session *to, hmq_slice publisher) {
    return session_key_is_of(slice_of(to->session.key), publisher);
}

/* Unless the session has got it. */
static void hand_over_unless(receiver_session *to, const session_cursors *s, const cursor *c,
                             const hmq_record *record) {
    uint8_t most = c->options.options & SUBSCRIPTION_QOS, qos = record->qos < most ? record->qos : most;
    bool no_local = (c->options.options & SUBSCRIPTION_NO_LOCAL) != 0;
    bool came_live = is_ahead(s, c, record->topic) || (s->full && qos > 0 && record->time_ms > c->since_ms);
    if (!came_live && !(no_local && is_own(to, record->publisher))) {
        message m;
        message_begin(&m, record, sv.Milliseconds());
        delivery_how how = {.qos = qos,
                            .retain = true,
                            .identifiers = &c->options.identifier,
                            .identifier_count = c->options.identifier != 0};
        hand_over_record(to, &m, &how);
        message_end(&m);
    }
}

/* The retained message of this key, if it still exists. */
static void hand_over(receiver_session *to, const session_cursors *s, const cursor *c, server_string *key) {
    retained_message kept;
    to->seen++;
    if (!retained_read(to->ctx, key, &kept)) return;
    hand_over_unless(to, s, c, &kept.record);
    retained_read_end(&kept);
}

/* The limits of one step. */
typedef struct allowance {
    size_t messages, visits;
    uint64_t until_us;
} allowance;

static bool is_used_up(const receiver_session *to, const allowance *may) {
    if (to->is_full || to->delivered >= may->messages || to->bytes >= PAGE_BYTES) return true;
    bool had_least = to->seen >= PAGE_LEAST || to->bytes >= PAGE_LEAST_BYTES;
    return had_least && monotonic_us() >= may->until_us;
}

/* Forward only (invariant 1). */
static void move_to(cursor *c, server_string *topic) {
    hmq_assert(!has_passed(c, slice_of(topic)) || hmq_slice_equal(slice_of(c->topic), slice_of(topic)));
    if (c->topic != NULL) sv.FreeString(NULL, c->topic);
    c->topic = topic;
}

/* Would a message of the topic come before one that is pending?  (Those that the cursor skips may be pending.) */
static bool would_overtake_pending(const index_t *index, const session_cursors *s, const cursor *c, hmq_slice topic) {
    return fan_out_is_topic_pending(index, topic) && !is_ahead(s, c, topic);
}

/* The same for the topic of a key that the cursor has reached.  Notes where the cursor waits. */
static bool begins_to_wait(const index_t *index, session_cursors *s, const cursor *c, const server_string *key) {
    char topic[HMQ_TOPIC_MAX_BYTES];
    hmq_slice name = slice_of(key);
    int64_t len = hmq_retained_topic((const char *)name.data, name.len, topic, sizeof topic);
    if (len <= 0 || !would_overtake_pending(index, s, c, (hmq_slice){(const uint8_t *)topic, (size_t)len}))
        return false;
    s->waits_at = sv.CreateString(NULL, topic, (size_t)len);
    return true;
}

static bool still_waits(const index_t *index, session_cursors *s) {
    if (s->waits_at == NULL) return false;
    if (s->count > 0 && would_overtake_pending(index, s, cursor_at(s, 0), slice_of(s->waits_at))) return true;
    end_wait(s);
    return false;
}

/* Continues one cursor.  True: it has reached its end. */
static bool read_on(receiver_session *to, const index_t *index, session_cursors *s, cursor *c, allowance *may) {
    static retained_position position;
    retained_page page = {.room = RETAINED_PAGE, .visits = may->visits};
    char topic[HMQ_TOPIC_MAX_BYTES];
    position.len = 0;
    if (c->topic != NULL) retained_position_set(&position, slice_of(c->topic));
    retained_topics_walk(index->retained, slice_of(c->filter), &position, &page);
    may->visits = page.visits;
    size_t done = 0;
    for (bool has_more = true; has_more && done < page.count; has_more = !is_used_up(to, may)) {
        if (begins_to_wait(index, s, c, page.keys[done])) break;
        hand_over(to, s, c, page.keys[done]);
        done += !to->is_full;
    }
    hmq_slice last = done == 0 ? (hmq_slice){NULL, 0} : slice_of(page.keys[done - 1]);
    int64_t len = last.len == 0 ? 0 : hmq_retained_topic((const char *)last.data, last.len, topic, sizeof topic);
    if (done == page.count && position.len > 0)
        move_to(c, retained_position_topic(&position));
    else if (len > 0)
        move_to(c, sv.CreateString(NULL, topic, (size_t)len));
    for (size_t i = 0; i < page.count; i++) sv.FreeString(NULL, page.keys[i]);
    return page.end && done == page.count;
}

/* ---- pages ------------------------------------------------------------------------------------------------- */

/* Sessions to feed in the next turn; those that wait for fan-outs, and those that have waited.  The keys are the database and
 * the session's key. */
static server_dict *page_requests, *waiting, *woken;

/* How often waiting sessions are looked at: the more there are, the less often. */
#define WAIT_MS 5
#define LOOKED_AT_PER_MS 200

static bool is_empty(server_dict *dict) {
    return dict == NULL || sv.DictSize(dict) == 0;
}

static void note(server_dict **dict, int db, hmq_slice session) {
    uint8_t *name = sv.Alloc(sizeof db + session.len);
    memcpy(name, &db, sizeof db);
    memcpy(name + sizeof db, session.data, session.len);
    if (*dict == NULL) *dict = sv.CreateDict(NULL);
    sv.DictReplaceC(*dict, name, sizeof db + session.len, NULL);
    sv.Free(name);
}

static void forget_all(server_dict **dict) {
    if (*dict != NULL) sv.FreeDict(NULL, *dict);
    *dict = NULL;
}

/* Takes the first one out; the caller frees the session's key. */
static server_string *take_first(server_dict *dict, int *db) {
    size_t len;
    server_dict_iter *iter = sv.DictIteratorStartC(dict, "^", NULL, 0);
    const uint8_t *name = sv.DictNextC(iter, &len, NULL);
    uint8_t *entry = sv.Alloc(len);
    memcpy(entry, name, len);
    sv.DictIteratorStop(iter);
    sv.DictDelC(dict, entry, len, NULL);
    memcpy(db, entry, sizeof *db);
    server_string *session = sv.CreateString(NULL, (const char *)entry + sizeof *db, len - sizeof *db);
    sv.Free(entry);
    return session;
}

static void request_page(server_ctx *ctx, hmq_slice session) {
    note(&page_requests, sv.GetSelectedDb(ctx), session);
    turns_request();
    turns_request_another();
}

static void on_wait_over(server_ctx *ctx, void *data);
static module_timer wait_timer = {.fire = on_wait_over};

static void arm_wait_timer(void) {
    if (wait_timer.armed) return;
    size_t count = waiting == NULL ? 0 : (size_t)sv.DictSize(waiting);
    timers_arm(&wait_timer, WAIT_MS + (long long)(count / LOOKED_AT_PER_MS));
}

static void on_wait_over(server_ctx *ctx, void *data) {
    (void)ctx, (void)data;
    if (is_empty(woken)) {
        forget_all(&woken);
        woken = waiting;
        waiting = NULL;
    }
    if (!is_empty(waiting)) arm_wait_timer();
    turns_request();
}

static void request_page_after_wait(server_ctx *ctx, hmq_slice session) {
    note(&waiting, sv.GetSelectedDb(ctx), session);
    arm_wait_timer();
}

static bool is_nearly_empty(server_ctx *ctx, const session_cursors *s) {
    queue q;
    size_t few = s->last_page / 4 > 1 ? s->last_page / 4 : 1;
    bool is_short = queue_open(&q, ctx, slice_of(s->key), SERVER_READ) && queue_length(&q) <= few;
    queue_close(&q);
    return is_short;
}

static size_t page_messages(void) {
    size_t limit = (size_t)settings.session_limit / 4;
    return limit < 1 ? 1 : limit < PAGE_MESSAGES ? limit : PAGE_MESSAGES;
}

static void feed(server_ctx *ctx, index_t *index, session_cursors *s, receiver_session *to) {
    allowance may = {page_messages(), PAGE_VISITS, monotonic_us() + PAGE_US};
    while (s->count > 0 && s->waits_at == NULL && may.visits > 0 && !is_used_up(to, &may)) {
        cursor *c = cursor_at(s, 0);
        const server_string *was = c->topic;
        bool is_over = read_on(to, index, s, c, &may);
        if (s->is_kept && (is_over || c->topic != was)) write_cursor(ctx, s, c, !is_over);
        if (is_over) take_out(s, c);
    }
    s->last_page = to->delivered;
}

void retained_cursors_feed(server_ctx *ctx, hmq_slice session) {
    index_t *index = index_of(ctx);
    session_cursors *s = find(index, session);
    if (s == NULL || can.cluster) return;
    if (still_waits(index, s)) {
        request_page_after_wait(ctx, session);
        return;
    }
    index_pin(index, INDEX_CURSORS);
    receiver_session to = begin_receiver(ctx, s);
    if ((!to.is_opened || to.is_connected) && is_nearly_empty(ctx, s)) {
        feed(ctx, index, s, &to);
        if (s->waits_at != NULL)
            request_page_after_wait(ctx, session);
        else if (s->count > 0 && to.stored == 0 && !to.is_full)
            request_page(ctx, session); /* nobody will acknowledge anything */
    }
    sv.FreeString(NULL, to.session.inbox);
    if (s->count == 0 || !s->is_kept) keep(ctx, index, s);
    index_unpin(index, INDEX_CURSORS);
}

void retained_cursors_feed_soon(server_ctx *ctx, hmq_slice session) {
    if (!can.cluster && find(index_of(ctx), session) != NULL) request_page(ctx, session);
}

bool retained_cursors_any_due(void) {
    return !is_empty(page_requests) || !is_empty(woken);
}

static void feed_next(void) {
    int db;
    server_string *session = take_first(is_empty(page_requests) ? woken : page_requests, &db);
    sv.SelectDb(detached, db);
    retained_cursors_feed(detached, slice_of(session));
    sv.FreeString(NULL, session);
}

/* May this server write?  If not, its clients return to the server that may, or to this one later. */
static bool may_write(void) {
    int flags = sv.GetContextFlags(detached);
    return (flags & SERVER_CTX_MASTER) && !(flags & (SERVER_CTX_READONLY | SERVER_CTX_LOADING));
}

void retained_cursors_before_sleep(void) {
    if (!retained_cursors_any_due()) return;
    if (!may_write()) {
        forget_all(&page_requests);
        forget_all(&woken);
        forget_all(&waiting);
        return;
    }
    if (sv.AvoidReplicaTraffic()) return;
    uint64_t until_us = monotonic_us() + KICKS_US;
    while (retained_cursors_any_due()) {
        feed_next();
        if (monotonic_us() >= until_us) break;
    }
    sv.SelectDb(detached, 0);
    if (retained_cursors_any_due()) turns_request_another();
}

/* ---- subscriptions ----------------------------------------------------------------------------------------- */

void retained_cursors_begin(server_ctx *ctx, hmq_slice session, hmq_slice filter, subscription options) {
    index_t *index = index_of(ctx);
    if (can.cluster || sv.DictSize(index->retained) == 0) return;
    session_cursors *s = make(index, session);
    long long number = newest_number(s) + 1;
    cursor *c = cursor_of(s, filter);
    if (c != NULL) take_out(s, c);
    c = add(s, filter, number);
    c->options = options;
    c->options.kind = SUBSCRIPTION_LIVE;
    c->since_ms = sv.Milliseconds();
    if (s->is_kept) write_cursor(ctx, s, c, true);
}

void retained_cursors_end(server_ctx *ctx, hmq_slice session, hmq_slice filter) {
    index_t *index = index_of(ctx);
    session_cursors *s = find(index, session);
    cursor *c = s == NULL ? NULL : cursor_of(s, filter);
    if (c == NULL) return;
    write_cursor(ctx, s, c, false);
    take_out(s, c);
    keep(ctx, index, s);
}

void retained_cursors_drop(server_ctx *ctx, hmq_slice session) {
    index_t *index = index_of(ctx);
    session_cursors *s = find(index, session);
    session_delete_key(ctx, session, HMQ_SUFFIX_CURSORS);
    if (s != NULL) forget(index, s);
}

/* ---- what is published meanwhile --------------------------------------------------------------------------- */

/* May the topic be noted?  If not, nothing is handed over ahead: each later message of the topic would hand it over again.
 * Topics at which a cursor waits have their own places; otherwise it might wait forever. */
static bool can_note(const session_cursors *s, hmq_slice topic) {
    bool is_waited_for = s->waits_at != NULL && hmq_slice_equal(slice_of(s->waits_at), topic);
    size_t most = is_waited_for ? 2 * RETAINED_AHEAD_MAX : RETAINED_AHEAD_MAX;
    return sv.DictSize(s->ahead) < most || sv.DictGetC(s->ahead, topic.data, topic.len, NULL) != NULL;
}

static void note_full(server_ctx *ctx, session_cursors *s) {
    s->full = true;
    server_string *field = sv.CreateString(NULL, full_field, sizeof full_field - 1);
    server_string *value = sv.CreateStringFromLongLong(NULL, 1);
    write_field(ctx, s, field, value);
    sv.FreeString(NULL, field);
    sv.FreeString(NULL, value);
}

static void note_ahead(server_ctx *ctx, session_cursors *s, hmq_slice topic) {
    long long number = newest_number(s);
    sv.DictReplaceC(s->ahead, topic.data, topic.len, (void *)(uintptr_t)number);
    server_string *field = field_of(topic_prefix, TOPIC_PREFIX_LEN, topic);
    server_string *value = sv.CreateStringFromLongLong(NULL, number);
    write_field(ctx, s, field, value);
    sv.FreeString(NULL, field);
    sv.FreeString(NULL, value);
}

/* Has the cursor not reached the topic yet? */
static bool is_not_reached(const session_cursors *s, const cursor *c, hmq_slice topic) {
    hmq_slice filter = slice_of(c->filter);
    return hmq_topic_matches((const char *)filter.data, filter.len, (const char *)topic.data, topic.len) &&
           !is_ahead(s, c, topic) && !has_passed(c, topic);
}

/* The cursors that have not reached the topic of a publish. */
typedef struct reached {
    const session_cursors *s;
    hmq_slice topic;
    long long until_ms; /* of subscriptions up to this time */
    const cursor *list[REACHED_MOST];
    size_t count; /* there may be more than the list has room for */
} reached;

static void consider(reached *r, const cursor *c) {
    if (c == NULL || c->since_ms > r->until_ms || !is_not_reached(r->s, c, r->topic)) return;
    if (r->count < REACHED_MOST) r->list[r->count] = c;
    r->count++;
}

static bool consider_number(void *context, uint64_t number, uint32_t options) {
    (void)options;
    reached *r = context;
    consider(r, cursor_numbered(r->s, (long long)number));
    return true;
}

static int by_place(const void *a, const void *b) {
    const cursor *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

/* In the order of the subscriptions, if the list has room for all. */
static void find_reached(reached *r) {
    const session_cursors *s = r->s;
    if (s->filters == NULL) {
        for (size_t i = 0; i < s->count; i++) consider(r, cursor_at(s, i));
        return;
    }
    size_t units = REACHED_UNITS;
    hmq_trie_place place = {.depth = 0};
    const char *topic = (const char *)r->topic.data;
    if (!hmq_trie_match_some(s->filters, topic, r->topic.len, &place, &units, consider_number, r))
        r->count += REACHED_MOST; /* as if there were too many */
    if (r->count > 1 && r->count <= REACHED_MOST) qsort(r->list, r->count, sizeof(const cursor *), by_place);
}

/* May all copies be handed over in the step of the publish? */
static bool is_short(const reached *r, const hmq_record *older) {
    return r->count <= REACHED_MOST && (r->count <= 1 || hmq_record_size(older) <= REACHED_BYTES / r->count);
}

static void hand_over_ahead(receiver_session *to, const reached *r, const hmq_record *older) {
    for (size_t i = 0; i < r->count; i++) hand_over_unless(to, r->s, r->list[i], older);
}

/* Hands over the older message, if there is one (NULL: none), before this publish. */
static void reach_with(server_ctx *ctx, session_cursors *s, receiver_session *to, const reached *r,
                       const hmq_record *record, const hmq_record *older) {
    bool will_retain = record->retain && record->payload.len > 0;
    if (older == NULL && !will_retain) return; /* the cursors will find nothing either */
    bool is_noted = can_note(s, record->topic) && (older == NULL || is_short(r, older));
    if (is_noted && older != NULL) hand_over_ahead(to, r, older);
    if (is_noted) note_ahead(ctx, s, record->topic);
    if (!is_noted && will_retain && !s->full) note_full(ctx, s);
}

/* Hands over the message of the key, or `older`, before this publish to the cursors of subscriptions up to a time. */
static void reach(server_ctx *ctx, index_t *index, session_cursors *s, const hmq_record *record, uint8_t qos,
                  long long until_ms, server_string *key, const hmq_record *older) {
    bool will_retain = record->retain && record->payload.len > 0;
    if (key == NULL && older == NULL && !will_retain) return;
    retained_message kept;
    reached r = {.s = s, .topic = record->topic, .until_ms = until_ms};
    index_pin(index, INDEX_CURSORS);
    receiver_session to = begin_receiver(ctx, s);
    if (qos > 0 || !to.is_opened || to.is_connected) find_reached(&r);
    bool is_kept = r.count > 0 && key != NULL && retained_read(ctx, key, &kept);
    if (r.count > 0) reach_with(ctx, s, &to, &r, record, is_kept ? &kept.record : older);
    if (is_kept) retained_read_end(&kept);
    sv.FreeString(NULL, to.session.inbox);
    index_unpin(index, INDEX_CURSORS);
}

bool retained_cursors_has_any(const index_t *index, hmq_slice session) {
    return find(index, session) != NULL;
}

void retained_cursors_before_delivery(server_ctx *ctx, index_t *index, const indexed_session *session,
                                      const hmq_record *record, uint8_t qos) {
    session_cursors *s = find(index, slice_of(session->key));
    if (s == NULL) return;
    server_string *key = retained_topics_find(index->retained, record->topic);
    key = key == NULL ? NULL : sv.HoldString(NULL, key);
    reach(ctx, index, s, record, qos, INT64_MAX, key, NULL);
    if (key != NULL) sv.FreeString(NULL, key);
}

void retained_cursors_before_late_delivery(server_ctx *ctx, index_t *index, const indexed_session *session,
                                           const hmq_record *record, uint8_t qos, const hmq_record *older) {
    session_cursors *s = find(index, slice_of(session->key));
    if (s == NULL) return;
    bool has_expired = older->expires_ms > 0 && older->expires_ms <= sv.Milliseconds();
    bool is_any = older->topic.len > 0 && !has_expired;
    reach(ctx, index, s, record, qos, record->time_ms, NULL, is_any ? older : NULL);
}

/* ---- comparing --------------------------------------------------------------------------------------------- */

static bool same_cursor(const cursor *a, const cursor *b) {
    server_string *x = value_of(a), *y = value_of(b);
    bool same = hmq_slice_equal(slice_of(x), slice_of(y));
    sv.FreeString(NULL, x);
    sv.FreeString(NULL, y);
    return same;
}

static bool same_cursors(const session_cursors *a, const session_cursors *b) {
    bool same = a->count == b->count && a->full == b->full && sv.DictSize(a->ahead) == sv.DictSize(b->ahead);
    for (size_t i = 0; same && i < a->count; i++) {
        const cursor *other = cursor_of(b, slice_of(cursor_at(a, i)->filter));
        same = other != NULL && same_cursor(cursor_at(a, i), other);
    }
    return same;
}

void retained_cursors_compare(server_dict *a, server_dict *b,
                              void (*differ)(void *context, const char *what, hmq_slice name), void *context) {
    server_dict_iter *iter = sv.DictIteratorStartC(a, "^", NULL, 0);
    size_t len;
    const char *name;
    void *value;
    while ((name = sv.DictNextC(iter, &len, &value)) != NULL) {
        const session_cursors *other = sv.DictGetC(b, name, len, NULL);
        if (other == NULL || !same_cursors(value, other))
            differ(context, "cursors of retained messages in the index but not in the keys, or different",
                   (hmq_slice){(const uint8_t *)name, len});
    }
    sv.DictIteratorStop(iter);
}

/* ---- the kind ---------------------------------------------------------------------------------------------- */

static size_t cursors_of(hmq_slice name) {
    return hmq_session_key_of((const char *)name.data, name.len, HMQ_SUFFIX_CURSORS);
}

static bool is_key(hmq_slice name) {
    return cursors_of(name) > 0;
}

static void refresh_key(server_ctx *ctx, index_t *index, hmq_slice name) {
    retained_cursors_refresh(ctx, index, (hmq_slice){name.data, cursors_of(name)});
}

static void make_part(index_t *index) {
    index->cursors = sv.CreateDict(NULL);
}

static void release_part(index_t *index) {
    retained_cursors_free_all(index->cursors);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    retained_cursors_compare(kept->cursors, rebuilt->cursors, differ, context);
    retained_cursors_compare(rebuilt->cursors, kept->cursors, differ, context);
}

const index_kind retained_cursors_kind = {
    .make = make_part,
    .release = release_part,
    .is_key = is_key,
    .refresh = refresh_key,
    .check = check,
};
