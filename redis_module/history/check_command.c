/* check_command.c - HISTORY.CHECK: checks an epoch at once, or one part per call with a cursor. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "server/errors.h"
#include "server/numbers.h"
#include "history/check.h"
#include "history/history.h"

#define SENTENCES_MAX 100 /* per command */
#define DEFAULT_COUNT 1000
#define MAX_COUNT 1000000
#define CURSOR_NUMBERS 9
#define CURSOR_MAX_BYTES (CURSOR_NUMBERS * 21)

/* Kept until everything is read: opening an expired key causes an event, and a server before 7.2 may push it to this client
 * in the middle of a reply. */
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

static void reply_sentences(server_ctx *ctx, const sentences *s) {
    sv.ReplyWithArray(ctx, s->count + (s->left_out > 0 ? 1 : 0));
    for (long i = 0; i < s->count; i++) {
        sv.ReplyWithString(ctx, s->kept[i]);
        sv.FreeString(NULL, s->kept[i]);
    }
    char more[64];
    snprintf(more, sizeof more, "and %ld more", s->left_out);
    if (s->left_out > 0) sv.ReplyWithCString(ctx, more);
}

static void reply_cursor(server_ctx *ctx, const history_check_place *at) {
    char text[CURSOR_MAX_BYTES + 1] = "0";
    if (at->epoch > 0)
        snprintf(text, sizeof text,
                 "%" PRIu64 "-%" PRIu64 "-%" PRIu64 "-%" PRIu64 "-%" PRIu64 "-%" PRIu64 "-%" PRIu64 "-%" PRIu64
                 "-%" PRIu64,
                 at->epoch, at->last, at->indexed, at->pattern, at->part, at->list, at->next, at->before, at->messages);
    sv.ReplyWithStringBuffer(ctx, text, strlen(text));
}

static bool take_cursor(args *a, history_check_place *at) {
    server_string *cursor;
    char text[CURSOR_MAX_BYTES];
    uint64_t n[CURSOR_NUMBERS] = {0};
    if (!args_string(a, "CURSOR", &cursor)) return false;
    hmq_slice given = slice_of(cursor);
    bool right = given.len <= sizeof text;
    for (size_t i = 0; right && i < given.len; i++) text[i] = (char)(given.data[i] == '-' ? ' ' : given.data[i]);
    right = right && numbers_read((hmq_slice){(const uint8_t *)text, given.len}, n, CURSOR_NUMBERS) && n[0] > 0;
    if (!right)
        reply_error(a->ctx, ERROR_CURSOR_INVALID, "is invalid; expected the unchanged cursor of a HISTORY.CHECK reply");
    *at = (history_check_place){.epoch = n[0],
                                .last = n[1],
                                .indexed = n[2],
                                .pattern = n[3],
                                .part = n[4],
                                .list = n[5],
                                .next = n[6],
                                .before = n[7],
                                .messages = n[8]};
    return right;
}

/* [EPOCH epoch | CURSOR cursor] [COUNT count]; *count 0: all at once. */
static bool parse_check(args *a, const history_shard *state, history_check_place *at, long long *count) {
    long long epoch = state->epoch;
    bool right = true, from_cursor = false;
    *count = 0;
    if (args_take_word(a, "EPOCH"))
        right = args_number(a, "EPOCH", state->oldest, state->epoch, &epoch);
    else if (args_take_word(a, "CURSOR"))
        right = from_cursor = take_cursor(a, at);
    if (!right) return false;
    if (!from_cursor) *at = history_check_begin(state, (uint32_t)epoch);
    if (from_cursor) *count = DEFAULT_COUNT;
    if (args_take_word(a, "COUNT") && !args_number(a, "COUNT", 1, MAX_COUNT, count)) return false;
    return args_end(a);
}

int history_check_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    const history_store *store = history_take_store(&a, 2);
    history_shard state;
    history_check_place at;
    long long count;
    if (store == NULL || !history_take_shard(&a, store, &state) || !parse_check(&a, &state, &at, &count))
        return SERVER_OK;
    sentences s = {.count = 0};
    if (!state.exists) at.epoch = 0;
    bool known = at.epoch == 0 ||
                 history_check_continue(ctx, &state, &at, count > 0 ? (uint64_t)count : UINT64_MAX, keep_sentence, &s);
    if (!known) {
        keep_sentence(&s, "the epochs or the pattern set are missing, or were changed");
        at.epoch = 0;
    }
    if (count > 0) {
        sv.ReplyWithArray(ctx, 2);
        reply_cursor(ctx, &at);
    }
    reply_sentences(ctx, &s);
    return SERVER_OK;
}
