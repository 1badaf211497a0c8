/* page.c - continues to read in one shard. */
#include "history/page.h"

#include "topic/topic.h"
#include "history/epoch.h"
#include "history/live.h"
#include "history/runs.h"
#include "history/uses.h"
#include "history/visible.h"

void history_page_allow(history_page *p, long long visits, long long count) {
    p->visits = visits > 0 ? visits : count * HISTORY_VISITS_OF_A_MESSAGE;
    p->budget = (uint64_t)p->visits * HISTORY_POSTINGS_OF_A_VISIT;
    history_uses_note(p->ctx, p->store, p->filter);
}

static bool is_wanted(const history_page *p, const history_entry *entry) {
    const hmq_record *record = &entry->record;
    if (record->expires_ms > 0 && (uint64_t)record->expires_ms <= p->now_us / 1000) return false;
    return hmq_topic_matches((const char *)p->filter.data, p->filter.len, (const char *)record->topic.data,
                             record->topic.len);
}

/* Moves the cursor into this epoch: it has read, or missed, all earlier messages of the epoch. */
static void enter_epoch(const history_shard *state, hmq_cursor *cursor, const history_epoch *epoch) {
    history_runs_note(state, cursor);
    cursor->epoch = epoch->epoch;
    cursor->generation = epoch->generation;
    if (cursor->sequence > epoch->first && cursor->time_us < epoch->begun_us) cursor->time_us = epoch->begun_us;
}

/* Reads from cursor->sequence to the end of its epoch. */
static history_page_end read_epoch(history_page *p, const history_shard *state, hmq_cursor *cursor, bool *is_past_end) {
    history_epoch epoch;
    if (!history_epoch_of_sequence(p->ctx, state, cursor->sequence, &epoch)) return HISTORY_PAGE_CORRUPT;
    if (p->generation > 0 && epoch.generation > p->generation) return HISTORY_PAGE_SWITCH;
    history_reader *reader = history_reader_open(p->ctx, state, &epoch, p->filter, cursor->sequence);
    if (reader == NULL) return HISTORY_PAGE_CORRUPT;
    history_page_end result = HISTORY_PAGE_END;
    history_step step = HISTORY_END;
    history_entry entry;
    while (result == HISTORY_PAGE_END && (step = history_reader_next(reader, &entry, &p->budget)) == HISTORY_FOUND) {
        *is_past_end = entry.time_us > p->to_us;
        if (*is_past_end) break;
        bool wanted = is_wanted(p, &entry);
        if (p->visits <= 0 || !p->take(p->context, cursor->shard, wanted ? &entry : NULL)) {
            result = HISTORY_PAGE_LIMIT;
            break;
        }
        p->visits--;
        p->visited++;
        cursor->sequence = entry.sequence + 1;
        cursor->time_us = entry.time_us;
    }
    if (step == HISTORY_END || step == HISTORY_LIMIT) {
        cursor->sequence = history_reader_position(reader);
        if (step == HISTORY_LIMIT) result = HISTORY_PAGE_LIMIT;
    }
    enter_epoch(state, cursor, &epoch);
    history_reader_close(reader);
    return step == HISTORY_CORRUPT ? HISTORY_PAGE_CORRUPT : result;
}

/* Do the writers of the shard determine where the cursor continues?  They do not beyond the end of the shard: a promoted
 * replica has not written yet, or an older state was restored. */
static bool writers_know(const history_page *p, const history_shard *state, hmq_cursor *cursor) {
    hmq_cursor moved = *cursor;
    if (!history_runs_find(state, &moved)) return false;
    bool beyond = moved.sequence > state->last.sequence + 1;
    if (beyond && (sv.GetContextFlags(p->ctx) & SERVER_CTX_REPLICA) == 0) return false;
    *cursor = moved;
    return true;
}

/* Numbers before this cursor may have been lost, with a primary or the end of a file, and reused since then.  The cursor
 * moves back to the first of them.  If the writers of these numbers are unknown (history/runs.h), epochs and times are the
 * best evidence.  A new writer begins an epoch: so the cursor is beyond the end of its epoch, or its epoch no longer exists,
 * or began later than every message that was read. */
