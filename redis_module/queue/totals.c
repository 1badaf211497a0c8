/* totals.c - walks over sessions and shares, and adds up the messages in their queues. */
#include "queue/totals.h"

#include "server/awake.h"
#include "server/session_keys.h"
#include "server/timers.h"
#include "index/index.h"
#include "index/sessions.h"
#include "index/shares.h"
#include "queue/allowance.h"
#include "queue/queue.h"

#define REST_MS 1000
#define STEP_MS 10
#define QUEUES_PER_STEP 100

#define QUIETLY (SERVER_READ | SERVER_OPEN_NOTOUCH | SERVER_OPEN_NONOTIFY | SERVER_OPEN_NOSTATS | SERVER_OPEN_NOEXPIRE)

/* Where the walk is, and what it found so far. */
static struct pass {
    long long begun_ms; /* 0: none is under way */
    int db;
    bool shares;          /* the walk is at the shares of this database, after its sessions */
    server_string *after; /* the last session, or share, looked at; NULL: none yet */
    unsigned long long messages, longest;
    bool is_counting; /* a queue must be counted further soon (queue/usage.h) */
} pass;

static queue_totals latest;
static long long latest_begun_ms;

/* key.len 0: to before the first. */
static void move_to(hmq_slice key) {
    if (pass.after != NULL) sv.FreeString(NULL, pass.after);
    pass.after = key.len == 0 ? NULL : sv.CreateString(NULL, (const char *)key.data, key.len);
}

static void forget_pass(void) {
    move_to((hmq_slice){0});
    pass = (struct pass){0};
}

static void add_queue(server_ctx *ctx, hmq_slice session) {
    queue q;
    bool usable = queue_open(&q, ctx, session, QUIETLY);
    unsigned long long messages = usable ? queue_length(&q) : 0;
    if (usable && !queue_usage_look(&q)) pass.is_counting = true;
    queue_close(&q);
    pass.messages += messages;
    if (messages > pass.longest) pass.longest = messages;
}

/* A dictionary by session key, read in order. */
typedef struct reader {
    server_dict_iter *iter;
    hmq_slice key; /* the current one; len 0 at the end */
} reader;

static void advance(reader *r) {
    r->key.data = sv.DictNextC(r->iter, &r->key.len, NULL);
    if (r->key.data == NULL) r->key.len = 0;
}

static reader begin(server_dict *dict, hmq_slice last) {
    reader r = {sv.DictIteratorStartC(dict, last.len == 0 ? "^" : ">", last.data, last.len), {0}};
    advance(&r);
    return r;
}

/* Which key comes first: < 0 a, 0 both, > 0 b.  One of them is not at its end. */
static int order(hmq_slice a, hmq_slice b) {
    if (a.len == 0 || b.len == 0) return a.len == 0 ? 1 : -1;
    return hmq_slice_order(a, b);
}

static hmq_slice after(void) {
    return pass.after == NULL ? (hmq_slice){0} : slice_of(pass.after);
}

/* Continues in this database, for at most this many sessions; true at the end. */
static bool walk_sessions(server_ctx *ctx, const index_t *index, size_t *left) {
    reader opened = begin(session_index_keys(index->opened), after()), subscribed = begin(index->sessions, after());
    for (; *left > 0 && (opened.key.len > 0 || subscribed.key.len > 0); (*left)--) {
        int first = order(opened.key, subscribed.key);
        hmq_slice session = first <= 0 ? opened.key : subscribed.key;
        add_queue(ctx, session);
        if (*left == 1) move_to(session); /* before the text of its key is freed */
        if (first <= 0) advance(&opened);
        if (first >= 0) advance(&subscribed);
    }
    sv.DictIteratorStop(opened.iter);
    sv.DictIteratorStop(subscribed.iter);
    return *left > 0;
}

/* The same for shares. */
static bool walk_shares(server_ctx *ctx, const index_t *index, size_t *left) {
    reader shares = begin(index->shares, after());
    for (; *left > 0 && shares.key.len > 0; (*left)--) {
        server_string *session = session_key_of(shares.key);
        add_queue(ctx, slice_of(session));
        sv.FreeString(NULL, session);
        if (*left == 1) move_to(shares.key);
        advance(&shares);
    }
    sv.DictIteratorStop(shares.iter);
    return *left > 0;
}

static bool walk(server_ctx *ctx, const index_t *index, size_t *left) {
    if (!pass.shares) {
        if (!walk_sessions(ctx, index, left)) return false;
        move_to((hmq_slice){0});
        pass.shares = true;
    }
    if (!walk_shares(ctx, index, left)) return false;
    move_to((hmq_slice){0});
    pass.shares = false;
    return true;
}

/* True when the pass is complete. */
static bool go_on(server_ctx *ctx) {
    size_t left = QUEUES_PER_STEP;
    for (; pass.db < index_databases(); pass.db++) {
        if (!index_exists(pass.db)) continue;
        sv.SelectDb(ctx, pass.db);
        index_t *index = index_of(ctx);
        index_pin(index, INDEX_SESSIONS);
        bool whole = walk(ctx, index, &left);
        index_unpin(index, INDEX_SESSIONS);
        if (!whole) return false;
    }
    return true;
}

static void publish_pass(void) {
    latest = (queue_totals){.known = true, .messages = pass.messages, .longest = pass.longest};
    latest_begun_ms = pass.begun_ms;
    forget_pass();
}

static module_timer pass_timer;

static void step(server_ctx *ctx, void *data) {
    (void)data;
    bool loading = (sv.GetContextFlags(ctx) & SERVER_CTX_LOADING) != 0, is_resting = loading;
    if (loading) {
        forget_pass();
        latest.known = false; /* the pass was over other data */
    } else {
        if (pass.begun_ms == 0) pass.begun_ms = sv.Milliseconds();
        bool whole = go_on(ctx);
        is_resting = whole && !pass.is_counting;
        if (whole) publish_pass();
    }
    timers_arm(&pass_timer, is_resting ? REST_MS : STEP_MS);
}

static void follow(void) {
    pass_timer.fire = step;
    timers_arm(&pass_timer, REST_MS);
}

void queue_totals_start(void) {
    awake_add_follower(follow);
}

queue_totals queue_totals_read(void) {
    if (!is_following) return (queue_totals){.known = true}; /* there are no queues */
    queue_totals totals = latest;
    long long age_ms = sv.Milliseconds() - latest_begun_ms;
    totals.age_s = age_ms < 0 ? 0 : (unsigned long long)age_ms / 1000; /* the clock may be set back */
    return totals;
}
