/* dryrun.c - counts what a policy would hold, and reports it. */
#include "channel/dryrun.h"

#include <string.h>

#include "server/args.h"
#include "server/errors.h"
#include "server/reply.h"

#define MAX_CHANNELS 10000
#define MAX_BYTES (4u << 20)   /* of names and counts */
#define CHANNEL_OVERHEAD 128   /* bytes of a dictionary's nodes and of the allocator, about, for a channel */
#define DEFAULT_SECONDS 3600
#define MAX_SECONDS (30LL * 86400)
#define MAX_POLICIES_BYTES 65536
#define DEFAULT_COUNT 100
#define MAX_COUNT 1000
#define BEGIN "0"
#define CURSOR_MARK '>' /* of a cursor that is not BEGIN: the last channel's name follows */

typedef struct channel_counts {
    const hmq_rule *rule; /* of the candidate policy; NULL: none matches */
    uint64_t unheard;     /* messages without a receiver */
    uint64_t kept;        /* messages that would be kept */
    uint64_t kept_bytes;
    long long last_ms; /* of the last message counted */
    int db;            /* where it was published */
    bool key_exists;   /* did a key of the channel's name exist? */
} channel_counts;

static struct {
    bool was_started, is_stopped, keeps_heard;
    long long begin_ms, end_ms; /* stopped: when it was */
    server_string *policies;
    hmq_policy *policy;
    server_dict *channels; /* name -> channel_counts */
    size_t bytes;
    uint64_t kept, kept_bytes;
    uint64_t left_out, left_out_bytes; /* messages that would be kept, of channels that did not fit */
    uint64_t denied;                   /* messages not kept because of missing rights */
    uint64_t passed_over;
} run;

bool dryrun_is_active(void) {
    return run.was_started && !run.is_stopped && sv.Milliseconds() < run.end_ms;
}

bool dryrun_keeps_heard(void) {
    return run.keeps_heard && dryrun_is_active();
}

/* ---- counting ---------------------------------------------------------------------------------------------- */

/* The channel's counts; NULL if there is no room for one more channel. */
static channel_counts *counts_of(hmq_slice channel, const hmq_rule *rule) {
    channel_counts *known = sv.DictGetC(run.channels, channel.data, channel.len, NULL);
    size_t bytes = channel.len + sizeof *known + CHANNEL_OVERHEAD;
    if (known != NULL) return known;
    if (sv.DictSize(run.channels) >= MAX_CHANNELS || run.bytes + bytes > MAX_BYTES) return NULL;
    known = sv.Calloc(1, sizeof *known);
    known->rule = rule;
    run.bytes += bytes;
    sv.DictSetC(run.channels, channel.data, channel.len, known);
    return known;
}

void dryrun_count(server_ctx *ctx, server_string *channel, server_string *message, int receivers, bool may_write) {
    hmq_slice name = slice_of(channel);
    const hmq_rule *rule = hmq_policy_find(run.policy, (const char *)name.data, name.len);
    bool is_kept = rule != NULL &&
                   (rule->hold == HMQ_HOLD_ALL || rule->last || (rule->hold == HMQ_HOLD_UNHEARD && receivers == 0));
    size_t bytes = slice_of(message).len;
    if (is_kept && !may_write) {
        run.denied++;
        is_kept = false;
    }
    if (!is_kept && receivers > 0) return;
    if (is_kept) {
        run.kept++;
        run.kept_bytes += bytes;
    }
    channel_counts *counts = counts_of(name, rule);
    if (counts == NULL) {
        if (is_kept) run.left_out++, run.left_out_bytes += bytes;
        return;
    }
    counts->unheard += receivers == 0;
    counts->kept += is_kept;
    counts->kept_bytes += is_kept ? bytes : 0;
    counts->last_ms = sv.Milliseconds();
    counts->db = sv.GetSelectedDb(ctx);
    if (key_exists_unseen(ctx, channel)) counts->key_exists = true;
}

void dryrun_count_skipped(void) {
    run.passed_over++;
}

/* ---- START, STOP ------------------------------------------------------------------------------------------- */

static void free_channels(void) {
    void *counts;
    server_dict_iter *iter = sv.DictIteratorStartC(run.channels, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &counts) != NULL) sv.Free(counts);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, run.channels);
}

