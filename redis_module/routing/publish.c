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
#include "server/session_keys.h"
#include "server/slots_option.h"
#include "index/filters.h"
#include "index/index.h"
#include "index/overflow.h"
#include "index/sessions.h"
#include "index/shares.h"
#include "index/subscription.h"
#include "queue/allowance.h"
#include "queue/full.h"
#include "queue/queue.h"
#include "history/append.h"
#include "routing/delivery.h"
#include "routing/fan_out.h"
#include "routing/hold_back.h"
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

/* TOPIC.PUBLISH. */
typedef struct publish {
    publish_plan plan;
    publish_producer producer;
    slots_option slots;
} publish;

/* ---- matching ---------------------------------------------------------------------------------------------- */

typedef struct match {
    indexed_session *session;
    uint8_t qos;
    bool retain_as_published;
    uint32_t identifiers; /* place of the first in matches.identifiers, plus 1; 0: none */
} match;

/* The subscription identifiers of one match, as a list. */
typedef struct match_identifier {
    uint32_t identifier;
    uint32_t next; /* as above */
} match_identifier;

/* The sessions that match one publish; the arrays are kept for the next one. */
static struct {
    match *list;
    size_t count, room;
    size_t filters; /* number of matching filters */
    uint64_t mark;
    const indexed_session *publisher; /* NULL if it has no subscriptions */
    match_identifier *identifiers;
    size_t identifier_count, identifier_room;
    share **shares; /* the matching groups */
    size_t share_count, share_room;
    fan_out_way way;
    uint32_t *chosen; /* the identifiers of the match that is being delivered */
} matches;

static void add_identifier(match *m, uint32_t identifier) {
    if (identifier == 0) return;
    if (matches.identifier_count == matches.identifier_room) {
        matches.identifier_room = matches.identifier_room == 0 ? 64 : matches.identifier_room * 2;
        matches.identifiers = sv.Realloc(matches.identifiers, matches.identifier_room * sizeof *matches.identifiers);
        matches.chosen = sv.Realloc(matches.chosen, matches.identifier_room * sizeof *matches.chosen);
    }
    matches.identifiers[matches.identifier_count++] = (match_identifier){identifier, m->identifiers};
    m->identifiers = (uint32_t)matches.identifier_count;
}

/* Copies the identifiers to matches.chosen, in the order in which they were found; returns their number. */
static size_t gather_identifiers(const match *m) {
    size_t count = 0;
    for (uint32_t at = m->identifiers; at != 0; at = matches.identifiers[at - 1].next) count++;
    size_t place = count;
    for (uint32_t at = m->identifiers; at != 0; at = matches.identifiers[at - 1].next)
        matches.chosen[--place] = matches.identifiers[at - 1].identifier;
    return count;
}

static void add_share(share *s) {
    if (matches.share_count == matches.share_room) {
        matches.share_room = matches.share_room == 0 ? 16 : matches.share_room * 2;
        matches.shares = sv.Realloc(matches.shares, matches.share_room * sizeof *matches.shares);
    }
    matches.shares[matches.share_count++] = s;
}

static bool take_match(void *context, uint64_t subscriber, uint32_t options) {
    (void)context;
    matches.filters++;
    if (share_is_tagged(subscriber)) {
        add_share(share_of(subscriber));
        return true;
    }
    indexed_session *session = (indexed_session *)(uintptr_t)subscriber;
    if ((options & SUBSCRIPTION_NO_LOCAL) && session == matches.publisher) return true;
    uint8_t qos = options & SUBSCRIPTION_QOS;
    bool as_published = (options & SUBSCRIPTION_RETAIN_AS_PUBLISHED) != 0;
    if (session->match_mark == matches.mark) { /* several filters of one session: one copy, the largest QoS */
        match *m = &matches.list[session->match_slot];
        if (qos > m->qos) m->qos = qos;
        m->retain_as_published |= as_published;
        add_identifier(m, subscription_identifier(options));
        return true;
    }
    if (matches.count == matches.room) {
        matches.room = matches.room == 0 ? 64 : matches.room * 2;
        matches.list = sv.Realloc(matches.list, matches.room * sizeof *matches.list);
    }
    session->match_mark = matches.mark;
    session->match_slot = (uint32_t)matches.count;
    matches.list[matches.count] = (match){session, qos, as_published, 0};
    add_identifier(&matches.list[matches.count++], subscription_identifier(options));
    return true;
}

