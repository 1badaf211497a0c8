/* retained_command.c - TOPIC.RETAINED: lists the topics that have a retained message.
 *
 * One command is a step of bounded length: it ends after COUNT entries, PAGE_WORK or STEP_WORK, or STEP_BYTES.  With CURSOR the reply says
 * where the next page begins: after the last topic that was looked at, which need not match.  So a page may be empty, a
 * cursor stays valid whatever comes and goes, and a topic that exists all the time is listed once.  Without CURSOR there is
 * no place for that: a command that would have to end early is refused.
 *
 * The topic of a cursor may be one that the user may not see.  Users with restricted rights get it sealed. */
#include <string.h>

#include "topic/record.h"
#include "topic/topic.h"
#include "server/access.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/memory.h"
#include "server/sealed.h"
#include "server/slots_option.h"
#include "index/index.h"
#include "index/retained_topics.h"
#include "index/subscription.h"
#include "routing/publish.h"
#include "routing/retained.h"

#define BEGIN "0"
#define MARK '>'
/* Topics that are looked at: 1.5 ms for a page, 3 ms without one. */
#define PAGE_WORK 3072U
#define STEP_WORK (2 * PAGE_WORK)
#define WORK_OF_AN_ENTRY 3U /* besides */
#define STEP_BYTES ((size_t)256 << 10) /* of entries; the last one may be larger */

typedef struct retained_list {
    server_ctx *ctx;
    size_t most;
    bool values;
    bool has_cursor;
    bool is_sealed; /* the user must not read cursors */
    slots_option slots;
    server_string **entries;
    size_t count, room, bytes;
    size_t work; /* left */
    bool end;    /* nothing after the position matches */
} retained_list;

static retained_position position;

static server_string *record_text(const hmq_record *record) {
    size_t size = hmq_record_size(record);
    uint8_t *bytes = sv.Alloc(size);
    hmq_record_encode(record, bytes, size);
    server_string *text = sv.CreateString(NULL, (const char *)bytes, size);
    sv.Free(bytes);
    return text;
}

/* Adds an entry, unless the message is gone or another node's. */
static void take_one(retained_list *list, server_string *key) {
    retained_message kept;
    if (list->slots.given && !slots_option_lists(&list->slots, slots_of_key(slice_of(key)))) return;
    if (!(list->values ? retained_read : retained_read_head)(list->ctx, key, &kept)) return;
    hmq_slice topic = kept.record.topic;
    server_string *entry =
        list->values ? record_text(&kept.record) : sv.CreateString(NULL, (const char *)topic.data, topic.len);
    list->entries = array_reserve(list->entries, &list->room, list->count, 1, RETAINED_PAGE, sizeof *list->entries);
    list->entries[list->count++] = entry;
    list->bytes += slice_of(entry).len;
    /* The walk is ahead of the entries: after the last one it has to return here. */
    if (list->bytes >= STEP_BYTES) retained_position_set(&position, topic);
    retained_read_end(&kept);
}

static void take_page(retained_list *list, server_dict *topics, hmq_slice filter) {
    retained_page page = {.end = false};
    list->work = list->has_cursor ? PAGE_WORK : STEP_WORK;
    while (!list->end && list->work > 0 && list->count < list->most && list->bytes < STEP_BYTES) {
        size_t left = list->most - list->count;
        page.room = left < RETAINED_PAGE ? left : RETAINED_PAGE;
        page.visits = list->work;
        retained_topics_walk(topics, filter, &position, &page);
        size_t i = 0, work = page.count * WORK_OF_AN_ENTRY;
        for (; i < page.count && list->bytes < STEP_BYTES; i++) take_one(list, page.keys[i]);
        list->end = page.end && i == page.count;
        for (i = 0; i < page.count; i++) sv.FreeString(NULL, page.keys[i]);
        list->work = page.visits > work ? page.visits - work : 0;
    }
}

/* ---- the options ------------------------------------------------------------------------------------------- */

static bool set_position(hmq_slice topic) {
    bool is_topic = hmq_topic_check_name((const char *)topic.data, topic.len) == HMQ_TOPIC_OK;
    if (is_topic) retained_position_set(&position, topic);
    return is_topic;
}

