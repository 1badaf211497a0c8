/* mpublish.c - TOPIC.MPUBLISH: publishes many messages in order, given as records.
 *
 * Invariants: all arguments are checked before the first message is published.  If a message cannot be published (history, a
 * retained message), no later one is, and the producer's number shows which was the last.  So a producer may send the same
 * messages again, or all from an earlier one on: each is published once and in order.  Messages in later commands of the
 * producer name the message they follow, and are refused after a refused one (GAP).
 *
 * In a cluster (SLOTS) the same is true per slot (routing/publish_slots.h).  A slot without a note cannot detect a gap: a
 * producer must wait until its messages are served in all slots before it sends the next ones.
 *
 * Cost: that of a TOPIC.PUBLISH per message; common work is done once. */
#include <inttypes.h>

#include "topic/topic.h"
#include "server/args.h"
#include "server/errors.h"
#include "routing/delivery.h"
#include "routing/fan_out.h"
#include "routing/publish.h"
#include "routing/publish_producer.h"
#include "routing/publish_slots.h"

#define MESSAGES_MAX 10000
#define MAX_NUMBER 9007199254740991LL
#define TIME_MAX_MS ((INT64_C(1) << 48) - 1)

typedef struct numbered {
    hmq_record record; /* points into the arguments */
    uint64_t number;   /* the producer's number; 0: there is no producer */
} numbered;

typedef struct mpublish {
    publish_producer by;
    long long after; /* number of the producer's last message before these, 0: none */
    slots_option slots;
    numbered *messages;
    size_t count;
} mpublish;

/* ---- reading the command ----------------------------------------------------------------------------------- */

static bool refuse(const args *a, size_t at, const char *what, const char *expected) {
    reply_error(a->ctx, ERROR_MESSAGE_INVALID, at + 1, what, expected);
    return false;
}

/* Gives the message the time of this server; its remaining time to live stays. */
static void move_to(hmq_record *record, int64_t now_ms) {
    if (record->expires_ms > 0) {
        int64_t left_ms = record->expires_ms > record->time_ms ? record->expires_ms - record->time_ms : 0;
        record->expires_ms = left_ms < TIME_MAX_MS - now_ms ? now_ms + left_ms : TIME_MAX_MS;
    }
    record->time_ms = now_ms;
}

static bool take_number(args *a, const mpublish *m, size_t at, uint64_t *number) {
    long long least = at == 0 ? m->after + 1 : (long long)m->messages[at - 1].number + 1, value;
    const server_string *text = a->argv[a->at++];
    if (number_of(text, least, MAX_NUMBER, &value)) {
        *number = (uint64_t)value;
        return true;
    }
    reply_error(a->ctx, ERROR_MESSAGE_NUMBER, at + 1, shown(text), least, MAX_NUMBER);
    return false;
}

static bool take_record(args *a, size_t at, int64_t now_ms, hmq_record *record) {
    server_string *text = a->argv[a->at++];
    hmq_slice bytes = slice_of(text);
    if (hmq_record_decode(bytes.data, bytes.len, record) != 0 || record->type != HMQ_RECORD_PUBLISH)
        return refuse(a, at, "is not a published message", "a record of src/topic/record.h");
    if (record->share.len > 0) return refuse(a, at, "has a share", "a message as it was published");
    hmq_topic_error error = hmq_topic_check_name((const char *)record->topic.data, record->topic.len);
    if (error != HMQ_TOPIC_OK) {
        server_string *topic = sv.CreateString(NULL, (const char *)record->topic.data, record->topic.len);
        reply_invalid_topic(a->ctx, "the topic", topic, error);
        sv.FreeString(NULL, topic);
        return false;
    }
    move_to(record, now_ms);
    return true;
}

static bool take_messages(args *a, mpublish *m) {
    int words = m->by.id == NULL ? 1 : 2, left = a->argc - a->at;
    int64_t now_ms = sv.Milliseconds();
    if (left % words != 0) {
        reply_error(a->ctx, ERROR_MESSAGE_PAIRS, left);
        return false;
    }
    m->count = (size_t)(left / words);
    if (m->count < 1 || m->count > MESSAGES_MAX) {
        reply_error(a->ctx, ERROR_RECORDS_COUNT, m->count, MESSAGES_MAX);
        return false;
    }
    m->messages = sv.Calloc(m->count, sizeof *m->messages);
    for (size_t i = 0; i < m->count; i++) {
        if (words == 2 && !take_number(a, m, i, &m->messages[i].number)) return false;
        if (!take_record(a, i, now_ms, &m->messages[i].record)) return false;
    }
    return true;
}

