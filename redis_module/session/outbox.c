/* outbox.c - wills, presence messages and ends of members until a bridge has done what they say. */
#include "session/outbox.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "topic/slot.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/keys.h"
#include "server/keyspace.h"
#include "server/numbers.h"
#include "server/replication.h"
#include "server/slots.h"
#include "cluster/life.h"

#define SUFFIX "}_outbox"
#define KEY_BYTES 40
#define HEAD_BYTES 48 /* number, total, two spaces */
#define NUMBER_MAX ((1LL << 53) - 1)
#define READ_MOST 1000
#define READ_DEFAULT 100
#define READ_BYTES ((size_t)256 << 10)
#define READ_SLOT_MOST 16 /* of one slot, if the messages of all are read: a slot must not hide others */
#define ACK_MOST 1000     /* removed in one command */
#define LOG_S 60
#define READER_US (3600ULL * 1000 * 1000)

static uint64_t expected_at_us; /* when a reader was last expected, by the monotonic clock; 0: never */

/* Which slots have a list. */
struct outboxes {
    hmq_slot_set slots;
};

/* ---- keys --------------------------------------------------------------------------------------------------- */

static server_string *key_of(unsigned slot) {
    char name[KEY_BYTES];
    size_t len = (size_t)snprintf(name, sizeof name, "{%u" SUFFIX, hmq_slot_tag(slot));
    return sv.CreateString(NULL, name, len);
}

static bool is_key(hmq_slice name) {
    const size_t n = sizeof SUFFIX - 1;
    if (!can.cluster || name.len < n + 2 || name.len >= KEY_BYTES || name.data[0] != '{') return false;
    if (memcmp(name.data + name.len - n, SUFFIX, n) != 0) return false;
    char expected[KEY_BYTES];
    size_t len = (size_t)snprintf(expected, sizeof expected, "{%u" SUFFIX, hmq_slot_tag(slots_of_key(name)));
    return len == name.len && memcmp(expected, name.data, len) == 0;
}

/* An element of a list. */
typedef struct element {
    uint64_t number, total;
    hmq_slice record;
} element;

/* Reads digits up to a space; false for anything else. */
static bool take_number(hmq_slice *text, uint64_t *number) {
    size_t digits = 0;
    *number = 0;
    while (digits < text->len && digits < 19 && text->data[digits] >= '0' && text->data[digits] <= '9')
        *number = *number * 10 + (uint64_t)(text->data[digits++] - '0');
    if (digits == 0 || digits == text->len || text->data[digits] != ' ') return false;
    *text = (hmq_slice){text->data + digits + 1, text->len - digits - 1};
    return true;
}

static bool read_element(const server_string *text, element *e) {
    if (text == NULL) return false;
    e->record = slice_of(text);
    return take_number(&e->record, &e->number) && take_number(&e->record, &e->total);
}

/* ---- as a part of the index --------------------------------------------------------------------------------- */

static void make(index_t *index) {
    if (can.cluster) index->outboxes = sv.Calloc(1, sizeof *index->outboxes);
}

static void release(index_t *index) {
    sv.Free(index->outboxes);
}

static void set_slot(index_t *index, unsigned slot, bool has_list) {
    uint64_t bit = UINT64_C(1) << (slot % 64), *word = &index->outboxes->slots.words[slot / 64];
    *word = has_list ? *word | bit : *word & ~bit;
}

static void refresh(server_ctx *ctx, index_t *index, hmq_slice name) {
    set_slot(index, slots_of_key(name), index_type_of(ctx, name) == SERVER_LIST);
}

/* Also on a replica and while a file is loaded. */
static void used(server_ctx *ctx, index_t *index, hmq_slice name, index_use use) {
    (void)ctx;
    if (use == INDEX_NAME_LIST && is_key(name)) set_slot(index, slots_of_key(name), true);
}

static void look(server_ctx *ctx, index_t *index) {
    (void)ctx;
    for (unsigned slot = 0; index->outboxes != NULL && slot < HMQ_SLOTS; slot++) {
        if (!hmq_slot_set_has(&index->outboxes->slots, slot)) continue;
        server_string *name = key_of(slot);
        index_mark_stale(index, slice_of(name));
        sv.FreeString(NULL, name);
    }
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    for (unsigned slot = 0; kept->outboxes != NULL && slot < HMQ_SLOTS; slot++) {
        if (hmq_slot_set_has(&kept->outboxes->slots, slot) == hmq_slot_set_has(&rebuilt->outboxes->slots, slot))
            continue;
        server_string *name = key_of(slot);
        differ(context, "outbox in the index but not in the keys, or not in the index", slice_of(name));
        sv.FreeString(NULL, name);
    }
}

const index_kind outboxes_kind = {
    .make = make, .release = release, .is_key = is_key, .refresh = refresh, .used = used, .look = look, .check = check};

/* ---- writing ------------------------------------------------------------------------------------------------ */