static const indexed_session *session_of_client(const index_t *index, hmq_slice client_id) {
    hmq_slice key = session_key_text(client_id);
    return key.len == 0 ? NULL : sv.DictGetC(index->sessions, (void *)(uintptr_t)key.data, key.len, NULL);
}

/* The number of matching sessions with cursors; only the first ones are looked at. */
static size_t count_cursors(const index_t *index) {
    size_t count = 0;
    if (sv.DictSize(index->cursors) == 0) return 0;
    for (size_t i = 0; i < matches.count && i < CURSORS_LOOKED_AT; i++)
        count += retained_cursors_stand(index, slice_of(matches.list[i].session->key));
    return count;
}

/* The matches stay valid until end_matches: the sessions are pinned. */
static void find_matches(index_t *index, const hmq_record *record) {
    index_pin(index, INDEX_SESSIONS);
    matches.count = matches.identifier_count = matches.share_count = matches.filters = 0;
    matches.mark++;
    matches.way = FAN_OUT_LATER;
    if (fan_out_is_used_up(record)) return;
    matches.publisher = session_of_client(index, record->publisher);
    hmq_trie_match(index->filters, (const char *)record->topic.data, record->topic.len, take_match, NULL);
    matches.way =
        fan_out_way_of(index, record, matches.count + matches.share_count, count_cursors(index), matches.filters);
}

static void end_matches(index_t *index) {
    index_unpin(index, INDEX_SESSIONS);
}

/* Keeps the matches that this command may serve. */
static void keep_own(server_ctx *ctx, index_t *index, slots_option *slots) {
    size_t kept = 0;
    for (size_t i = 0; i < matches.count; i++) {
        const indexed_session *session = matches.list[i].session;
        if (slots_state(session->slot) != SLOT_SERVED && !index_session_lives(ctx, index, session)) continue;
        if (slots_option_verdict(slots, session->slot) == SLOT_USE) matches.list[kept++] = matches.list[i];
    }
    matches.count = kept;
}

/* ---- room -------------------------------------------------------------------------------------------------- */

/* May one of the matches refuse the message?  (A share's queue has no policy of its own.) */
static bool may_be_refused(const index_t *index, const hmq_record *record) {
    if (record->qos == 0 || (matches.count == 0 && matches.share_count == 0)) return false;
    if (overflow_refuses((overflow)settings.session_overflow)) return true;
    if (session_index_refusing(index->opened) == 0) return false;
    for (size_t i = 0; i < matches.count; i++) {
        const session_entry *entry = session_index_find(index->opened, slice_of(matches.list[i].session->key));
        if (entry != NULL && entry->refuses) return true;
    }
    return false;
}

static queue_status judge(server_ctx *ctx, server_string *key, size_t bytes, const fan_out_ahead *ahead) {
    queue q;
    queue_status status = QUEUE_OK;
    if (queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE))
        status = queue_judge(&q, bytes, ahead->messages, ahead->bytes);
    queue_close(&q);
    return status;
}

/* The queue of the n-th target; NULL: the message will not be stored there. */
static server_string *queue_of_match(server_ctx *ctx, index_t *index, size_t n) {
    if (n >= matches.count) return matches.shares[n - matches.count]->key;
    const match *to = &matches.list[n];
    return to->qos > 0 && index_session_lives(ctx, index, to->session) ? to->session->key : NULL;
}

/* Is there room in all queues that refuse messages when they are full?  False after replying QUOTA (a queue refuses for
 * good) or QUEUEFULL (the publisher should retry): nothing is done then. */
