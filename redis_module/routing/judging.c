/* judging.c - judges the queues of a publish in steps. */
#include "routing/judging.h"

#include "server/errors.h"
#include "server/session_keys.h"
#include "queue/allowance.h"
#include "queue/full.h"
#include "routing/fan_out_ahead.h"
#include "routing/matching.h"

#define STEP_UNITS 2048U /* topic/trie.h: of these, a session takes MATCHING_SESSION_UNITS */

/* ---- the publish ------------------------------------------------------------------------------------------- */

/* Ends the checks that the publisher no longer needs, all but `but` (NULL: all).  For a program: the check of this topic. */
static void forget_others(judgings *all, const hmq_record *record, const judging *but) {
    const judging *same = judging_find(all, record->publisher, record->topic);
    for (size_t i = all->count; i > 0; i--) {
        judging *j = all->list[i - 1];
        bool is_own = record->publisher.len > 0 ? judging_is_of(j, record->publisher) : j == same;
        if (is_own && j != but) judging_remove(all, j);
    }
}

void judging_forget(const index_t *index, const hmq_record *record) {
    if (index->fan_outs->judged->count > 0 && record->qos > 0) forget_others(index->fan_outs->judged, record, NULL);
}

/* Returns the judging of this publish, and begins one if there is none for a message of this size.  NULL: too many are
 * under way. */
static judging *find_or_begin(const index_t *index, const hmq_record *record) {
    judgings *all = index->fan_outs->judged;
    size_t bytes = hmq_record_size(record);
    judging_remove_old(all);
    judging *j = judging_find(all, record->publisher, record->topic);
    if (j != NULL && j->bytes < bytes) j = NULL;
    forget_others(all, record, j);
    if (j == NULL) j = judging_add(all, record, fan_out_owner(index, record->publisher));
    if (j == NULL) return NULL;
    if (j->bytes == 0) j->bytes = bytes;
    j->asked_ms = sv.Milliseconds();
    return j;
}

judging_answer judging_ask(server_ctx *ctx, index_t *index, const hmq_record *record) {
    judging *j = find_or_begin(index, record);
    if (j == NULL || !j->is_over) {
        counters.fan_outs_delayed++;
        reply_error(ctx, ERROR_QUEUES_JUDGED);
        return JUDGING_LATER;
    }
    bool have_room = j->status == QUEUE_OK;
    if (!have_room) overflow_refuse(ctx, slice_of(j->by), j->status == QUEUE_WAITS ? OVERFLOW_WAIT : OVERFLOW_REFUSE);
    judging_remove(index->fan_outs->judged, j);
    return have_room ? JUDGING_ROOM : JUDGING_REFUSED;
}

/* ---- the steps --------------------------------------------------------------------------------------------- */

static judging *next(const fan_outs *all) {
    for (size_t i = 0; i < all->judged->count; i++) {
        if (!all->judged->list[i]->is_over) return all->judged->list[i];
    }
    return NULL;
}

bool judging_is_under_way(const fan_outs *all) {
    return next(all) != NULL;
}

static void note(judging *j, server_string *key, queue_status status) {
    if (status != QUEUE_REFUSED && status != QUEUE_WAITS) return;
    j->status = status;
    if (j->by != NULL) sv.FreeString(NULL, j->by);
    j->by = sv.HoldString(NULL, key);
}

/* A session is found once for each of its filters, and judged for the first that stores the message. */
static bool is_to_be_judged(server_ctx *ctx, index_t *index, const judging *j, const match *to) {
    if (to->qos == 0 || to->session->judged == j->number || !index_session_is_valid(ctx, index, to->session))
        return false;
    to->session->judged = j->number;
    return true;
}

static void judge(server_ctx *ctx, index_t *index, judging *j, const matching *found) {
    fan_out_ahead ahead;
    fan_out_ahead_begin(&ahead, index, j);
    for (size_t i = 0; i < found->count && j->status != QUEUE_REFUSED; i++) {
        const match *to = &found->list[i];
        if (is_to_be_judged(ctx, index, j, to))
            note(j, to->session->key, fan_out_ahead_judge(&ahead, ctx, to->session, j->bytes));
    }
    for (size_t i = 0; i < found->share_count && j->status != QUEUE_REFUSED; i++)
        note(j, found->shares[i]->key, fan_out_ahead_judge_group(&ahead, ctx, found->shares[i], j->bytes));
}

void judging_step(server_ctx *ctx, index_t *index) {
    static matching found; /* its memory is kept */
    judging *j = next(index->fan_outs);
    const hmq_record record = {.topic = slice_of(j->topic), .publisher = slice_of(j->publisher)};
    size_t left = STEP_UNITS;
    index_pin(index, INDEX_SESSIONS);
    matching_begin(&found, false);
    bool is_whole = matching_find(&found, index, &record, &j->place, &left);
    queue_usage_judge_continue(j->number);
    judge(ctx, index, j, &found);
    queue_usage_judge_end();
    index_unpin(index, INDEX_SESSIONS);
    j->is_over = is_whole || j->status == QUEUE_REFUSED;
}