static bool parse(args *a, mpublish *m) {
    bool taken;
    if (!publish_producer_parse(a, &m->by, &taken)) return false;
    m->after = m->by.chunk;
    if (args_take_word(a, "SLOTS") && !slots_option_parse(a, &m->slots)) return false;
    if (can.cluster && !m->slots.given) {
        reply_error(a->ctx, ERROR_MPUBLISH_SLOTS_MISSING);
        return false;
    }
    if (args_take_word(a, "RECORD")) return take_messages(a, m);
    reply_error(a->ctx, ERROR_MPUBLISH_RECORD_MISSING);
    return false;
}

/* ---- publishing -------------------------------------------------------------------------------------------- */

static bool follows(server_ctx *ctx, const mpublish *m, uint64_t last) {
    if ((uint64_t)m->after <= last) return true;
    reply_error(ctx, ERROR_MESSAGES_GAP, m->after, shown(m->by.id), last);
    return false;
}

/* [published, known, sessions reached] */
static void publish_all(server_ctx *ctx, mpublish *m, uint64_t last) {
    long long reached = 0;
    size_t known = 0, at;
    fan_out_command_begin();
    while (known < m->count && m->by.id != NULL && m->messages[known].number <= last) known++;
    for (at = known; at < m->count; at++) {
        const hmq_record *record = &m->messages[at].record;
        if (topic_publish_gathered(ctx, record, &reached)) continue;
        gather_settle(ctx);
        long long sessions = topic_publish_one(ctx, record);
        if (sessions < 0) break;
        reached += sessions;
    }
    gather_settle(ctx);
    fan_out_command_end();
    if (m->by.id != NULL && at > known) {
        m->by.chunk = (long long)m->messages[at - 1].number;
        publish_producer_note(ctx, &m->by);
    }
    if (at < m->count) return; /* the error has been replied */
    sv.ReplyWithArray(ctx, 3);
    sv.ReplyWithLongLong(ctx, (long long)(m->count - known));
    sv.ReplyWithLongLong(ctx, (long long)known);
    sv.ReplyWithLongLong(ctx, reached);
}

/* [[published, known, sessions reached], [unserved slots, ...]] */
static void publish_parts(server_ctx *ctx, mpublish *m) {
    long long published = 0, known = 0, reached = 0;
    size_t at = 0;
    slots_served(&m->slots.asked); /* one view for the whole command */
    publish_slots_begin(&m->slots, &m->by);
    for (; at < m->count; at++) {
        topic_part part = topic_publish_part(ctx, &m->messages[at].record, m->messages[at].number, &reached);
        if (part == TOPIC_PART_REFUSED) break;
        published += part == TOPIC_PART_PUBLISHED;
        known += part == TOPIC_PART_KNOWN;
    }
    if (at > 0) publish_slots_note(ctx, m->messages[at - 1].number);
    if (at < m->count) return;
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithArray(ctx, 3);
    sv.ReplyWithLongLong(ctx, published);
    sv.ReplyWithLongLong(ctx, known);
    sv.ReplyWithLongLong(ctx, reached);
    slots_option_reply_unserved(ctx, &m->slots);
}

static void publish(server_ctx *ctx, mpublish *m) {
    uint64_t last = 0;
    if (m->slots.given) {
        publish_parts(ctx, m);
        return;
    }
    if (m->by.id == NULL) {
        publish_all(ctx, m, last);
        return;
    }
    m->by.key = publish_producer_key(slice_of(m->by.id));
    if (publish_producer_last(ctx, &m->by, &last) && follows(ctx, m, last)) publish_all(ctx, m, last);
    sv.FreeString(NULL, m->by.key);
}

int topic_mpublish_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    mpublish m = {.count = 0};
    slots_option_begin(&m.slots);
    if (parse(&a, &m)) publish(ctx, &m);
    sv.Free(m.messages);
    return SERVER_OK;
}