static bool judge_all(server_ctx *ctx, index_t *index, const hmq_record *record) {
    server_string *waits = NULL;
    size_t bytes = hmq_record_size(record);
    fan_out_ahead ahead;
    fan_out_ahead_begin(&ahead, index);
    for (size_t n = 0; n < matches.count + matches.share_count; n++) {
        server_string *key = queue_of_match(ctx, index, n);
        if (key != NULL && n < matches.count) fan_out_ahead_of(&ahead, matches.list[n].session, (hmq_slice){0});
        if (n >= matches.count) fan_out_ahead_of(&ahead, NULL, slice_of(matches.shares[n - matches.count]->filter));
        queue_status status = key == NULL ? QUEUE_OK : judge(ctx, key, bytes, &ahead);
        if (status == QUEUE_WAITS) waits = key;
        if (status != QUEUE_REFUSED) continue;
        overflow_refuse(ctx, slice_of(key), OVERFLOW_REFUSE);
        return false;
    }
    if (waits != NULL) overflow_refuse(ctx, slice_of(waits), OVERFLOW_WAIT);
    return waits == NULL;
}

static bool have_room(server_ctx *ctx, index_t *index, const hmq_record *record) {
    if (matches.way != FAN_OUT_NOT &&
        !fan_out_has_room(ctx, index, record, matches.count + matches.share_count, matches.way))
        return false;
    if (!may_be_refused(index, record)) return true;
    queue_usage_judge_begin();
    bool have_room = judge_all(ctx, index, record);
    queue_usage_judge_end();
    return have_room;
}

/* The same, in the order of the client's publishes. */
static bool all_have_room(server_ctx *ctx, index_t *index, const hmq_record *record) {
    if (hold_back_refuses(record)) {
        reply_error(ctx, ERROR_PUBLISHER_HELD_BACK);
        return false;
    }
    if (have_room(ctx, index, record)) return true;
    hold_back_begin(record);
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
    return retained_write(ctx, index, record, quota_holder(index, record->topic, by));
}

/* The form in which the session of a match gets the message. */
static delivery_how how_of(const match *to, const hmq_record *record) {
    return (delivery_how){.qos = to->qos < record->qos ? to->qos : record->qos,
                          .retain = to->retain_as_published && record->retain,
                          .identifiers = matches.chosen,
                          .identifier_count = gather_identifiers(to)};
}

/* Delivers pending retained messages of the topic before the new message (routing/retained_cursors.h).  If that one is
 * delivered in steps: returns what these have to deliver before it; NULL: nothing. */
static server_string *hand_over_older(server_ctx *ctx, index_t *index, const hmq_record *record) {
    if (sv.DictSize(index->cursors) == 0 || matches.count == 0) return NULL;
    if (matches.way != FAN_OUT_NOT) return retained_encoded(ctx, index, record->topic);
    for (size_t i = 0; i < matches.count; i++) {
        const match *to = &matches.list[i];
        uint8_t qos = to->qos < record->qos ? to->qos : record->qos;
        retained_cursors_reach(ctx, index, to->session, record, qos);
    }
    return NULL;
}

/* Returns the number of sessions that get it in later steps. */
static long long fan_out_matches(server_ctx *ctx, index_t *index, const hmq_record *record,
                                 const server_string *older) {
    fan_out_writer w;
    fan_out_begin(&w, ctx, index, record, older);
    for (size_t i = 0; i < matches.count; i++) {
        delivery_how how = how_of(&matches.list[i], record);
        fan_out_add(&w, matches.list[i].session, &how);
    }
    long long groups = 0;
    for (size_t i = 0; i < matches.share_count; i++) {
        if (share_replays(index, slice_of(matches.shares[i]->filter))) continue; /* it reads the message from history */
        fan_out_add_group(&w, matches.shares[i]);
        groups++;
    }
    fan_out_end(&w);
    return (long long)matches.count + groups;
}

static void deliver_matches(server_ctx *ctx, index_t *index, const publish_plan *plan, message *m, long long *reached) {
    for (size_t i = 0; i < matches.count; i++) {
        const match *to = &matches.list[i];
        if (!index_session_lives(ctx, index, to->session)) continue;
        delivery_how how = how_of(to, &plan->record);
        if (plan->origin == PLAN_GATHERED)
            gather(ctx, index, to->session, m, &how, reached);
        else
            *reached += deliver(ctx, to->session, m, &how);
    }
}