static void begin(server_string *policies, hmq_policy *policy, long long seconds) {
    if (run.was_started) {
        free_channels();
        hmq_policy_free(run.policy);
        sv.FreeString(NULL, run.policies);
    }
    memset(&run, 0, sizeof run);
    run.was_started = true;
    run.policies = sv.HoldString(NULL, policies);
    run.policy = policy;
    run.channels = sv.CreateDict(NULL);
    run.begin_ms = sv.Milliseconds();
    run.end_ms = run.begin_ms + seconds * 1000;
    for (size_t i = 0; i < hmq_policy_count(policy); i++) {
        const hmq_rule *rule = hmq_policy_rule(policy, i);
        if (rule->hold == HMQ_HOLD_ALL || rule->last) run.keeps_heard = true;
    }
}

/* START [SECONDS n] [POLICIES text] */
static bool parse_start(args *a, long long *seconds, server_string **policies) {
    while (args_left(a)) {
        if (args_take_word(a, "SECONDS")) {
            if (!args_number(a, "SECONDS", 1, MAX_SECONDS, seconds)) return false;
        } else if (args_take_word(a, "POLICIES")) {
            if (!args_string(a, "POLICIES", policies)) return false;
        } else {
            return args_end(a);
        }
    }
    return true;
}

/* Does this server hold messages at all?  False after replying why not. */
static bool may_hold_here(server_ctx *ctx) {
    if (!settings.intercept) {
        reply_error(ctx, ERROR_DRYRUN_WITHOUT_INTERCEPTION);
    } else if (!(sv.GetContextFlags(ctx) & SERVER_CTX_MASTER)) {
        reply_error(ctx, ERROR_DRYRUN_ON_REPLICA);
    } else {
        return true;
    }
    return false;
}

int dryrun_start_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    a.at = 2;
    char error[512] = "the text is too long; expected at most 65536 bytes";
    long long seconds = DEFAULT_SECONDS;
    server_string *policies = hmq_policy_count(settings.policy) > 0 ? settings.policies : settings.default_policies;
    if (!parse_start(&a, &seconds, &policies) || !may_hold_here(ctx)) return SERVER_OK;
    hmq_slice text = slice_of(policies);
    hmq_policy *policy = NULL;
    if (text.len <= MAX_POLICIES_BYTES)
        policy = hmq_policy_parse(&server_allocator, (const char *)text.data, text.len, error, sizeof error);
    if (policy == NULL) return reply_error(ctx, ERROR_POLICIES_INVALID, error);
    begin(policies, policy, seconds);
    return sv.ReplyWithSimpleString(ctx, "OK");
}

int dryrun_stop_command(server_ctx *ctx, server_string **argv, int argc) {
    (void)argv;
    if (argc != 2) return sv.WrongArity(ctx);
    bool was_active = dryrun_is_active();
    if (was_active) {
        run.is_stopped = true;
        run.end_ms = sv.Milliseconds();
    }
    return sv.ReplyWithLongLong(ctx, was_active);
}

/* ---- REPORT ------------------------------------------------------------------------------------------------ */

static void reply_summary(server_ctx *ctx) {
    bool is_active = dryrun_is_active();
    long long until = is_active ? sv.Milliseconds() : run.end_ms;
    enum { FIELDS = 11 };
    sv.ReplyWithArray(ctx, 2 * (long)FIELDS);
    sv.ReplyWithCString(ctx, "policies");
    sv.ReplyWithString(ctx, run.policies);
    reply_field(ctx, "running", is_active);
    reply_field(ctx, "started_ms", (uint64_t)run.begin_ms);
    reply_field(ctx, "lasted_ms", (uint64_t)(until - run.begin_ms));
    reply_field(ctx, "channels", sv.DictSize(run.channels));
    reply_field(ctx, "messages", run.kept);
    reply_field(ctx, "bytes", run.kept_bytes);
    reply_field(ctx, "left_out_messages", run.left_out);
    reply_field(ctx, "left_out_bytes", run.left_out_bytes);
    reply_field(ctx, "denied", run.denied);
    reply_field(ctx, "passed_over", run.passed_over);
}

static bool key_exists_now(server_ctx *ctx, int db, server_string *channel) {
    int selected = sv.GetSelectedDb(ctx);
    sv.SelectDb(ctx, db);
    bool exists = key_exists_unseen(ctx, channel);
    sv.SelectDb(ctx, selected);
    return exists;
}

