/* retained_command.c - TOPIC.RETAINED: lists the topics that have a retained message. */
#include "topic/record.h"
#include "server/args.h"
#include "server/slots_option.h"
#include "index/index.h"
#include "index/retained_topics.h"
#include "index/subscription.h"
#include "routing/publish.h"
#include "routing/retained.h"

typedef struct retained_list {
    server_ctx *ctx;
    long count, most;
    bool values;
    slots_option slots;
} retained_list;

static void reply_record(server_ctx *ctx, const hmq_record *record) {
    size_t size = hmq_record_size(record);
    uint8_t *bytes = sv.Alloc(size);
    hmq_record_encode(record, bytes, size);
    sv.ReplyWithStringBuffer(ctx, (const char *)bytes, size);
    sv.Free(bytes);
}

static void list_one(retained_list *list, server_string *key) {
    retained_message kept;
    if (list->slots.given && !slots_option_lists(&list->slots, slots_of_key(slice_of(key)))) return;
    if (!retained_read(list->ctx, key, &kept)) return;
    if (list->values)
        reply_record(list->ctx, &kept.record);
    else
        sv.ReplyWithStringBuffer(list->ctx, (const char *)kept.record.topic.data, kept.record.topic.len);
    retained_read_end(&kept);
    list->count++;
}

static void list_retained(retained_list *list, server_dict *topics, hmq_slice filter) {
    static retained_position position;
    retained_page page = {.end = false};
    for (position.len = 0; !page.end && list->count < list->most;) {
        page.visits = SIZE_MAX;
        retained_topics_walk(topics, filter, &position, &page);
        for (size_t i = 0; i < page.count; i++) {
            if (list->count < list->most) list_one(list, page.keys[i]);
            sv.FreeString(NULL, page.keys[i]);
        }
    }
}

static bool parse_retained(args *a, server_string **filter, retained_list *list) {
    long long most = 1000;
    if (!args_string(a, "filter", filter) || !subscription_check_filter(a->ctx, *filter, false)) return false;
    while (args_left(a)) {
        if (args_take_word(a, "COUNT")) {
            if (!args_number(a, "COUNT", 1, 1000000, &most)) return false;
        } else if (args_take_word(a, "VALUES")) {
            list->values = true;
        } else if (args_take_word(a, "SLOTS")) {
            if (!slots_option_parse(a, &list->slots)) return false;
        } else {
            return args_end(a);
        }
    }
    list->most = (long)most;
    return true;
}

int topic_retained_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    server_string *filter;
    retained_list list = {.ctx = ctx};
    if (!parse_retained(&a, &filter, &list)) return SERVER_OK;
    hmq_slice text = slice_of(filter);
    index_t *index = index_of(ctx);
    if (list.slots.given) slots_served(&list.slots.asked);
    if (list.slots.given) sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithArray(ctx, SERVER_POSTPONED_LEN);
    index_pin(index, INDEX_RETAINED);
    list_retained(&list, index->retained, text);
    index_unpin(index, INDEX_RETAINED);
    sv.ReplySetArrayLength(ctx, list.count);
    if (list.slots.given) slots_option_reply_unserved(ctx, &list.slots);
    return SERVER_OK;
}
