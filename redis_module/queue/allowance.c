/* allowance.c - how much more a queue may get. */
#include "queue/allowance.h"

#include "server/errors.h"
#include "index/sessions.h"
#include "index/shares.h"
#include "index/usage.h"
#include "queue/bytes.h"
#include "queue/look.h"
#include "queue/notes.h"
#include "queue/usage.h"

#define COUNTED_AT_ONCE 64 /* messages */

/* ---- counting ---------------------------------------------------------------------------------------------- */

static void count(const queue_account *s, queue *q) {
    const queue_note *note = queue_note_find(q);
    bool is_noted = note != NULL && note->is_counted && note->length == queue_length(q) && note->unknown == 0;
    bool is_partial = note != NULL && note->look.serial > 0;
    if (is_noted || !is_partial) s->queue->doubted = false;
    if (is_noted)
        queue_usage_set(s, q, note->bytes);
    else if (queue_length(q) <= COUNTED_AT_ONCE)
        queue_usage_set(s, q, queue_count_bytes(q));
    else
        queue_look_continue(q, NULL);
}

static bool is_primary(server_ctx *ctx) {
    return (sv.GetContextFlags(ctx) & (SERVER_CTX_MASTER | SERVER_CTX_LOADING)) == SERVER_CTX_MASTER;
}

bool queue_usage_look(queue *q) {
    queue_account s = queue_account_of(q);
    if (s.queue == NULL || !is_primary(q->ctx) || (queue_account_is_current(&s, q) && !s.queue->doubted)) return true;
    count(&s, q);
    return queue_account_is_current(&s, q);
}

/* ---- how much more ----------------------------------------------------------------------------------------- */

static struct {
    unsigned long long number; /* of the judgement that is under way */
    bool is_under_way, in_steps;
} judgement;

static usage_sum *sum_of(usage_reserved *all) {
    return judgement.in_steps ? &all->in_steps : &all->at_once;
}

static size_t reserved(usage_reserved *all) {
    const usage_sum *sum = sum_of(all);
    return judgement.is_under_way && sum->era == judgement.number ? sum->bytes : 0;
}

static size_t rest(size_t bound, size_t used) {
    return bound > used ? bound - used : 0;
}

static size_t bound_of_user(const session_entry *entry) {
    return (size_t)(entry->user_bytes >= 0 ? entry->user_bytes : settings.max_queue_bytes_per_user);
}

static void lower(queue_allowance *allowance, size_t room, queue_cause cause) {
    if (allowance->most - allowance->has <= room) return;
    allowance->most = allowance->has + room;
    allowance->cause = cause;
}

/* By the maximum of the database. */
static void share_out(queue_allowance *allowance, const queue_account *s) {
    size_t used = usage_bytes(&s->all->queued) + reserved(&s->all->reserved);
    size_t free_bytes = rest((size_t)settings.max_queue_bytes, used);
    lower(allowance, rest(free_bytes, allowance->has), QUEUE_CAUSE_DATABASE);
    if (s->user == NULL) return;
    size_t of_user = usage_bytes(&s->user->queued) + reserved(&s->user->reserved);
    lower(allowance, rest(2 * free_bytes, of_user), QUEUE_CAUSE_DATABASE);
}

queue_allowance queue_usage_allowance(queue *q) {
    queue_allowance allowance = {.most = SIZE_MAX};
    queue_account s = queue_account_of(q);
    if (s.queue == NULL) return allowance;
    if (!queue_account_is_current(&s, q)) count(&s, q);
    if (!queue_account_is_current(&s, q)) return allowance;
    allowance.counts = true;
    allowance.has = s.queue->bytes;
    if (s.user != NULL && bound_of_user(s.entry) > 0) {
        size_t used = usage_bytes(&s.user->queued) + reserved(&s.user->reserved);
        lower(&allowance, rest(bound_of_user(s.entry), used), QUEUE_CAUSE_USER);
    }
    if (settings.max_queue_bytes > 0) share_out(&allowance, &s);
    return allowance;
}

bool queue_usage_allows(server_ctx *ctx, hmq_slice session, size_t bytes) {
    queue q;
    if (usage_era() == 0) return true;
    queue_allowance allowance = {.most = SIZE_MAX};
    if (queue_open(&q, ctx, session, SERVER_READ)) allowance = queue_usage_allowance(&q);
    queue_close(&q);
    return bytes <= allowance.most - allowance.has;
}

static void begin(unsigned long long number, bool in_steps) {
    judgement.number = number;
    judgement.in_steps = in_steps;
    judgement.is_under_way = true;
}

void queue_usage_judge_begin(void) {
    static unsigned long long last;
    begin(++last, false);
}

