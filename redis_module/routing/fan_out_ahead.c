/* fan_out_ahead.c - adds up what is on its way to a queue. */
#include "routing/fan_out_ahead.h"

#include "topic/topic.h"
#include "server/session_keys.h"
#include "index/overflow.h"
#include "index/sessions.h"
#include "index/usage.h"
#include "routing/fan_out_pending.h"

#define LOOKS_MOST 4096U /* less than a millisecond */
#define LOOK_COST 3U     /* of the first filter that is looked at */
#define LOOK_BYTES 512U   /* of a topic: these take as long as one more look */

void fan_out_ahead_begin(fan_out_ahead *ahead, const index_t *index, const judging *before) {
    *ahead = (fan_out_ahead){.index = index, .before = before, .looks = LOOKS_MOST};
}

static bool is_for_group(hmq_slice group, hmq_slice topic) {
    hmq_slice inner;
    return share_is(group, &inner) &&
           hmq_topic_matches((const char *)inner.data, inner.len, (const char *)topic.data, topic.len);
}

/* True without looking, once it has looked much. */
static bool may_be_for(fan_out_ahead *ahead, const indexed_session *session, hmq_slice group, hmq_slice topic) {
    size_t filters = session == NULL ? 1 : sv.DictSize(session->filters);
    size_t looks = LOOK_COST + filters * (1 + topic.len / LOOK_BYTES);
    if (looks > ahead->looks) {
        ahead->looks = 0;
        return true;
    }
    ahead->looks -= looks;
    return session == NULL ? is_for_group(group, topic) : index_session_matches(session, topic);
}

static void add(fan_out_ahead *ahead, size_t bytes) {
    ahead->messages++;
    ahead->bytes += bytes;
}

static void add_judged(fan_out_ahead *ahead, const indexed_session *session, hmq_slice group) {
    const judgings *all = ahead->index->fan_outs->judged;
    for (size_t i = 0; i < all->count && all->list[i] != ahead->before; i++) {
        const judging *j = all->list[i];
        if (judging_is_room_kept(j) && may_be_for(ahead, session, group, slice_of(j->topic))) add(ahead, j->bytes);
    }
}

static void add_pending(fan_out_ahead *ahead, const indexed_session *session, hmq_slice group) {
    const fan_outs *all = ahead->index->fan_outs;
    server_dict_iter *iter = sv.DictIteratorStartC(all->by_name, "^", NULL, 0);
    void *value;
    size_t len, messages = ahead->messages, bytes = ahead->bytes;
    while (ahead->looks > 0 && sv.DictNextC(iter, &len, &value) != NULL) {
        const fan_out *f = value;
        if (may_be_for(ahead, session, group, slice_of(f->topic))) add(ahead, f->record_bytes);
    }
    sv.DictIteratorStop(iter);
    if (ahead->looks > 0) return;
    ahead->messages = messages + sv.DictSize(all->by_name);
    ahead->bytes = bytes + all->all_bytes;
}

static queue_status judge(fan_out_ahead *ahead, server_ctx *ctx, const server_string *key, size_t bytes) {
    queue q;
    queue_status status = QUEUE_OK;
    if (queue_open(&q, ctx, slice_of(key), SERVER_READ | SERVER_WRITE))
        status = queue_check_room(&q, bytes, ahead->messages, ahead->bytes);
    queue_close(&q);
    return status;
}

static void look(fan_out_ahead *ahead, const indexed_session *session, hmq_slice group) {
    ahead->messages = ahead->bytes = 0;
    if (ahead->index->fan_outs->judged->count > 0) add_judged(ahead, session, group);
    if (fan_out_any(ahead->index)) add_pending(ahead, session, group);
}

bool fan_out_ahead_may_refuse(const index_t *index, const indexed_session *session) {
    if (overflow_refuses((overflow)settings.session_overflow)) return true;
    const session_entry *entry = session_index_find(index->opened, slice_of(session->key));
    return entry != NULL && entry->refuses;
}

queue_status fan_out_ahead_judge(fan_out_ahead *ahead, server_ctx *ctx, const indexed_session *session, size_t bytes) {
    ahead->messages = ahead->bytes = 0;
    if (fan_out_ahead_may_refuse(ahead->index, session))
        look(ahead, session, (hmq_slice){0});
    else if (usage_era() == 0)
        return QUEUE_OK; /* never refuses, and takes no room from a queue that may refuse */
    return judge(ahead, ctx, session->key, bytes);
}

queue_status fan_out_ahead_judge_group(fan_out_ahead *ahead, server_ctx *ctx, const share *group, size_t bytes) {
    look(ahead, NULL, slice_of(group->filter));
    return judge(ahead, ctx, group->key, bytes);
}
