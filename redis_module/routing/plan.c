/* plan.c - reads the words of a publish. */
#include "routing/plan.h"

#include "topic/packet_id.h"
#include "server/errors.h"

#define CLIENT_ID_BYTES_MAX 65535

publish_plan plan_of_record(const hmq_record *record) {
    return (publish_plan){.record = *record,
                          .by = {.most = -1},
                          .keeps_retained = record->retain,
                          .keeps_history = !hmq_record_has_zero_ttl(record)};
}

publish_plan plan_of_words(hmq_slice topic, hmq_slice payload, long long now_ms) {
    hmq_record record = {.type = HMQ_RECORD_PUBLISH, .time_ms = now_ms, .topic = topic, .payload = payload};
    return plan_of_record(&record);
}

/* As the server reads numbers: no sign, no leading zero, no space. */
static bool read_number(hmq_slice text, long long min, long long max, long long *number) {
    long long value = 0;
    if (text.len == 0 || (text.data[0] == '0' && text.len > 1)) return false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9') return false;
        int digit = text.data[i] - '0';
        if (value > (INT64_MAX - digit) / 10) return false;
        value = value * 10 + digit;
    }
    *number = value;
    return value >= min && value <= max;
}

static const struct {
    const char *word;
    long long min, max;
} numbers[] = {
    {"QOS", 0, 2},
    {"TTL", 0, TOPIC_TTL_MAX_S},
    {"EPOCH", 0, INT64_MAX},
    {"PACKET", 1, HMQ_PACKET_ID_MAX},
};
enum { NUMBER_QOS, NUMBER_TTL, NUMBER_EPOCH, NUMBER_PACKET, NUMBERS };

static void set_number(publish_plan *plan, int which, long long number) {
    hmq_record *record = &plan->record;
    switch (which) {
    case NUMBER_QOS: record->qos = (uint8_t)number; break;
    case NUMBER_TTL:
        record->expires_ms = record->time_ms + number * 1000;
        plan->keeps_history = !hmq_record_has_zero_ttl(record);
        break;
    case NUMBER_EPOCH: plan->from.epoch = number; break;
    default: plan->from.packet_id = number; break;
    }
}

static plan_option missing(server_ctx *ctx, const char *name) {
    if (ctx != NULL) reply_error(ctx, ERROR_ARGUMENT_MISSING, name);
    return PLAN_OPTION_INVALID;
}

static plan_option take_number(server_ctx *ctx, publish_plan *plan, int which, hmq_slice text) {
    long long number;
    if (read_number(text, numbers[which].min, numbers[which].max, &number)) {
        set_number(plan, which, number);
        return PLAN_OPTION_READ;
    }
    if (ctx != NULL)
        reply_error(ctx, ERROR_NUMBER_INVALID, numbers[which].word, shown_slice(text), numbers[which].min,
                    numbers[which].max);
    return PLAN_OPTION_INVALID;
}

static plan_option take_client_id(server_ctx *ctx, publish_plan *plan, hmq_slice id) {
    if (id.len <= CLIENT_ID_BYTES_MAX) {
        plan->from.client_id = plan->record.publisher = id;
        return PLAN_OPTION_READ;
    }
    if (ctx != NULL) reply_error(ctx, ERROR_PUBLISHER_ID_LENGTH, id.len);
    return PLAN_OPTION_INVALID;
}

/* The first letter tells most words apart. */
static bool is_word(hmq_slice word, const char *name) {
    return word.len > 0 && (word.data[0] | 0x20) == (name[0] | 0x20) && slice_is(word, name);
}

plan_option plan_read_option(server_ctx *ctx, publish_plan *plan, const hmq_slice *words, size_t count, size_t *at) {
    hmq_slice word = words[*at];
    const hmq_slice *value = *at + 1 < count ? &words[*at + 1] : NULL;
    if (is_word(word, "RETAIN")) {
        plan->record.retain = plan->keeps_retained = true;
        *at += 1;
        return PLAN_OPTION_READ;
    }
    if (is_word(word, "RETRY")) {
        plan->is_retry = true;
        *at += 1;
        return PLAN_OPTION_READ;
    }
    for (int which = 0; which < NUMBERS; which++) {
        if (!is_word(word, numbers[which].word)) continue;
        if (value == NULL) return missing(ctx, numbers[which].word);
        *at += 2;
        return take_number(ctx, plan, which, *value);
    }
    bool is_from = is_word(word, "FROM");
    if (!is_from && !is_word(word, "PROPERTIES")) return PLAN_OPTION_UNKNOWN;
    if (value == NULL) return missing(ctx, is_from ? "FROM" : "PROPERTIES");
    *at += 2;
    if (is_from) return take_client_id(ctx, plan, *value);
    plan->record.properties = *value;
    return PLAN_OPTION_READ;
}
