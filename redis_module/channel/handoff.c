/* handoff.c - hands over to new subscribers what their channels hold. */
#include "channel/handoff.h"

#include <limits.h>
#include <string.h>

#include "server/access.h"
#include "server/awake.h"
#include "server/command_slot.h"
#include "server/departures.h"
#include "server/memory.h"
#include "server/no_touch.h"
#include "server/turns.h"
#include "index/channels.h"
#include "cluster/refusals.h"
#include "session/owner.h"
#include "channel/facts.h"
#include "channel/hand_over.h"
#include "channel/leave.h"
#include "channel/pattern_walk.h"

#define NOT_ASKED LONG_MAX /* nothing was kept of the channel, and the query would show in MONITOR */
#define MOST_AT_ONCE 64 /* names of one command that are served in its step; more are served by a walk */

typedef struct note {
    struct note *next;
    uint64_t client; /* 0: unknown */
    long before;     /* its subscriptions when the command arrived; unused for unknown clients */
    push_kind kind;
    bool is_delayed;           /* CLIENT PAUSE delayed the command */
    uint64_t delayed_turn;  /* ... in this turn of the event loop, or a later one */
    long *
        heard_by; /* subscribers of each name when the command arrived, or NOT_ASKED; NULL: all are new to the client */
    server_dict *seen; /* the names, where there may be many; a name that is repeated is served once */
    size_t count, room;
    server_string **names;
} note;

static note *due, **due_end = &due;
static note *waiting; /* inside MULTI: one per client and kind */
static bool settling;
static uint64_t turns; /* of the event loop, while notes are due */
static long patterns_asked; /* the result of pattern_count; -1: not asked */

/* ---- notes ------------------------------------------------------------------------------------------------- */

static bool client_info(uint64_t client, server_client_info *info) {
    info->version = 1;
    return sv.GetClientInfoById(info, client) == SERVER_OK;
}

static void note_free(note *n) {
    for (size_t i = 0; i < n->count; i++) sv.FreeString(NULL, n->names[i]);
    if (n->heard_by != NULL) sv.Free(n->heard_by);
    if (n->seen != NULL) sv.FreeDict(NULL, n->seen);
    if (n->names != NULL) sv.Free(n->names);
    sv.Free(n);
}

static void add_name(note *n, server_string *name) {
    hmq_slice text = slice_of(name);
    if (n->seen != NULL && sv.DictSetC(n->seen, text.data, text.len, n) != SERVER_OK) return;
    n->names = array_reserve(n->names, &n->room, n->count, 1, 8, sizeof *n->names);
    n->names[n->count++] = sv.HoldString(NULL, name);
}

static void add_names(note *n, server_string **names, int count) {
    for (int i = 0; i < count; i++) add_name(n, names[i]);
}

static note *note_new(uint64_t client, push_kind kind, bool many) {
    note *n = sv.Calloc(1, sizeof *n);
    n->client = client;
    n->kind = kind;
    if (many) n->seen = sv.CreateDict(NULL);
    return n;
}

static bool job_pending;

/* Not while writes are paused.  If the transaction itself has paused them, it is not replicated yet, and the server would
 * stop at a command that is called now.  The notes wait for the next command then. */
static void run_job(server_ctx *ctx, void *data) {
    (void)ctx, (void)data;
    job_pending = false;
    if (!sv.AvoidReplicaTraffic()) handoff_settle(false);
}

static bool keeps_any(hmq_slice channel) {
    return channel_index_keeps_anywhere(channel);
}

/* Is something kept, or may it be before the transaction reaches the subscription? */
static bool may_keep_any(hmq_slice channel) {
    const hmq_rule *rule = channel_rule_of(channel);
    return keeps_any(channel) || (rule != NULL && (rule->hold != HMQ_HOLD_NONE || rule->last));
}

/* The number of subscribers of the names for which it matters, else NOT_ASKED.  The caller frees it. */
static long *listeners(const note *n, bool (*matters)(hmq_slice)) {
    long *heard_by = sv.Alloc(n->count * sizeof *heard_by);
    server_string **asked = sv.Alloc(n->count * sizeof *asked);
    size_t count = 0;
    for (size_t i = 0; i < n->count; i++) {
        if (matters(slice_of(n->names[i]))) asked[count++] = n->names[i];
    }
    if (count > 0) push_count_subscribers(n->kind, asked, count, heard_by);
    for (size_t i = n->count, left = count; i-- > 0;) /* to their places, from the end */
        heard_by[i] = left > 0 && asked[left - 1] == n->names[i] ? heard_by[--left] : NOT_ASKED;
    sv.Free(asked);
    return heard_by;
}