static bool go_back(history_page *p, const history_shard *state, hmq_cursor *cursor) {
    history_epoch of, next;
    if (writers_know(p, state, cursor)) return true;
    uint32_t epoch = cursor->epoch < state->oldest ? state->oldest - 1 : cursor->epoch;
    if (cursor->epoch == 0 || epoch > state->epoch) { /* it was in no epoch, or in one that no longer exists */
        if (cursor->time_us == 0 || (cursor->epoch == 0 && cursor->sequence <= state->last.sequence + 1)) return true;
        return history_sequence_at(p->ctx, state, cursor->time_us + 1, &cursor->sequence);
    }
    if (epoch < state->epoch) {
        if (!history_epoch_read(p->ctx, state, epoch + 1, &next)) return false;
        if (cursor->sequence > next.first) cursor->sequence = next.first;
    }
    if (epoch < state->oldest || cursor->time_us == 0) return true;
    if (!history_epoch_read(p->ctx, state, epoch, &of)) return false;
    bool began_later = cursor->sequence > of.first && cursor->time_us < of.begun_us;
    if (!began_later && cursor->sequence <= state->last.sequence + 1) return true;
    return history_sequence_at(p->ctx, state, cursor->time_us + 1, &cursor->sequence);
}

/* Moves the cursor to the number where it begins or continues. */
static bool move_to(history_page *p, const history_shard *state, hmq_cursor *cursor, uint64_t sequence) {
    history_epoch epoch;
    cursor->sequence = sequence;
    if (!history_epoch_of_sequence(p->ctx, state, sequence, &epoch)) return false;
    enter_epoch(state, cursor, &epoch);
    return true;
}

bool history_page_start(history_page *p, const history_shard *state, hmq_cursor *cursor) {
    uint64_t visible, from = 0;
    bool begins = cursor->sequence == 0;
    if (!begins && !go_back(p, state, cursor)) return false;
    uint64_t wanted = cursor->sequence > state->last.sequence ? 0 : cursor->sequence;
    if (!history_visible(p->ctx, state, p->now_us, wanted, &visible)) return false;
    if (begins && p->from_us > 0 && !history_sequence_at(p->ctx, state, p->from_us, &from)) return false;
    if (begins) return move_to(p, state, cursor, from > visible ? from : visible);
    if (cursor->sequence >= visible) return true;
    p->missed += visible - cursor->sequence;
    return move_to(p, state, cursor, visible);
}

history_page_end history_page_read(history_page *p, hmq_cursor *cursor) {
    history_shard state;
    if (!history_shard_read(p->ctx, p->store, cursor->shard, &state, p->reply)) return HISTORY_PAGE_ERROR;
    if (!state.exists) {
        if (cursor->sequence == 0) cursor->sequence = 1;
        return HISTORY_PAGE_END;
    }
    if (!history_page_start(p, &state, cursor)) return HISTORY_PAGE_CORRUPT;
    history_page_end result = HISTORY_PAGE_END;
    bool is_past_end = false;
    while (result == HISTORY_PAGE_END && !is_past_end && cursor->sequence <= state.last.sequence) {
        if (p->visits <= 0 || p->budget == 0 || !p->take(p->context, cursor->shard, NULL)) return HISTORY_PAGE_LIMIT;
        result = read_epoch(p, &state, cursor, &is_past_end);
    }
    return result;
}

/* ---- several shards ---------------------------------------------------------------------------------------- */

/* The next generation to read in a shard; UINT32_MAX if it is unknown: reading the shard will show it. */
static uint32_t next_generation(history_page *p, const hmq_cursor *cursor) {
    history_shard state;
    history_epoch epoch;
    if (!history_shard_read(p->ctx, p->store, cursor->shard, &state, false) || !state.exists) return UINT32_MAX;
    if (cursor->sequence > state.last.sequence) return UINT32_MAX;
    return history_epoch_of_sequence(p->ctx, &state, cursor->sequence, &epoch) ? epoch.generation : UINT32_MAX;
}

history_page_end history_page_read_all(history_page *p, hmq_cursor *cursors, size_t count, size_t *stopped) {
    bool done[HISTORY_SHARDS_MAX];
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        done[i] = cursors[i].shard >= p->store->shards; /* of an earlier store with this name */
        if (!done[i]) left++;
    }
    while (left > 0) {
        uint32_t next[HISTORY_SHARDS_MAX], lowest = UINT32_MAX;
        for (size_t i = 0; i < count; i++) {
            if (!done[i]) next[i] = next_generation(p, &cursors[i]);
            if (!done[i] && next[i] < lowest) lowest = next[i];
        }
        p->generation = lowest;
        for (size_t i = 0; i < count; i++) {
            if (done[i] || next[i] > lowest) continue;
            history_page_end result = history_page_read(p, &cursors[i]);
            if (result == HISTORY_PAGE_SWITCH) continue;
            *stopped = i;
            if (result != HISTORY_PAGE_END) return result;
            done[i] = true;
            left--;
        }
    }
    return HISTORY_PAGE_END;
}
