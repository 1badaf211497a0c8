/* pipeline.c - TOPIC.PIPELINE: executes many TOPIC.PUBLISH as one command.  Its single argument has the commands as a client
 * sends them (consecutive RESP arrays of strings), and its reply has their replies.
 *
 * The publishes share most of their cost: the server receives and replicates one command, and each session gets all its
 * messages together (routing/gather.c).  One long argument is cheaper to receive than the same bytes in many words.
 *
 * Plain publishes are read from the bytes and gathered; in a cluster, those with HOME that all of their slots take
 * (routing/home_gather.h).  All others (QoS 2 with PACKET, RETAIN, shared subscriptions, unexpected words, an epoch that is
 * not current) are executed as TOPIC.PUBLISH commands, after the gathered
 * ones.  So every publish has the effect and the reply of TOPIC.PUBLISH.
 *
 * After a temporary refusal (QUEUEFULL, TRYAGAIN) of a publish of QoS 1 or 2, all later publishes of the same publisher are
 * refused too: it sends them again, in their order.
 *
 * If the user may not access all keys and channels, each publish is executed as a command of the user, with access checks.
 *
 * Invariant: all bytes are read before the first message is published.  Cost: that of the publishes. */
#include <string.h>

#include "base/resp.h"
#include "topic/session_key.h"
#include "topic/topic.h"
#include "server/access.h"
#include "server/errors.h"
#include "server/memory.h"
#include "index/session_fence.h"
#include "cluster/refusals.h"
#include "routing/delivery.h"
#include "routing/fan_out.h"
#include "routing/home_gather.h"
#include "routing/plan.h"
#include "routing/publish.h"

#define PUBLISHES_MAX 1024
#define WORDS_MAX 4096 /* per publish; most of them are those of SLOTS */
#define WORDS_TOTAL_MAX 65536 /* bounds the time of reading */
#define KEY_ON_STACK 512

/* The publishes of the running command; the arrays are kept for the next command. */
static struct {
    hmq_slice *words; /* of all publishes, without the command names */
    size_t word_count, word_room;
    size_t ends[PUBLISHES_MAX]; /* end of each publish in `words` */
    long long reached[PUBLISHES_MAX]; /* of the gathered publishes */
    server_reply *replies[PUBLISHES_MAX]; /* of the others; NULL: it was gathered, or is refused like an earlier one */
    size_t refused_like[PUBLISHES_MAX]; /* place of that earlier one in `replies`, plus 1; 0: none */
    size_t count;
} pipeline;

/* ---- reading ----------------------------------------------------------------------------------------------- */

static void add_word(hmq_slice word) {
    pipeline.words =
        array_reserve(pipeline.words, &pipeline.word_room, pipeline.word_count, 1, 256, sizeof *pipeline.words);
    pipeline.words[pipeline.word_count++] = word;
}

/* Reads one command and advances *at.  Returns the fault; NULL: none. */
static const char *read_publish(hmq_slice bytes, size_t *at) {
    hmq_resp_item item;
    if (!hmq_resp_next(bytes.data, bytes.len, at, &item) || item.type != '*') return "is no whole RESP array";
    if (item.number < 3 || item.number > WORDS_MAX) return "has fewer than 3 words, or more than 4096";
    if (pipeline.word_count + (size_t)item.number > WORDS_TOTAL_MAX) return "brings the words to more than 65536";
    for (int64_t words = item.number, i = 0; i < words; i++) {
        if (!hmq_resp_next(bytes.data, bytes.len, at, &item)) return "is cut off";
        if (item.type != '$' || item.number < 0) return "has a word that is not a string";
        if (i > 0)
            add_word(item.text);
        else if (!slice_is(item.text, "TOPIC.PUBLISH"))
            return "is another command";
    }
    return NULL;
}