static bool read_cursor(hmq_slice cursor) {
    if (slice_is(cursor, BEGIN)) return true;
    if (cursor.len > 1 && cursor.data[0] == MARK) return set_position((hmq_slice){cursor.data + 1, cursor.len - 1});
    server_string *topic = sealed_open(cursor);
    if (topic == NULL) return false;
    bool is_topic = set_position(slice_of(topic));
    sv.FreeString(NULL, topic);
    return is_topic;
}

static bool parse_cursor(args *a, retained_list *list) {
    server_string *cursor;
    if (!args_string(a, "CURSOR", &cursor)) return false;
    list->has_cursor = true;
    position.len = 0;
    if (read_cursor(slice_of(cursor))) return true;
    reply_error(a->ctx, ERROR_PAGE_CURSOR_INVALID, shown(cursor));
    return false;
}

static bool parse_retained(args *a, server_string **filter, retained_list *list) {
    long long most = 1000;
    if (!args_string(a, "filter", filter) || !subscription_check_filter(a->ctx, *filter, false)) return false;
    while (args_left(a)) {
        if (args_take_word(a, "CURSOR")) {
            if (!parse_cursor(a, list)) return false;
        } else if (args_take_word(a, "COUNT")) {
            if (!args_number(a, "COUNT", 1, 1000000, &most)) return false;
        } else if (args_take_word(a, "VALUES")) {
            list->values = true;
        } else if (args_take_word(a, "SLOTS")) {
            if (!slots_option_parse(a, &list->slots)) return false;
        } else {
            return args_end(a);
        }
    }
    list->most = (size_t)most;
    return true;
}

/* ---- the reply --------------------------------------------------------------------------------------------- */

static void reply_cursor(const retained_list *list) {
    if (list->end) {
        sv.ReplyWithStringBuffer(list->ctx, BEGIN, sizeof BEGIN - 1);
        return;
    }
    server_string *topic = retained_position_topic(&position);
    hmq_slice text = slice_of(topic);
    server_string *cursor =
        list->is_sealed ? sealed_close(text) : sv.CreateStringPrintf(NULL, "%c%.*s", MARK, (int)text.len, text.data);
    sv.ReplyWithString(list->ctx, cursor);
    sv.FreeString(NULL, cursor);
    sv.FreeString(NULL, topic);
}

static void reply_list(retained_list *list) {
    server_ctx *ctx = list->ctx;
    long parts = 1 + list->has_cursor + list->slots.given;
    if (parts > 1) sv.ReplyWithArray(ctx, parts);
    if (list->has_cursor) reply_cursor(list);
    sv.ReplyWithArray(ctx, (long)list->count);
    for (size_t i = 0; i < list->count; i++) sv.ReplyWithString(ctx, list->entries[i]);
    if (list->slots.given) slots_option_reply_unserved(ctx, &list->slots);
}

/* False after replying an error. */
static bool begin_page(retained_list *list) {
    server_string *user;
    if (!list->has_cursor) {
        position.len = 0;
        return true;
    }
    list->is_sealed = access_is_restricted(list->ctx, false, &user);
    if (user != NULL) sv.FreeString(NULL, user);
    return !list->is_sealed || sealed_begin(list->ctx);
}

int topic_retained_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *filter;
    retained_list list = {.ctx = ctx};
    if (!parse_retained(&a, &filter, &list) || !begin_page(&list)) return SERVER_OK;
    index_t *index = index_of(ctx);
    if (list.slots.given) slots_served(&list.slots.asked);
    index_pin(index, INDEX_RETAINED);
    take_page(&list, index->retained, slice_of(filter));
    index_unpin(index, INDEX_RETAINED);
    if (!list.has_cursor && !list.end && list.count < list.most)
        reply_error(ctx, ERROR_RETAINED_TOO_LONG, shown(filter), list.count);
    else
        reply_list(&list);
    for (size_t i = 0; i < list.count; i++) sv.FreeString(NULL, list.entries[i]);
    sv.Free(list.entries);
    return SERVER_OK;
}
