/* runs.c - records which writer wrote which numbers, and finds the first number where a cursor's writers differ. */
#include "history/runs.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "server/numbers.h"

#define RUN_MAX_BYTES 32 /* two numbers and two spaces */

bool history_runs_read(const server_string *value, history_shard *state) {
    uint64_t numbers[2 * HISTORY_RUNS_MAX];
    state->run_count = 0;
    if (value == NULL) return true;
    hmq_slice text = slice_of(value);
    size_t count = 1;
    for (size_t i = 0; i < text.len; i++) count += text.data[i] == ' ';
    if (count % 2 != 0 || count / 2 > HISTORY_RUNS_MAX || !numbers_read(text, numbers, count)) return false;
    for (size_t i = 0; i < count; i += 2) {
        uint64_t writer = numbers[i], first = numbers[i + 1], least = i == 0 ? 1 : numbers[i - 1];
        if (writer < 1 || writer > UINT32_MAX || first < least) return false;
        state->runs[i / 2] = (history_run){(uint32_t)writer, first};
    }
    state->run_count = (unsigned)count / 2;
    return true;
}

server_string *history_runs_text(const history_shard *state) {
    char text[HISTORY_RUNS_MAX * RUN_MAX_BYTES];
    size_t used = 0;
    for (unsigned i = 0; i < state->run_count; i++) {
        const history_run *run = &state->runs[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRIu32 " %" PRIu64, i == 0 ? "" : " ",
                                 run->writer, run->first);
    }
    return sv.CreateString(NULL, text, used);
}

bool history_runs_same(const history_shard *a, const history_shard *b) {
    if (a->run_count != b->run_count) return false;
    for (unsigned i = 0; i < a->run_count; i++) {
        if (a->runs[i].writer != b->runs[i].writer || a->runs[i].first != b->runs[i].first) return false;
    }
    return true;
}

void history_runs_add(history_shard *state, uint64_t writer, uint64_t first) {
    uint32_t shortened = (uint32_t)hmq_hash_text(&state->store->seed, (const char *)&writer, sizeof writer);
    if (state->run_count == HISTORY_RUNS_MAX)
        memmove(state->runs, state->runs + 1, --state->run_count * sizeof *state->runs);
    state->runs[state->run_count++] = (history_run){shortened == 0 ? 1 : shortened, first};
}

void history_runs_note(const history_shard *state, hmq_cursor *cursor) {
    unsigned i = state->run_count;
    cursor->writer = cursor->before = 0;
    cursor->begun = 0;
    while (i > 0 && state->runs[i - 1].first >= cursor->sequence) i--;
    if (i == 0) return;
    cursor->writer = state->runs[i - 1].writer;
    cursor->begun = state->runs[i - 1].first;
    if (i > 1) cursor->before = state->runs[i - 2].writer;
}

/* Where the run of this writer ended; false if it has none. */
static bool find_end(const history_shard *state, uint32_t writer, uint64_t *end) {
    *end = UINT64_MAX;
    for (unsigned i = state->run_count; writer != 0 && i > 0; i--) {
        if (state->runs[i - 1].writer == writer) return true;
        *end = state->runs[i - 1].first;
    }
    return false;
}

bool history_runs_find(const history_shard *state, hmq_cursor *cursor) {
    uint64_t end, of = cursor->sequence;
    if (cursor->writer == 0) return false;
    if (!find_end(state, cursor->writer, &end)) { /* the writer was lost with everything it wrote */
        of = cursor->begun;
        if (of > cursor->sequence || !find_end(state, cursor->before, &end)) return false;
    }
    cursor->sequence = of < end ? of : end;
    return true;
}
