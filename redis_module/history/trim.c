/* trim.c - HISTORY.TRIM: a reader removes messages that it no longer needs. */
#include <inttypes.h>

#include "server/errors.h"
#include "server/keys.h"
#include "server/numbers.h"
#include "history/drop.h"
#include "history/epoch.h"
#include "history/history.h"
#include "history/hold.h"
#include "history/visible.h"

#define TRIM_KEYS 1024 /* removed immediately; the others in the background */

/* Checks that no watermark is below the number.  False after replying whose is. */
static bool none_holds(server_ctx *ctx, const history_shard *state, uint64_t sequence) {
    server_string *reader, *name = history_holds_key(state);
    bool right = key_check_name(ctx, name, SERVER_HASH);
    sv.FreeString(NULL, name);
    if (!right) return false;
    uint64_t lowest = history_holds_lowest(ctx, state, &reader);
    if (lowest < sequence) reply_error(ctx, ERROR_TRIM_HELD, shown(reader), lowest, state->shard);
    if (reader != NULL) sv.FreeString(NULL, reader);
    return lowest >= sequence;
}

static int reply_corrupt(server_ctx *ctx, const history_shard *state) {
    return reply_error(ctx, ERROR_HISTORY_FOREIGN, shown_slice(state->store->name), state->shard);
}

/* Moves the state past the trimmed messages.  False after replying an error; nothing has been changed then. */
static bool trim(server_ctx *ctx, history_shard *state, uint64_t sequence) {
    history_epoch first;
    if (sequence == state->last.sequence && state->first <= sequence) { /* the current epoch has no other messages */
        hmq_message_id next;
        if (!history_epoch_may_begin(ctx, state, true)) return false;
        if (state->epoch >= INT32_MAX || !hmq_message_id_next(state->last, 0, &next)) {
            reply_corrupt(ctx, state);
            return false;
        }
        history_epoch_begin(ctx, state, next);
        state->oldest = state->epoch;
        state->trimmed = sequence;
        history_shard_write(ctx, state, true);
    } else {
        if (!history_epoch_of_sequence(ctx, state, sequence + 1, &first)) {
            reply_corrupt(ctx, state);
            return false;
        }
        state->oldest = first.epoch;
        state->trimmed = sequence;
        history_drop_write(ctx, state);
    }
    return true;
}

int history_trim_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc != 4) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    const history_store *store = history_take_store(&a, 2);
    history_shard state;
    long long to;
    uint64_t first;
    if (store == NULL || !history_take_shard(&a, store, &state) || !history_may_change(ctx, store, state.shard) ||
        !args_number(&a, "the sequence number", 0, INT64_MAX, &to))
        return SERVER_OK;
    uint64_t sequence = (uint64_t)to < state.last.sequence ? (uint64_t)to : state.last.sequence;
    if (!history_first_kept(ctx, &state, &first)) return reply_corrupt(ctx, &state);
    if (sequence >= first) {
        if (!none_holds(ctx, &state, sequence) || !trim(ctx, &state, sequence)) return SERVER_OK;
        history_slice slice = {.keys = TRIM_KEYS};
        /* Frequent trims must not starve the removal of another shard's epoch that has begun. */
        if (!history_drop_is_elsewhere(ctx, &state)) history_drop_epochs(ctx, &state, &slice);
        counters.history_trimmed += sequence - first + 1;
    }
    history_visible(ctx, &state, clock_us(), 0, &first);
    return sv.ReplyWithLongLong(ctx, (long long)first);
}