static uint64_t next_number(uint64_t before) {
    static uint64_t last; /* of this process: a list may have been emptied */
    uint64_t now_us = clock_us();
    if (last < before) last = before;
    last = now_us > last ? now_us : last + 1;
    return last;
}

/* The bytes of the records in the list, and the number of the last one.  False: it is no list of this kind. */
static bool measure(server_key *list, uint64_t *bytes, element *last) {
    *bytes = 0;
    *last = (element){0};
    if (sv.KeyType(list) == SERVER_EMPTY) return true;
    if (sv.KeyType(list) != SERVER_LIST) return false;
    element first;
    server_string *head = sv.ListGet(list, 0), *tail = sv.ListGet(list, -1);
    bool is_right =
        read_element(head, &first) && read_element(tail, last) && last->total + first.record.len >= first.total;
    if (is_right) *bytes = last->total + first.record.len - first.total;
    if (head != NULL) sv.FreeString(NULL, head);
    if (tail != NULL) sv.FreeString(NULL, tail);
    last->record = (hmq_slice){0};
    return is_right;
}

static server_string *element_of(hmq_slice body, uint64_t number, uint64_t total) {
    char *text = sv.Alloc(HEAD_BYTES + body.len);
    int head = snprintf(text, HEAD_BYTES, "%llu %llu ", (unsigned long long)number, (unsigned long long)total);
    memcpy(text + head, body.data, body.len);
    server_string *made = sv.CreateString(NULL, text, (size_t)head + body.len);
    sv.Free(text);
    return made;
}

/* `what` happens to that which has no room. */
static void log_refusal(server_ctx *ctx, unsigned slot, size_t size, uint64_t bytes, const char *what) {
    static long long last_ms;
    long long now_ms = sv.Milliseconds();
    if (last_ms != 0 && now_ms >= last_ms && now_ms < last_ms + LOG_S * 1000LL) return;
    last_ms = now_ms;
    sv.Log(
        ctx, "warning",
        "the outbox of slot %u has %llu bytes, and no room for %zu more (holdmq.outbox-bytes is %lld): %s; logged at "
        "most once in %d s",
        slot, (unsigned long long)bytes, size, settings.outbox_bytes, what, LOG_S);
}

void outbox_expect_reader(void) {
    expected_at_us = monotonic_us();
}

static bool has_reader(void) {
    return expected_at_us != 0 && monotonic_us() - expected_at_us < READER_US;
}

/* May the slot's outbox be written? */
static bool is_usable(unsigned slot) {
    return can.cluster && settings.outbox_bytes > 0 && has_reader() && slots_state(slot) == SLOT_SERVED;
}

static bool put(server_ctx *ctx, unsigned slot, hmq_slice body, const char *refused) {
    uint64_t bytes;
    element last;
    index_t *index = index_of(ctx);
    server_string *name = key_of(slot);
    server_key *list = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    bool fits = measure(list, &bytes, &last) && bytes + body.len <= (uint64_t)settings.outbox_bytes &&
                last.number < (uint64_t)NUMBER_MAX;
    if (fits) {
        server_string *text = element_of(body, next_number(last.number), last.total + body.len);
        sv.ListPush(list, SERVER_LIST_TAIL, text);
        replicate(ctx, "RPUSH", "ss", name, text);
        set_slot(index, slot, true);
        index_notify(ctx, SERVER_NOTIFY_LIST, "rpush", name);
        sv.FreeString(NULL, text);
    } else {
        log_refusal(ctx, slot, body.len, bytes, refused);
    }
    sv.CloseKey(list);
    sv.FreeString(NULL, name);
    return fits;
}

bool outbox_put(server_ctx *ctx, hmq_slice session, const hmq_record *record) {
    unsigned slot = slots_of_key(session);
    size_t size = hmq_record_size(record);
    if (size == 0 || !is_usable(slot)) return false;
    uint8_t *bytes = sv.Alloc(size);
    hmq_record_encode(record, bytes, size);
    bool is_put =
        put(ctx, slot, (hmq_slice){bytes, size}, "this will or presence message reaches sessions of this node only");
    sv.Free(bytes);
    return is_put;
}

void outbox_put_end(server_ctx *ctx, hmq_slice session, hmq_slice end) {
    unsigned slot = slots_of_key(session);
    if (is_usable(slot)) put(ctx, slot, end, "member sessions of a client that ended stay until they expire");
}

/* ---- OUTBOX.READ -------------------------------------------------------------------------------------------- */

typedef struct reading {
    server_ctx *ctx;
    long long after, count, replied; /* numbers after this one; messages at most, and so far */
    size_t bytes;
    bool is_full;
} reading;

static void reply_element(reading *r, unsigned slot, const element *e) {
    sv.ReplyWithArray(r->ctx, 3);
    sv.ReplyWithLongLong(r->ctx, slot);
    sv.ReplyWithLongLong(r->ctx, (long long)e->number);
    sv.ReplyWithStringBuffer(r->ctx, (const char *)e->record.data, e->record.len);
    r->replied++;
    r->bytes += e->record.len;
}

