/* publish.c - TOPIC.PUBLISH: finds the matching sessions and delivers the message to each.
 *
 * In a cluster every node matches its own sessions.  Slots that move between nodes are not served.  Without the option SLOTS
 * the whole publish is refused before anything is stored; with it the other slots are served, and the reply names the rest
 * (server/slots_option.h).  The retained message is in the slot of its key, and history in the slot of the topic's shard,
 * so one node writes each. */
#include "routing/publish.h"

#include <string.h>

#include "topic/record.h"
#include "server/args.h"
#include "server/errors.h"
#include "server/memory.h"
#include "server/session_keys.h"
#include "server/slots_option.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/overflow.h"
#include "index/sessions.h"
#include "index/shares.h"
#include "queue/allowance.h"
#include "queue/full.h"
#include "queue/queue.h"
#include "history/append.h"
#include "routing/delivery.h"
#include "routing/fan_out.h"
#include "routing/fan_out_ahead.h"
#include "routing/hold_back.h"
#include "routing/home.h"
#include "routing/judging.h"
#include "routing/matching.h"
#include "routing/plan.h"
#include "routing/publish_producer.h"
#include "routing/publish_slots.h"
#include "routing/publisher.h"
#include "routing/quota.h"
#include "routing/retained.h"
#include "routing/retained_cursors.h"
#include "routing/share.h"
#include "routing/share_replay_keys.h"

#define OPTIONS_ON_STACK 64
#define CURSORS_LOOKED_AT 256U /* more sessions get the message in steps in any case */

/* Checking the queue of one session costs as much as finding and serving this many sessions. */
#define JUDGED_COST 4U
#define LOOKED_AT_COST 2U /* ... and finding that a session's queue never refuses, this many */

/* TOPIC.PUBLISH. */
typedef struct publish {
    publish_plan plan;
    publish_producer producer;
    slots_option slots;
    publish_home home;
} publish;

/* ---- matching ---------------------------------------------------------------------------------------------- */

/* The sessions and groups that match one publish, and how they get it. */
static struct {
    matching found;
    fan_out_way way;
} matches;

/* The number of matching sessions with cursors; only the first ones are looked at. */
static size_t count_cursors(const index_t *index) {
    size_t count = 0;
    if (sv.DictSize(index->cursors) == 0) return 0;
    for (size_t i = 0; i < matches.found.count && i < CURSORS_LOOKED_AT; i++)
        count += retained_cursors_has_any(index, slice_of(matches.found.list[i].session->key));
    return count;
}

static size_t count_targets(void) {
    return matches.found.count + matches.found.share_count;
}

/* Is there nobody to deliver to? */
static bool is_for_nobody(void) {
    return count_targets() == 0 && matches.way != FAN_OUT_UNMATCHED;
}

/* May there be queues that refuse the message?  (A share's queue has no policy of its own.) */
static bool some_refuse(const index_t *index, const hmq_record *record) {
    return record->qos > 0 &&
           (overflow_refuses((overflow)settings.session_overflow) || session_index_refusing(index->opened) > 0);
}

static size_t units_of(const index_t *index, const hmq_record *record) {
    size_t units = can.cluster ? SIZE_MAX : fan_out_match_units(record);
    if (can.cluster || !some_refuse(index, record)) return units;
    return units / (overflow_refuses((overflow)settings.session_overflow) ? JUDGED_COST : LOOKED_AT_COST);
}

/* The matches stay valid until end_matches: the sessions are pinned. */
static void find_matches(index_t *index, const hmq_record *record) {
    index_pin(index, INDEX_SESSIONS);
    matching_begin(&matches.found, false);
    matches.way = FAN_OUT_LATER;
    if (fan_out_is_used_up(record)) return;
    hmq_trie_place place = {.depth = 0};
    size_t units = units_of(index, record), left = units;
    bool is_whole = matching_find(&matches.found, index, record, &place, &left);
    size_t spent = units - left, for_targets = count_targets() * MATCHING_SESSION_UNITS;
    size_t searched = spent > for_targets ? spent - for_targets : 0;
    matches.way = fan_out_decide(index, record, count_targets(), count_cursors(index), searched, is_whole);
}

static void end_matches(index_t *index) {
    index_unpin(index, INDEX_SESSIONS);
}