void queue_usage_judge_continue(unsigned long long number) {
    begin(number, true);
}

void queue_usage_judge_end(void) {
    judgement.is_under_way = false;
}

static void reserve(usage_reserved *all, size_t bytes) {
    usage_sum *sum = sum_of(all);
    sum->bytes = reserved(all) + bytes;
    sum->era = judgement.number;
}

void queue_usage_reserve(queue *q, size_t bytes) {
    queue_account s = judgement.is_under_way ? queue_account_of(q) : (queue_account){0};
    if (s.queue == NULL) return;
    reserve(&s.all->reserved, bytes);
    if (s.user != NULL) reserve(&s.user->reserved, bytes);
}

void queue_usage_full(queue *q, queue_cause cause) {
    if (cause == QUEUE_CAUSE_OWN) return;
    queue_account s = queue_account_of(q);
    bool of_user = cause == QUEUE_CAUSE_USER;
    counters.user_bytes_full += of_user;
    counters.queue_bytes_full += !of_user;
    if (s.queue == NULL) return;
    hmq_slice who = s.user != NULL ? slice_of(s.user->name) : q->session;
    if (!quota_may_log(s.user)) return;
    sv.Log(q->ctx, "warning",
           "the queues of %s have %zu bytes, all of the database %zu: %s is reached, so the overflow policies of the "
           "sessions apply; logged at most once in %d s",
           shown_slice(who), s.user != NULL ? usage_bytes(&s.user->queued) : s.queue->bytes,
           usage_bytes(&s.all->queued),
           of_user ? "holdmq.max-queue-bytes-per-user, or its own limit," : "its share of holdmq.max-queue-bytes",
           QUOTA_LOGGED_EVERY_S);
}

/* ---- checking ---------------------------------------------------------------------------------------------- */

typedef struct check {
    server_ctx *ctx;
    void (*differ)(void *context, const char *what, hmq_slice name);
    void *context;
    size_t bytes;
} check;

static void check_queue(check *c, hmq_slice session, const usage_queue *counted) {
    queue q;
    if (!usage_is_counted(counted)) return;
    c->bytes += counted->bytes;
    if (queue_open(&q, c->ctx, session, SERVER_READ) && counted->length == queue_length(&q)) {
        size_t bytes = queue_count_bytes(&q);
        bool same = counted->doubted ? counted->bytes >= bytes : counted->bytes == bytes;
        if (!same) c->differ(c->context, "the bytes that a queue counts for differ from those that it has", session);
    }
    queue_close(&q);
}

/* What the sessions of the user have together. */
static size_t bytes_of_user(const index_t *index, const usage_user *user) {
    void *value;
    size_t bytes = 0;
    server_dict_iter *iter = sv.DictIteratorStartC(session_index_keys(index->opened), "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &value)) {
        const session_entry *entry = value;
        if (entry->user == user && usage_is_counted(&entry->queued)) bytes += entry->queued.bytes;
    }
    sv.DictIteratorStop(iter);
    return bytes;
}

#define MOST_USERS_ADDED_UP 100 /* each costs a walk over all sessions */

static void check_users(check *c, const index_t *index) {
    void *value;
    size_t left = MOST_USERS_ADDED_UP;
    server_dict_iter *iter = sv.DictIteratorStartC(index->usage->users, "^", NULL, 0);
    while (left-- > 0 && sv.DictNextC(iter, NULL, &value)) {
        const usage_user *user = value;
        if (usage_bytes(&user->queued) != bytes_of_user(index, user))
            c->differ(c->context, "the bytes of a user are not those of its queues", slice_of(user->name));
    }
    sv.DictIteratorStop(iter);
}

void queue_usage_check(server_ctx *ctx, index_t *index, void (*differ)(void *context, const char *what, hmq_slice name),
                       void *context) {
    check c = {.ctx = ctx, .differ = differ, .context = context};
    hmq_slice after = {0};
    if (usage_era() == 0) return;
    index_pin(index, INDEX_SESSIONS);
    for (session_entry *e; (e = session_index_next(index->opened, after)) != NULL; after = slice_of(e->key))
        check_queue(&c, slice_of(e->key), &e->queued);
    void *s;
    server_dict_iter *iter = sv.DictIteratorStartC(index->shares, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &s)) check_queue(&c, slice_of(((share *)s)->key), &((share *)s)->queued);
    sv.DictIteratorStop(iter);
    check_users(&c, index);
    index_unpin(index, INDEX_SESSIONS);
    if (usage_bytes(&index->usage->queued) != c.bytes)
        differ(context, "the bytes of the database are not those of its queues", (hmq_slice){0});
}