/* A client that has subscriptions may name one of them again, and in a transaction one of several commands may be refused.
 * Then each channel's count of subscribers shows who joined.  (For a single command with one name the client's own count
 * is enough.) */
static void count_listeners(note *n, bool in_transaction) {
    if (n->kind != PUSH_PATTERN && settings.delivers)
        n->heard_by = listeners(n, in_transaction ? may_keep_any : keeps_any);
}

/* Keeps the names to which the client subscribed, and for which something is held. */
static void keep_new_names(note *n) {
    if (n->heard_by == NULL) return;
    long *heard_by = listeners(n, keeps_any);
    size_t kept = 0;
    for (size_t i = 0; i < n->count; i++) {
        if (heard_by[i] != NOT_ASKED && heard_by[i] > n->heard_by[i])
            n->names[kept++] = n->names[i];
        else
            sv.FreeString(NULL, n->names[i]);
    }
    n->count = kept;
    sv.Free(heard_by);
}

static void note_due(note *n, bool in_transaction) {
    turns_request();
    n->next = NULL;
    *due_end = n;
    due_end = &n->next;
    if (n->client != 0) n->before = push_subscriptions(n->client);
    if (n->client != 0 && (in_transaction || (n->before > 0 && n->count > 1))) count_listeners(n, in_transaction);
    /* Refused while loading and on a read-only replica: the next filter call or sleep settles it then. */
    if (can.post_jobs && !job_pending)
        job_pending = sv.AddPostNotificationJob(detached, run_job, NULL, NULL) == SERVER_OK;
}

/* Will something be handed over, or may it be before a transaction reaches the subscription? */
static bool may_be_given(server_string *name) {
    if (keeps_any(slice_of(name)))
        return push_pattern_count() == 0 && push_channel_subscribers(PUSH_CHANNEL, name) == 0;
    const hmq_rule *rule = channel_rule_of(slice_of(name));
    return rule != NULL && rule->hold == HMQ_HOLD_UNHEARD && !rule->last; /* what is kept then had no receiver */
}

/* Without the client's id, a new subscriber can be recognised only on a channel without others. */
static void note_unknown(push_kind kind, server_string **names, int count) {
    if (kind == PUSH_SHARD || !settings.delivers) return;
    if (kind == PUSH_PATTERN && (channel_index_keeps_nothing() || push_pattern_count() != 0)) return;
    note *n = note_new(0, kind, count > 1);
    for (int i = 0; i < count; i++) {
        if (kind == PUSH_PATTERN || may_be_given(names[i])) add_name(n, names[i]);
    }
    if (n->count > 0)
        note_due(n, false);
    else
        note_free(n);
}

void handoff_note(uint64_t client, push_kind kind, server_string **names, int count) {
    server_client_info info;
    if (client == 0 || !can.direct_push) {
        note_unknown(kind, names, count);
        return;
    }
    if (!client_info(client, &info)) return;
    if (!(info.flags & SERVER_CLIENT_MULTI)) {
        note *n = note_new(client, kind, count > 1);
        add_names(n, names, count);
        note_due(n, false);
        return;
    }
    departures_expect();
    note **at = &waiting;
    while (*at != NULL && ((*at)->client != client || (*at)->kind != kind)) at = &(*at)->next;
    if (*at == NULL) *at = note_new(client, kind, true);
    add_names(*at, names, count);
}

void handoff_transaction(uint64_t client, bool exec) {
    for (note **at = &waiting; *at != NULL;) {
        note *n = *at;
        if (n->client != client) {
            at = &n->next;
            continue;
        }
        *at = n->next;
        if (exec)
            note_due(n, true);
        else
            note_free(n);
    }
}

static void on_client_gone(const server_client_info *info) {
    owner_client_gone(info->id);
    no_touch_client_gone(info->id);
    if (info->flags & SERVER_CLIENT_PUBSUB) channel_subscriber_left();
    if (waiting != NULL) handoff_transaction(info->id, false);
    leave_transaction(info->id, false);
    access_transaction_ends(info->id);
    refusals_client_gone(info->id);
}

/* ---- settling ---------------------------------------------------------------------------------------------- */