/* Keeps the matches that this command may serve. */
static void keep_own(server_ctx *ctx, index_t *index, slots_option *slots) {
    size_t kept = 0;
    for (size_t i = 0; i < matches.found.count; i++) {
        const indexed_session *session = matches.found.list[i].session;
        if (slots_state(session->slot) != SLOT_SERVED && !index_session_is_valid(ctx, index, session)) continue;
        if (slots_option_verdict(slots, session->slot) == SLOT_USE) matches.found.list[kept++] = matches.found.list[i];
    }
    matches.found.count = kept;
}

/* ---- room -------------------------------------------------------------------------------------------------- */

/* May one of the matches refuse the message? */
static bool may_be_refused(const index_t *index, const hmq_record *record) {
    if (count_targets() == 0 || !some_refuse(index, record)) return false;
    if (overflow_refuses((overflow)settings.session_overflow)) return true;
    for (size_t i = 0; i < matches.found.count; i++) {
        if (fan_out_ahead_may_refuse(index, matches.found.list[i].session)) return true;
    }
    return false;
}

/* The queue of the n-th target.  OK also if the message will not be stored there. */
static queue_status judge(server_ctx *ctx, index_t *index, fan_out_ahead *ahead, size_t n, size_t bytes,
                          server_string **key) {
    if (n >= matches.found.count) {
        const share *group = matches.found.shares[n - matches.found.count];
        *key = group->key;
        return fan_out_ahead_judge_group(ahead, ctx, group, bytes);
    }
    const match *to = &matches.found.list[n];
    *key = to->session->key;
    if (to->qos == 0 || !index_session_is_valid(ctx, index, to->session)) return QUEUE_OK;
    return fan_out_ahead_judge(ahead, ctx, to->session, bytes);
}

/* Is there room in all queues that refuse messages when they are full?  False after replying QUOTA (a queue refuses for
 * good) or QUEUEFULL (the publisher should retry): nothing is done then. */
static bool judge_all(server_ctx *ctx, index_t *index, const hmq_record *record) {
    server_string *waits = NULL, *key;
    size_t bytes = hmq_record_size(record);
    fan_out_ahead ahead;
    fan_out_ahead_begin(&ahead, index, NULL);
    for (size_t n = 0; n < count_targets(); n++) {
        queue_status status = judge(ctx, index, &ahead, n, bytes, &key);
        if (status == QUEUE_WAITS) waits = key;
        if (status != QUEUE_REFUSED) continue;
        overflow_refuse(ctx, slice_of(key), OVERFLOW_REFUSE);
        return false;
    }
    if (waits != NULL) overflow_refuse(ctx, slice_of(waits), OVERFLOW_WAIT);
    return waits == NULL;
}

static bool have_room(server_ctx *ctx, index_t *index, const hmq_record *record) {
    if (matches.way != FAN_OUT_NOT && !fan_out_has_room(ctx, index, record, count_targets(), matches.way)) return false;
    if (matches.way == FAN_OUT_UNMATCHED && some_refuse(index, record)) return fan_out_is_judged(ctx, index, record);
    judging_forget(index, record);
    if (!may_be_refused(index, record)) return true;
    queue_usage_judge_begin();
    bool have_room = judge_all(ctx, index, record);
    queue_usage_judge_end();
    return have_room;
}

/* The same, in the order of the client's publishes. */
static bool all_have_room(server_ctx *ctx, index_t *index, const publish_plan *plan) {
    if (hold_back_is_active(plan)) {
        reply_error(ctx, ERROR_PUBLISHER_HELD_BACK);
        return false;
    }
    if (have_room(ctx, index, &plan->record)) return true;
    hold_back_begin(plan);
    return false;
}

/* Would it write a retained message that a limit refuses? */
static bool is_one_too_many(server_ctx *ctx, const index_t *index, const hmq_record *record, const quota_claim *by,
                            bool reply) {
    bool is_kept = record->retain && record->payload.len > 0 && !hmq_record_has_zero_ttl(record);
    return is_kept && !quota_allows_retained(ctx, index, record->topic, by, reply);
}

/* The user for whom a retained message counts: that of the publishing client, if this server has its session. */
static quota_claim claim_of(const index_t *index, const hmq_record *record) {
    return record->retain ? quota_of_client(index, record->publisher) : (quota_claim){.most = -1};
}