/* False after replying an error. */
static bool read_all(server_ctx *ctx, hmq_slice bytes) {
    pipeline.count = pipeline.word_count = 0;
    for (size_t at = 0; at < bytes.len; pipeline.count++) {
        const char *wrong = pipeline.count == PUBLISHES_MAX ? "is one too many" : read_publish(bytes, &at);
        if (wrong != NULL) {
            reply_error(ctx, ERROR_PUBLISH_INVALID, pipeline.count + 1, wrong, PUBLISHES_MAX);
            return false;
        }
        pipeline.ends[pipeline.count] = pipeline.word_count;
        pipeline.reached[pipeline.count] = 0;
        pipeline.replies[pipeline.count] = NULL;
        pipeline.refused_like[pipeline.count] = 0;
    }
    return true;
}

/* Reads the options that a gathered publish may have.  In a cluster SLOTS is at words[*rest].  False: it has others, or an
 * invalid one. */
static bool read_plain(const hmq_slice *words, size_t count, long long now_ms, publish_plan *plan, size_t *rest) {
    *plan = plan_of_words(words[0], words[1], now_ms);
    for (*rest = 2; *rest < count;) {
        plan_option read = plan_read_option(NULL, plan, words, count, rest);
        if (read == PLAN_OPTION_UNKNOWN && can.cluster) break;
        if (read != PLAN_OPTION_READ) return false;
    }
    return plan->from.packet_id == 0 && !plan->record.retain &&
           hmq_topic_check_name((const char *)words[0].data, words[0].len) == HMQ_TOPIC_OK;
}

/* ---- publishing -------------------------------------------------------------------------------------------- */

static bool may_publish(server_ctx *ctx, const publish_plan *plan) {
    hmq_slice id = plan->record.publisher;
    char key[KEY_ON_STACK];
    if (id.len * 3 + 2 > sizeof key) return false; /* executed as a command */
    if (plan->from.epoch == 0) return true;
    size_t len = id.len == 0 ? 0 : hmq_session_key_encode((const char *)id.data, id.len, key, sizeof key);
    return len > 0 && session_is_owner(ctx, (hmq_slice){(const uint8_t *)key, len}, plan->from.epoch);
}

static bool publish_plain(server_ctx *ctx, const hmq_slice *words, size_t count, long long now_ms, long long *reached) {
    publish_plan plan;
    size_t rest;
    if (!read_plain(words, count, now_ms, &plan, &rest) || !index_is_current(ctx)) return false;
    if (!can.cluster) return may_publish(ctx, &plan) && topic_publish_gathered(ctx, &plan.record, reached);
    slots_option *slots = home_gather_slots(ctx, words, count, rest, &plan.from);
    return slots != NULL && topic_publish_gathered_to(ctx, &plan.record, slots, reached);
}

/* Never NULL: an error that prevents the call is also a reply. */
static server_reply *publish_as_command(server_ctx *ctx, const hmq_slice *words, size_t count, bool is_judged) {
    static server_string *argv[WORDS_MAX]; /* no TOPIC.PUBLISH runs a TOPIC.PIPELINE */
    for (size_t i = 0; i < count; i++) argv[i] = sv.CreateString(NULL, (const char *)words[i].data, words[i].len);
    if (is_judged) access_run_calls_as(ctx);
    server_reply *reply = sv.Call(ctx, "TOPIC.PUBLISH", "!Ev", argv, count);
    access_run_calls_as(NULL);
    for (size_t i = 0; i < count; i++) sv.FreeString(NULL, argv[i]);
    return reply;
}

/* ---- publishers that are to wait ---------------------------------------------------------------------------- */

#define WAITING_MAX 8 /* publishers that are remembered; the publishes of others are executed */

/* Publishers with a temporarily refused publish: their later publishes are refused, too, so that none overtakes it. */
static struct {
    hmq_slice from;
    size_t place; /* of the refused publish */
} waiting[WAITING_MAX];
static size_t waiting_count;