/* channel, rule, hold, unheard, messages, bytes, last_ms, key */
static void reply_channel(server_ctx *ctx, server_string *channel, const channel_counts *counts) {
    static const char *const holds[] = {"none", "unheard", "all"};
    sv.ReplyWithArray(ctx, 8);
    sv.ReplyWithString(ctx, channel);
    if (counts->rule != NULL)
        sv.ReplyWithStringBuffer(ctx, (const char *)counts->rule->glob.data, counts->rule->glob.len);
    else
        sv.ReplyWithNull(ctx);
    sv.ReplyWithCString(ctx, holds[counts->rule != NULL ? counts->rule->hold : HMQ_HOLD_NONE]);
    sv.ReplyWithLongLong(ctx, (long long)counts->unheard);
    sv.ReplyWithLongLong(ctx, (long long)counts->kept);
    sv.ReplyWithLongLong(ctx, (long long)counts->kept_bytes);
    sv.ReplyWithLongLong(ctx, counts->last_ms);
    sv.ReplyWithLongLong(ctx, counts->key_exists || key_exists_now(ctx, counts->db, channel));
}

/* REPORT [CURSOR cursor] [COUNT n] */
static bool parse_report(args *a, hmq_slice *cursor, long long *count) {
    server_string *given = NULL;
    while (args_left(a)) {
        if (args_take_word(a, "CURSOR")) {
            if (!args_string(a, "CURSOR", &given)) return false;
        } else if (args_take_word(a, "COUNT")) {
            if (!args_number(a, "COUNT", 1, MAX_COUNT, count)) return false;
        } else {
            return args_end(a);
        }
    }
    if (given == NULL || slice_is(slice_of(given), BEGIN)) return true;
    *cursor = slice_of(given);
    if (cursor->len > 0 && cursor->data[0] == CURSOR_MARK) return true;
    reply_error(a->ctx, ERROR_PAGE_CURSOR_INVALID, shown(given));
    return false;
}

/* The name of a page's last channel, or 0 if the page is the last one. */
static void reply_cursor(server_ctx *ctx, const server_string *last) {
    if (last == NULL) {
        sv.ReplyWithStringBuffer(ctx, BEGIN, sizeof BEGIN - 1);
        return;
    }
    hmq_slice name = slice_of(last);
    char *cursor = sv.Alloc(name.len + 1);
    cursor[0] = CURSOR_MARK;
    memcpy(cursor + 1, name.data, name.len);
    sv.ReplyWithStringBuffer(ctx, cursor, name.len + 1);
    sv.Free(cursor);
}

/* The cursor, then up to `count` channels. */
static void reply_page(server_ctx *ctx, server_dict_iter *iter, long long count) {
    struct {
        server_string *name;
        void *counts;
    } page[MAX_COUNT];
    size_t size = 0, len;
    void *counts;
    const char *name;
    while ((name = sv.DictNextC(iter, &len, &counts)) != NULL && size < (size_t)count) {
        page[size].name = sv.CreateString(NULL, name, len);
        page[size++].counts = counts;
    }
    reply_cursor(ctx, name != NULL ? page[size - 1].name : NULL);
    sv.ReplyWithArray(ctx, (long)size);
    for (size_t i = 0; i < size; i++) {
        reply_channel(ctx, page[i].name, page[i].counts);
        sv.FreeString(NULL, page[i].name);
    }
}

int dryrun_report_command(server_ctx *ctx, server_string **argv, int argc) {
    args a = args_begin(ctx, argv, argc);
    a.at = 2;
    hmq_slice cursor = {0};
    long long count = DEFAULT_COUNT;
    if (!parse_report(&a, &cursor, &count)) return SERVER_OK;
    if (!run.was_started) return reply_error(ctx, ERROR_DRYRUN_NOT_STARTED);
    server_dict_iter *iter = cursor.len == 0
                                 ? sv.DictIteratorStartC(run.channels, "^", NULL, 0)
                                 : sv.DictIteratorStartC(run.channels, ">", cursor.data + 1, cursor.len - 1);
    sv.ReplyWithArray(ctx, 3);
    reply_page(ctx, iter, count);
    sv.DictIteratorStop(iter);
    reply_summary(ctx);
    return SERVER_OK;
}