static bool keep_retained(server_ctx *ctx, index_t *index, const hmq_record *record, const quota_claim *by) {
    return retained_write(ctx, index, record, quota_retained_user(index, record->topic, by));
}

/* Delivers pending retained messages of the topic before the new message (routing/retained_cursors.h).  If the new message
 * is delivered in steps, returns the message that the steps deliver before it; NULL: none. */
static server_string *hand_over_older(server_ctx *ctx, index_t *index, const hmq_record *record) {
    if (sv.DictSize(index->cursors) == 0 || (matches.found.count == 0 && matches.way != FAN_OUT_UNMATCHED)) return NULL;
    if (matches.way != FAN_OUT_NOT) return retained_encoded(ctx, index, record->topic);
    for (size_t i = 0; i < matches.found.count; i++) {
        const match *to = &matches.found.list[i];
        uint8_t qos = to->qos < record->qos ? to->qos : record->qos;
        retained_cursors_before_delivery(ctx, index, to->session, record, qos);
    }
    return NULL;
}

/* Returns the number of sessions that get it in later steps. */
static long long fan_out_matches(server_ctx *ctx, index_t *index, const hmq_record *record,
                                 const server_string *older) {
    fan_out_writer w;
    fan_out_begin(&w, ctx, index, record, older);
    if (matches.way == FAN_OUT_UNMATCHED) {
        fan_out_end_unmatched(&w);
        return count_targets() == 0 ? 1 : (long long)count_targets(); /* there may be some */
    }
    for (size_t i = 0; i < matches.found.count; i++) {
        delivery_how how = matching_how(&matches.found, &matches.found.list[i], record);
        fan_out_add(&w, matches.found.list[i].session, &how);
    }
    long long groups = 0;
    for (size_t i = 0; i < matches.found.share_count; i++) {
        if (share_replays(index, slice_of(matches.found.shares[i]->filter)))
            continue; /* it reads the message from history */
        fan_out_add_group(&w, slice_of(matches.found.shares[i]->filter));
        groups++;
    }
    fan_out_end(&w);
    return (long long)matches.found.count + groups;
}

static void deliver_matches(server_ctx *ctx, index_t *index, const publish_plan *plan, message *m, long long *reached) {
    for (size_t i = 0; i < matches.found.count; i++) {
        const match *to = &matches.found.list[i];
        if (!index_session_is_valid(ctx, index, to->session)) continue;
        delivery_how how = matching_how(&matches.found, to, &plan->record);
        if (plan->origin == PLAN_GATHERED)
            gather(ctx, index, to->session, m, &how, reached);
        else
            *reached += deliver(ctx, to->session, m, &how);
    }
}

/* `older` as in fan_out_begin. */
static void route(server_ctx *ctx, index_t *index, const publish_plan *plan, const server_string *older,
                  long long *reached) {
    if (is_for_nobody()) return;
    if (matches.way != FAN_OUT_NOT) {
        *reached += fan_out_matches(ctx, index, &plan->record, older);
        return;
    }
    message m;
    message_begin(&m, &plan->record, plan->record.time_ms);
    deliver_matches(ctx, index, plan, &m, reached);
    for (size_t i = 0; i < matches.found.share_count; i++) {
        share *s = matches.found.shares[i];
        if (!share_replays(index, slice_of(s->filter))) *reached += share_deliver(ctx, index, s, &m);
    }
    message_end(&m);
}

/* Carries out every publish, once its matches are found: history, the retained message, the sessions.  Steps that can be
 * refused come first.  False: it was refused, and nothing has been changed. */
static bool carry_out(server_ctx *ctx, index_t *index, const publish_plan *plan, long long *reached) {
    const hmq_record *record = &plan->record;
    bool replies = plan->origin == PLAN_OF_COMMAND, insists = plan->origin != PLAN_OF_MODULE;
    bool keeps = plan->keeps_retained;
    if (replies && !all_have_room(ctx, index, plan)) return false;
    if (keeps && is_one_too_many(ctx, index, record, &plan->by, replies)) {
        if (insists) return false;
        keeps = false;
    }
    bool is_writable = !keeps || retained_may_write(ctx, record->topic);
    if (!is_writable && !insists) keeps = false;
    /* Writes no history if the retained message will be refused. */
    if ((is_writable || !insists) && plan->keeps_history && !history_append_publish(ctx, index, record, replies)) {
        if (insists) return false;
        counters.history_refused++;
    }
    server_string *older = hand_over_older(ctx, index, record);
    bool is_refused = keeps && !keep_retained(ctx, index, record, &plan->by) && insists;
    if (!is_refused) {
        counters.topic_published += insists;
        route(ctx, index, plan, older, reached);
    }
    if (older != NULL) sv.FreeString(NULL, older);
    return !is_refused;
}