/* `older` as in fan_out_begin. */
static void route(server_ctx *ctx, index_t *index, const publish_plan *plan, const server_string *older,
                  long long *reached) {
    if (matches.count == 0 && matches.share_count == 0) return;
    if (matches.way != FAN_OUT_NOT) {
        *reached += fan_out_matches(ctx, index, &plan->record, older);
        return;
    }
    message m;
    message_begin(&m, &plan->record, plan->record.time_ms);
    deliver_matches(ctx, index, plan, &m, reached);
    for (size_t i = 0; i < matches.share_count; i++) {
        share *s = matches.shares[i];
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
    if (replies && !all_have_room(ctx, index, record)) return false;
    if (keeps && is_one_too_many(ctx, index, record, &plan->by, replies)) {
        if (insists) return false;
        keeps = false;
    }
    bool is_writable = !keeps || retained_may_write(ctx, record->topic);
    if (!is_writable && !insists) keeps = false;
    /* Writes no history if the retained message will be refused. */
    if ((is_writable || !insists) && plan->keeps_history && !history_keep(ctx, index, record, replies)) {
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
    hmq_slice *words = count <= OPTIONS_ON_STACK ? small : sv.Alloc(count * sizeof *words);
    for (size_t i = 0; i < count; i++) words[i] = slice_of(a->argv[i]);
    bool is_right = true, taken;
    while (is_right && args_left(a)) {
        size_t at = (size_t)a->at;
        plan_option read = plan_read_option(a->ctx, &p->plan, words, count, &at);
        a->at = (int)at;
        if (read == PLAN_OPTION_UNKNOWN && args_take_word(a, "SLOTS"))
            is_right = slots_option_parse(a, &p->slots);
        else if (read == PLAN_OPTION_UNKNOWN)
            is_right = publish_producer_parse(a, &p->producer, &taken) && (taken || args_end(a));
        else
            is_right = read == PLAN_OPTION_READ;
    }
    if (words != small) sv.Free(words);
    if (!is_right) return false;
    if (p->producer.id != NULL && (can.cluster || p->slots.given)) {
        reply_error(a->ctx, ERROR_PRODUCER_NEEDS_MPUBLISH);
        return false;
    }
    if (!p->slots.given || p->plan.from.packet_id == 0) return true;
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
    if (p->slots.given) slots_served(&p->slots.asked); /* one view for the whole command */
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

bool topic_publish_gathered(server_ctx *ctx, const hmq_record *record, long long *reached) {
    if (can.cluster || record->retain || !index_is_current(ctx)) return false;
    index_t *index = index_of(ctx);
    find_matches(index, record);
    publish_plan plan = plan_of_record(record);
    plan.origin = PLAN_GATHERED;
    bool is_plain = matches.way == FAN_OUT_NOT && matches.share_count == 0 && !may_be_refused(index, record) &&
                    !hold_back_refuses(record);
    bool is_done = is_plain && carry_out(ctx, index, &plan, reached);
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
    for (size_t i = 0; i < matches.count && !p->refused; i++) {
        const indexed_session *session = matches.list[i].session;
        if (slots_state(session->slot) != SLOT_SERVED && !index_session_lives(ctx, index, session)) continue;
        if (is_new(p, publish_slots_judge(ctx, session->slot, p->number))) matches.list[kept++] = matches.list[i];
    }
    matches.count = kept;
    kept = 0;
    for (size_t i = 0; i < matches.share_count && !p->refused; i++) {
        share *s = matches.shares[i];
        if (is_new(p, publish_slots_judge_share(ctx, s, p->number))) matches.shares[kept++] = s;
    }
    matches.share_count = kept;
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
    switch (publisher_judge(ctx, &p.plan.from, p.plan.record.qos)) {
    case PUBLISHER_MAY: publish_once(ctx, &p); break;
    case PUBLISHER_REPEATS: sv.ReplyWithLongLong(ctx, -1); break;
    case PUBLISHER_REFUSED: break;
    }
    publisher_end(&p.plan.from);
    return SERVER_OK;
}