/* Elements that another program wrote are no messages, and are skipped. */
static void read_slot(reading *r, unsigned slot, long long most) {
    server_string *name = key_of(slot);
    server_key *list = sv.OpenKey(r->ctx, name, SERVER_READ);
    long length = sv.KeyType(list) == SERVER_LIST ? (long)sv.ValueLength(list) : 0;
    for (long at = 0; at < length && most > 0 && !r->is_full; at++) {
        server_string *text = sv.ListGet(list, at);
        element e;
        if (read_element(text, &e) && (long long)e.number > r->after) {
            r->is_full = r->replied == r->count || (r->replied > 0 && r->bytes + e.record.len > READ_BYTES);
            if (!r->is_full) reply_element(r, slot, &e);
            most--;
        }
        if (text != NULL) sv.FreeString(NULL, text);
    }
    if (list != NULL) sv.CloseKey(list);
    sv.FreeString(NULL, name);
}

static bool take_slot(args *a, long long *slot) {
    return args_number(a, "slot", 0, HMQ_SLOTS - 1, slot);
}

/* False after replying an error. */
static bool take_option(args *a, reading *r, long long *slot) {
    if (args_take_word(a, "SLOT")) return take_slot(a, slot);
    if (args_take_word(a, "AFTER")) return args_number(a, "AFTER", 0, NUMBER_MAX, &r->after);
    if (args_take_word(a, "COUNT")) return args_number(a, "COUNT", 1, READ_MOST, &r->count);
    return args_end(a);
}

int outbox_read_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    reading r = {.ctx = ctx, .count = READ_DEFAULT};
    long long slot = -1;
    if (!route_begin(&a)) return SERVER_OK;
    outbox_expect_reader();
    while (args_left(&a)) {
        if (!take_option(&a, &r, &slot)) return SERVER_OK;
    }
    if (slot >= 0 && !route_check_slot(ctx, (unsigned)slot)) return SERVER_OK;
    const hmq_slot_set *slots = &index_of(ctx)->outboxes->slots;
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    if (slot >= 0) read_slot(&r, (unsigned)slot, READ_MOST);
    for (unsigned i = 0; slot < 0 && i < HMQ_SLOTS / 64 && !r.is_full; i++) {
        for (uint64_t left = slots->words[i]; left != 0 && !r.is_full; left &= left - 1) {
            unsigned at = i * 64 + (unsigned)__builtin_ctzll(left);
            if (slots_state(at) == SLOT_SERVED) read_slot(&r, at, READ_SLOT_MOST);
        }
    }
    sv.ReplySetArrayLength(ctx, (long)r.replied);
    return SERVER_OK;
}

/* ---- OUTBOX.ACK --------------------------------------------------------------------------------------------- */

/* How many messages from the oldest one on have a number up to this one. */
static long long count_up_to(server_key *list, uint64_t number) {
    long length = (long)sv.ValueLength(list), at = 0;
    for (bool goes_on = true; goes_on && at < length && at < ACK_MOST;) {
        server_string *text = sv.ListGet(list, at);
        element e;
        goes_on = !read_element(text, &e) || e.number <= number;
        if (goes_on) at++;
        if (text != NULL) sv.FreeString(NULL, text);
    }
    return at;
}

static void remove_oldest(server_ctx *ctx, server_key *list, server_string *name, long long count) {
    bool is_all = (long long)sv.ValueLength(list) == count;
    for (long long i = 0; i < count; i++) sv.FreeString(NULL, sv.ListPop(list, SERVER_LIST_HEAD));
    replicate(ctx, "LPOP", "sl", name, count);
    if (is_all) set_slot(index_of(ctx), slots_of_key(slice_of(name)), false);
    index_notify(ctx, SERVER_NOTIFY_LIST, "lpop", name);
    if (is_all) index_notify(ctx, SERVER_NOTIFY_GENERIC, "del", name);
}

int outbox_ack_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    long long slot, number;
    if (!route_begin(&a) || !take_slot(&a, &slot) || !args_number(&a, "number", 1, NUMBER_MAX, &number) ||
        !args_end(&a) || !route_check_slot(ctx, (unsigned)slot))
        return SERVER_OK;
    server_string *name = key_of((unsigned)slot);
    server_key *list = sv.OpenKey(ctx, name, SERVER_READ | SERVER_WRITE);
    if (key_check(ctx, list, name, SERVER_LIST)) {
        long long count = sv.KeyType(list) == SERVER_EMPTY ? 0 : count_up_to(list, (uint64_t)number);
        if (count > 0) remove_oldest(ctx, list, name, count);
        sv.ReplyWithLongLong(ctx, count);
    }
    sv.CloseKey(list);
    sv.FreeString(NULL, name);
    return SERVER_OK;
}