/* ---- the command ------------------------------------------------------------------------------------------- */

/* Reads the options.  False after replying an error. */
static bool parse_publish(args *a, publish *p) {
    hmq_slice small[OPTIONS_ON_STACK];
    size_t count = (size_t)a->argc;
    hmq_slice *words = scratch_alloc(small, sizeof small, count * sizeof *words);
    for (size_t i = 0; i < count; i++) words[i] = slice_of(a->argv[i]);
    bool is_right = true, taken;
    while (is_right && args_left(a)) {
        size_t at = (size_t)a->at;
        plan_option read = plan_read_option(a->ctx, &p->plan, words, count, &at);
        a->at = (int)at;
        if (read != PLAN_OPTION_UNKNOWN)
            is_right = read == PLAN_OPTION_READ;
        else if (args_take_word(a, "SLOTS"))
            is_right = slots_option_parse(a, &p->slots);
        else
            is_right = publish_home_parse(a, &p->home, &taken) &&
                       (taken || publish_producer_parse(a, &p->producer, &taken)) && (taken || args_end(a));
    }
    scratch_free(words, small);
    if (!is_right) return false;
    if (p->producer.id != NULL && (can.cluster || p->slots.given)) {
        reply_error(a->ctx, ERROR_PRODUCER_NEEDS_MPUBLISH);
        return false;
    }
    if (!p->slots.given || p->plan.from.packet_id == 0)
        return publish_home_check(a->ctx, &p->home, &p->slots, &p->plan.from);
    reply_error(a->ctx, ERROR_PACKET_AND_SLOTS);
    return false;
}

/* Does this node write the retained message?  *refused: the publish is refused, and the error has been replied. */
static bool keeps_retained(server_ctx *ctx, publish *p, bool *refused) {
    if (!p->plan.record.retain) return false;
    if (!can.cluster) return true;
    unsigned slot = retained_slot(p->plan.record.topic);
    slot_verdict verdict = slots_option_verdict(&p->slots, slot);
    *refused = verdict == SLOT_LEAVE && !p->slots.given;
    if (*refused) {
        reply_error(ctx, ERROR_RETAINED_ELSEWHERE, shown_slice(p->plan.record.topic), slot);
    }
    return verdict == SLOT_USE;
}

/* The same for history. */
static bool keeps_history(server_ctx *ctx, index_t *index, publish *p, bool *refused) {
    unsigned slot;
    if (hmq_record_has_zero_ttl(&p->plan.record)) return false;
    if (!can.cluster) return true;
    if (!history_topic_slot(ctx, index, p->plan.record.topic, &slot)) return false;
    slot_verdict verdict = slots_option_verdict(&p->slots, slot);
    *refused = verdict == SLOT_LEAVE && !p->slots.given;
    if (*refused) {
        reply_error(ctx, ERROR_HISTORY_ELSEWHERE, shown_slice(p->plan.record.topic), slot);
    }
    return verdict == SLOT_USE;
}

static int reply_published(server_ctx *ctx, const publish *p, long long reached) {
    if (!p->slots.given) return sv.ReplyWithLongLong(ctx, reached);
    if (p->home.given) {
        publish_home_end(ctx, &p->slots, &p->plan.from, reached);
        return SERVER_OK;
    }
    sv.ReplyWithArray(ctx, 2);
    sv.ReplyWithLongLong(ctx, reached);
    slots_option_reply_unserved(ctx, &p->slots);
    return SERVER_OK;
}

