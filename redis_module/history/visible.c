/* visible.c - finds the first readable message of a shard. */
#include "history/visible.h"

#include "history/epoch.h"
#include "history/read.h"

/* Did the epoch of this number begin after that time? */
static bool begins_later(server_ctx *ctx, const history_shard *state, uint64_t sequence, uint64_t time_us) {
    history_epoch epoch;
    return history_epoch_of_sequence(ctx, state, sequence, &epoch) && epoch.first <= sequence &&
           epoch.begun_us >= time_us;
}

bool history_first_kept(server_ctx *ctx, const history_shard *state, uint64_t *first) {
    history_epoch oldest;
    *first = 1;
    if (!state->exists) return true;
    if (!history_epoch_read(ctx, state, state->oldest, &oldest)) return false;
    *first = oldest.first > state->trimmed ? oldest.first : state->trimmed + 1;
    return true;
}

bool history_visible(server_ctx *ctx, const history_shard *state, uint64_t now_us, uint64_t wanted, uint64_t *first) {
    uint64_t age_us = (uint64_t)state->store->age_s * 1000000, at;
    if (!history_first_kept(ctx, state, first)) return false;
    if (!state->exists) return true;
    if (age_us == 0 || age_us >= now_us || begins_later(ctx, state, wanted, now_us - age_us)) return true;
    if (!history_sequence_at(ctx, state, now_us - age_us, &at)) return false;
    if (at > *first) *first = at;
    return true;
}