/* A new subscriber hears its channel.  (If something is kept, the next message must mark it as superseded.) */
static void remember_heard(const note *n) {
    if (access_may_be_paused()) return; /* a client that leaves may have been seen before */
    for (size_t i = 0; n->kind == PUSH_CHANNEL && i < n->count; i++) {
        hmq_slice name = slice_of(n->names[i]);
        const hmq_rule *rule = channel_rule_of(name);
        if (rule == NULL || rule->hold != HMQ_HOLD_UNHEARD || rule->last) continue;
        if (!channel_index_keeps_anywhere(name)) channel_note_heard(name);
    }
}

static void serve(note *n, int db) {
    receiver to = {n->client, n->kind, NULL};
    channel_subscriber_joined(); /* perhaps later than when the filter saw it */
    if (!settings.delivers) return;
    keep_new_names(n);
    sv.SelectDb(detached, db);
    for (size_t i = 0; i < n->count && n->kind == PUSH_PATTERN; i++) {
        to.pattern = n->names[i];
        walk_begin(&to, db);
    }
    if (n->kind != PUSH_PATTERN && n->count > MOST_AT_ONCE) walk_begin_names(&to, db, n->names, n->count);
    for (size_t i = 0; i < n->count && n->kind != PUSH_PATTERN && n->count <= MOST_AT_ONCE; i++)
        hand_over_channel(&to, n->names[i]);
    sv.SelectDb(detached, 0);
    walk_continue();
    remember_heard(n);
}

/* Queried once for all notes that are settled together. */
static long pattern_count(void) {
    if (patterns_asked < 0) patterns_asked = push_pattern_count();
    return patterns_asked;
}

/* The new one must be the only one that a publish would reach. */
static bool serve_unknown(note *n) {
    bool served = false;
    receiver to = {0, n->kind, NULL};
    if (n->kind == PUSH_PATTERN && pattern_count() == (long)n->count) {
        walk_begin_unknown(sv.GetSelectedDb(detached), n->names, n->count);
        served = true;
    }
    for (size_t i = 0; i < n->count && n->kind != PUSH_PATTERN; i++) {
        if (!keeps_any(slice_of(n->names[i])) || pattern_count() != 0) continue;
        if (push_channel_subscribers(n->kind, n->names[i]) != 1) continue;
        hand_over_channel(&to, n->names[i]);
        served = true;
    }
    walk_continue();
    return served;
}

/* Otherwise it waits for the end of the transaction or script. */
static bool may_serve_now(const note *n) {
    if (command_slot_allows_all()) return true;
    bool may = n->kind != PUSH_PATTERN;
    for (size_t i = 0; may && i < n->count; i++) may = command_slot_allows(slice_of(n->names[i]));
    return may;
}

/* True if the note is finished. */
static bool settle(note *n, bool final) {
    server_client_info info;
    if (!may_serve_now(n)) return false;
    if (n->client == 0) return serve_unknown(n) || final;
    bool connected = client_info(n->client, &info);
    if (connected && push_subscriptions(n->client) > n->before) {
        serve(n, info.db);
        return true;
    }
    if (connected && (info.flags & SERVER_CLIENT_BLOCKED)) { /* CLIENT PAUSE: the command has not run yet */
        n->is_delayed = true;
        n->delayed_turn = turns;
        return false;
    }
    /* Asking whether the pause is over would end it: the server marks the client as free, and runs its command at the end
     * of the turn. */
    if (connected && n->is_delayed && turns - n->delayed_turn < 2) return false;
    if (final) counters.handoffs_cancelled++;
    return final;
}

bool handoff_pending(void) {
    return due != NULL;
}

void handoff_before_sleep(void) {
    turns++;
    handoff_settle(true);
}

void handoff_settle(bool final) {
    if (due == NULL || settling) return;
    settling = true; /* handing over runs commands, which call this again */
    patterns_asked = -1;
    for (note **at = &due; *at != NULL;) {
        note *n = *at;
        if (settle(n, final)) {
            *at = n->next;
            if (due_end == &n->next) due_end = at;
            note_free(n);
        } else {
            at = &n->next;
        }
    }
    settling = false;
}

/* ---- start ------------------------------------------------------------------------------------------------- */

void handoff_start(void) {
    departures_start(on_client_gone);
    if (can.cluster) awake_follow(); /* connections that were refused */
}