/* Continues after the matches are found. */
static void publish_matched(server_ctx *ctx, index_t *index, publish *p) {
    long long reached = 0;
    if (can.cluster) keep_own(ctx, index, &p->slots);
    if (p->slots.blocks && !p->slots.given) {
        reply_error(ctx, ERROR_PUBLISH_MOVING, p->slots.blocked_slot);
        return;
    }
    p->plan.by = claim_of(index, &p->plan.record);
    if (!carry_out(ctx, index, &p->plan, &reached)) return;
    publisher_note(ctx, &p->plan.from);
    if (p->producer.id != NULL) publish_producer_note(ctx, &p->producer);
    reply_published(ctx, p, reached);
}

static void publish_now(server_ctx *ctx, publish *p) {
    index_t *index = index_of(ctx);
    bool refused = false;
    if (p->slots.given && !p->home.given) slots_served(&p->slots.asked); /* one view for the whole command */
    p->plan.keeps_retained = keeps_retained(ctx, p, &refused);
    p->plan.keeps_history = !refused && keeps_history(ctx, index, p, &refused);
    if (refused) return;
    find_matches(index, &p->plan.record);
    publish_matched(ctx, index, p);
    end_matches(index);
}

/* Publishes it, unless its producer published it before. */
static void publish_once(server_ctx *ctx, publish *p) {
    producer_chunk chunk = PRODUCER_CHUNK_NEW;
    if (p->producer.id != NULL) {
        p->producer.key = publish_producer_key(slice_of(p->producer.id));
        chunk = publish_producer_judge(ctx, &p->producer);
    }
    if (chunk == PRODUCER_CHUNK_NEW) publish_now(ctx, p);
    if (chunk == PRODUCER_CHUNK_KNOWN) sv.ReplyWithLongLong(ctx, -1);
    if (p->producer.key != NULL) sv.FreeString(NULL, p->producer.key);
}

/* The module's own messages are published on one node: history of another node counts as refused. */
static bool history_is_kept_here(server_ctx *ctx, index_t *index, const hmq_record *record) {
    unsigned slot;
    if (!can.cluster) return true;
    if (!history_topic_slot(ctx, index, record->topic, &slot)) return false;
    if (slots_state(slot) == SLOT_SERVED) return true;
    counters.history_refused++;
    return false;
}

long long topic_publish(server_ctx *ctx, const hmq_record *record, const quota_claim *by) {
    index_t *index = index_of(ctx);
    slots_option own;
    long long reached = 0;
    publish_plan plan = plan_of_record(record);
    plan.origin = PLAN_OF_MODULE;
    plan.by = *by;
    slots_option_begin(&own);
    find_matches(index, record);
    if (can.cluster) keep_own(ctx, index, &own);
    if (can.cluster && slots_state(retained_slot(record->topic)) != SLOT_SERVED) plan.keeps_retained = false;
    plan.keeps_history = plan.keeps_history && history_is_kept_here(ctx, index, record);
    carry_out(ctx, index, &plan, &reached);
    end_matches(index);
    return reached;
}

long long topic_publish_one(server_ctx *ctx, const hmq_record *record) {
    index_t *index = index_of(ctx);
    long long reached = 0;
    publish_plan plan = plan_of_record(record);
    find_matches(index, record);
    plan.by = claim_of(index, record);
    bool is_done = carry_out(ctx, index, &plan, &reached);
    end_matches(index);
    return is_done ? reached : -1;
}

/* Carries out a gathered publish, once its matches are found. */
static bool gather_matched(server_ctx *ctx, index_t *index, publish_plan *plan, long long *reached) {
    const hmq_record *record = &plan->record;
    plan->origin = PLAN_GATHERED;
    bool is_plain = matches.way == FAN_OUT_NOT && matches.found.share_count == 0 && !may_be_refused(index, record) &&
                    !hold_back_is_active(plan);
    return is_plain && carry_out(ctx, index, plan, reached);
}

bool topic_publish_gathered(server_ctx *ctx, const hmq_record *record, long long *reached) {
    if (can.cluster || record->retain || !index_is_current(ctx)) return false;
    index_t *index = index_of(ctx);
    publish_plan plan = plan_of_record(record);
    find_matches(index, record);
    bool is_done = gather_matched(ctx, index, &plan, reached);
    end_matches(index);
    return is_done;
}

bool topic_publish_gathered_to(server_ctx *ctx, const hmq_record *record, slots_option *slots, long long *reached) {
    index_t *index = index_of(ctx);
    unsigned slot;
    if (record->retain || history_topic_slot(ctx, index, record->topic, &slot)) return false;
    publish_plan plan = plan_of_record(record);
    plan.keeps_history = false; /* no store takes the topic */
    find_matches(index, record);
    keep_own(ctx, index, slots);
    bool is_done = !slots->blocks && gather_matched(ctx, index, &plan, reached);
    end_matches(index);
    return is_done;
}