/* The client id of a publish that is sent again after a temporary refusal; len 0: it has none, or its QoS is 0. */
static hmq_slice from_of(const hmq_slice *words, size_t count) {
    publish_plan plan = plan_of_words(words[0], words[1], 0);
    for (size_t at = 2; at < count;) {
        if (plan_read_option(NULL, &plan, words, count, &at) != PLAN_OPTION_READ) break;
    }
    return plan.record.qos > 0 ? plan.from.client_id : (hmq_slice){NULL, 0};
}

/* Place of the refused publish that this one would overtake, plus 1; 0: none. */
static size_t refused_before(const hmq_slice *words, size_t count) {
    if (waiting_count == 0) return 0;
    hmq_slice from = from_of(words, count);
    for (size_t i = 0; from.len > 0 && i < waiting_count; i++) {
        if (hmq_slice_equal(waiting[i].from, from)) return waiting[i].place + 1;
    }
    return 0;
}

static bool begins(server_reply *error, const char *code) {
    size_t len = 0;
    const char *text = sv.CallReplyType(error) == SERVER_REPLY_ERROR ? sv.CallReplyStringPtr(error, &len) : NULL;
    return text != NULL && len >= strlen(code) && memcmp(text, code, strlen(code)) == 0;
}

static void note_refusal(server_reply *reply, const hmq_slice *words, size_t count, size_t place) {
    hmq_slice from = from_of(words, count);
    if (!begins(reply, "QUEUEFULL ") && !begins(reply, "TRYAGAIN ")) return;
    if (from.len == 0 || waiting_count == WAITING_MAX) return;
    waiting[waiting_count].from = from;
    waiting[waiting_count++].place = place;
}

/* `is_judged`: executes each as a command of the user. */
static void publish_all(server_ctx *ctx, bool is_judged) {
    long long now_ms = sv.Milliseconds();
    waiting_count = 0;
    home_gather_begin();
    for (size_t i = 0, at = 0; i < pipeline.count; at = pipeline.ends[i++]) {
        const hmq_slice *words = pipeline.words + at;
        size_t count = pipeline.ends[i] - at;
        if ((pipeline.refused_like[i] = refused_before(words, count)) > 0) continue;
        if (!is_judged && publish_plain(ctx, words, count, now_ms, &pipeline.reached[i])) continue;
        gather_settle(ctx);
        pipeline.replies[i] = publish_as_command(ctx, words, count, is_judged);
        home_gather_begin();
        note_refusal(pipeline.replies[i], words, count, i);
    }
    gather_settle(ctx);
}

static void reply_gathered(server_ctx *ctx, long long reached) {
    if (can.cluster) sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithLongLong(ctx, reached);
    if (can.cluster) sv.ReplyWithArray(ctx, 0); /* slots that did not take it */
}

/* Replies after all publishes: a server before 7.2 writes pushes for this client into a reply that has begun. */
static void reply_all(server_ctx *ctx) {
    sv.ReplyWithArray(ctx, (long)pipeline.count);
    for (size_t i = 0; i < pipeline.count; i++) {
        size_t like = pipeline.refused_like[i];
        server_reply *reply = like > 0 ? pipeline.replies[like - 1] : pipeline.replies[i];
        if (reply == NULL)
            reply_gathered(ctx, pipeline.reached[i]);
        else
            sv.ReplyWithCallReply(ctx, reply);
    }
    for (size_t i = 0; i < pipeline.count; i++) {
        if (pipeline.replies[i] != NULL) sv.FreeCallReply(pipeline.replies[i]);
    }
}

int topic_pipeline_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc != 2) return sv.WrongArity(ctx);
    if (!read_all(ctx, slice_of(argv[1]))) return SERVER_OK;
    server_string *user;
    bool is_judged = access_is_restricted(ctx, false, &user);
    if (user != NULL) sv.FreeString(NULL, user);
    fan_out_command_begin();
    if (can.cluster) refusals_set_caller(ctx);
    publish_all(ctx, is_judged);
    refusals_set_caller(NULL);
    fan_out_command_end();
    reply_all(ctx);
    return SERVER_OK;
}