/* ---- to some slots, perhaps not for the first time ----------------------------------------------------------- */

/* The remaining work for a message on this node. */
typedef struct part {
    uint64_t number; /* the producer's number */
    bool refused; /* after replying an error */
    bool new, known; /* some target does not have it yet; some target already has it */
} part;

static bool is_new(part *p, target judged) {
    p->refused = p->refused || judged == TARGET_REFUSED;
    p->known = p->known || judged == TARGET_KNOWN;
    p->new = p->new || judged == TARGET_NEW;
    return judged == TARGET_NEW;
}

static void keep_new(server_ctx *ctx, index_t *index, part *p) {
    size_t kept = 0;
    for (size_t i = 0; i < matches.found.count && !p->refused; i++) {
        const indexed_session *session = matches.found.list[i].session;
        if (slots_state(session->slot) != SLOT_SERVED && !index_session_is_valid(ctx, index, session)) continue;
        if (is_new(p, publish_slots_judge(ctx, session->slot, p->number)))
            matches.found.list[kept++] = matches.found.list[i];
    }
    matches.found.count = kept;
    kept = 0;
    for (size_t i = 0; i < matches.found.share_count && !p->refused; i++) {
        share *s = matches.found.shares[i];
        if (is_new(p, publish_slots_judge_share(ctx, s, p->number))) matches.found.shares[kept++] = s;
    }
    matches.found.share_count = kept;
}

static topic_part publish_part(server_ctx *ctx, index_t *index, const hmq_record *record, uint64_t number,
                               long long *reached) {
    part p = {.number = number};
    unsigned slot;
    publish_plan plan = plan_of_record(record);
    plan.keeps_retained = record->retain && is_new(&p, publish_slots_judge(ctx, retained_slot(record->topic), number));
    plan.keeps_history = plan.keeps_history && !p.refused && history_topic_slot(ctx, index, record->topic, &slot) &&
                         is_new(&p, publish_slots_judge(ctx, slot, number));
    keep_new(ctx, index, &p);
    if (p.refused) return TOPIC_PART_REFUSED;
    if (!p.new) return p.known ? TOPIC_PART_KNOWN : TOPIC_PART_NONE;
    plan.by = claim_of(index, record);
    return carry_out(ctx, index, &plan, reached) ? TOPIC_PART_PUBLISHED : TOPIC_PART_REFUSED;
}

topic_part topic_publish_part(server_ctx *ctx, const hmq_record *record, uint64_t number, long long *reached) {
    index_t *index = index_of(ctx);
    find_matches(index, record);
    topic_part published = publish_part(ctx, index, record, number, reached);
    end_matches(index);
    return published;
}

int topic_publish_command(server_ctx *ctx, server_string **argv, int argc) {
    if (argc < 3) return sv.WrongArity(ctx);
    args a = args_begin(ctx, argv, argc);
    a.at = 3;
    publish p = {.plan = plan_of_words(slice_of(argv[1]), slice_of(argv[2]), sv.Milliseconds())};
    slots_option_begin(&p.slots);
    hmq_topic_error error = hmq_topic_check_name((const char *)p.plan.record.topic.data, p.plan.record.topic.len);
    if (error != HMQ_TOPIC_OK) return reply_invalid_topic(ctx, "the topic", argv[1], error);
    if (!parse_publish(&a, &p)) return SERVER_OK;
    if (p.home.given) { /* the slots check the epoch: the publisher's session may be on another node */
        if (publish_home_judge(ctx, &p.home, &p.slots, &p.plan.from) == HOME_TAKES) publish_now(ctx, &p);
        return SERVER_OK;
    }
    switch (publisher_judge(ctx, &p.plan.from, p.plan.record.qos)) {
    case PUBLISHER_MAY: publish_once(ctx, &p); break;
    case PUBLISHER_REPEATS: sv.ReplyWithLongLong(ctx, -1); break;
    case PUBLISHER_REFUSED: break;
    }
    publisher_end(&p.plan.from);
    return SERVER_OK;
}
