/* handoff.c - gives new subscribers what their channels hold. */
#include "handoff.h"

#include <string.h>

#include "access.h"
#include "channel.h"
#include "channel_facts.h"
#include "give.h"
#include "pattern_walk.h"

typedef struct note {
    struct note *next;
    uint64_t client; /* 0: unknown */
    long before;     /* its subscriptions when the command came; for unknown clients: not used */
    push_kind kind;
    bool held_up;           /* CLIENT PAUSE was seen to keep the command waiting */
    uint64_t held_up_turn;  /* ... in this turn of the event loop, or a later one */
    int count;
    long *heard_by; /* subscribers of each name when the command came; NULL: all names are new to the client */
    server_string *names[];
} note;

static note *due, **due_end = &due;
static note *waiting; /* inside MULTI */
static bool settling;
static uint64_t turns; /* of the event loop, while notes are due */

/* ---- notes ------------------------------------------------------------------------------------------------- */

static bool client_info(uint64_t client, server_client_info *info) {
    info->version = 1;
    return sv.GetClientInfoById(info, client) == SERVER_OK;
}

static void note_free(note *n) {
    for (int i = 0; i < n->count; i++) sv.FreeString(NULL, n->names[i]);
    if (n->heard_by != NULL) sv.Free(n->heard_by);
    sv.Free(n);
}

/* A name that stands twice in one command is served once. */
static note *note_new(uint64_t client, push_kind kind, server_string **names, int count) {
    note *n = sv.Alloc(sizeof *n + (size_t)count * sizeof n->names[0]);
    server_dict *seen = count > 1 ? sv.CreateDict(NULL) : NULL;
    *n = (note){.client = client, .kind = kind};
    for (int i = 0; i < count; i++) {
        hmq_slice name = slice_of(names[i]);
        bool new = seen == NULL || sv.DictSetC(seen, name.data, name.len, n) == SERVER_OK;
        if (new) n->names[n->count++] = sv.HoldString(NULL, names[i]);
    }
    if (seen != NULL) sv.FreeDict(NULL, seen);
    return n;
}

/* Names that stand in an earlier note of the same transaction are served by that. */
static void drop_names(note *n, const note *earlier) {
    int kept = 0;
    server_dict *seen = sv.CreateDict(NULL);
    for (int i = 0; i < earlier->count; i++) {
        hmq_slice name = slice_of(earlier->names[i]);
        sv.DictSetC(seen, name.data, name.len, n);
    }
    for (int i = 0; i < n->count; i++) {
        hmq_slice name = slice_of(n->names[i]);
        if (sv.DictGetC(seen, name.data, name.len, NULL) == NULL)
            n->names[kept++] = n->names[i];
        else
            sv.FreeString(NULL, n->names[i]);
    }
    n->count = kept;
    sv.FreeDict(NULL, seen);
}

static void run_job(server_ctx *ctx, void *data) {
    (void)ctx, (void)data;
    handoff_settle(false);
}

/* A client that has subscriptions may name one of them again, and in a transaction one of several commands may be refused:
 * who came to which channel then tells the channel's count. */
static void count_listeners(note *n) {
    if (n->kind == PUSH_PATTERN) return;
    n->heard_by = sv.Alloc((size_t)n->count * sizeof *n->heard_by);
    for (int i = 0; i < n->count; i++) n->heard_by[i] = push_channel_subscribers(n->kind, n->names[i]);
}

static bool came_to(const note *n, int i) {
    return n->heard_by == NULL || push_channel_subscribers(n->kind, n->names[i]) > n->heard_by[i];
}

static void note_due(note *n, bool in_transaction) {
    n->next = NULL;
    *due_end = n;
    due_end = &n->next;
    if (n->client != 0) n->before = push_subscriptions(n->client);
    if (n->client != 0 && (n->before > 0 || in_transaction)) count_listeners(n);
    /* Refused while loading and on a read-only replica: the next filter call or sleep settles it then. */
    if (can.post_jobs) sv.AddPostNotificationJob(detached, run_job, NULL, NULL);
}

/* Without the client's id only a newcomer to an empty channel can be told from the others. */
static void note_unknown(push_kind kind, server_string **names, int count) {
    if (kind == PUSH_SHARD) return;
    if (push_pattern_count() != 0) return;
    note *n = note_new(0, kind, names, count);
    for (int i = 0; kind == PUSH_CHANNEL && i < n->count;) {
        if (push_channel_subscribers(kind, n->names[i]) == 0) {
            i++;
        } else {
            sv.FreeString(NULL, n->names[i]);
            n->names[i] = n->names[--n->count];
        }
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
    note *n = note_new(client, kind, names, count);
    if (!(info.flags & SERVER_CLIENT_MULTI)) {
        note_due(n, false);
        return;
    }
    note **end = &waiting;
    for (; *end != NULL; end = &(*end)->next) {
        if ((*end)->client == client && (*end)->kind == kind) drop_names(n, *end);
    }
    n->next = NULL;
    *end = n;
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

static void on_client_change(server_ctx *ctx, server_event event, uint64_t sub, void *data) {
    (void)ctx, (void)event;
    const server_client_info *info = data;
    if (sub != SERVER_CLIENT_DISCONNECTED) return;
    channel_subscriber_left();
    if (waiting != NULL) handoff_transaction(info->id, false);
    access_transaction_ends(info->id);
}

/* ---- settling ---------------------------------------------------------------------------------------------- */

static void serve(note *n, int db) {
    receiver to = {n->client, n->kind, NULL};
    sv.SelectDb(detached, db);
    for (int i = 0; i < n->count; i++) {
        if (n->kind == PUSH_PATTERN) to.pattern = n->names[i];
        if (n->kind == PUSH_PATTERN)
            walk_begin(&to, db, NULL, 0);
        else if (came_to(n, i))
            give_channel(&to, n->names[i]);
    }
    sv.SelectDb(detached, 0);
    walk_go_on();
}

/* The new one must be the only one that a publish would reach. */
static bool alone(const note *n, int i) {
    if (n->kind == PUSH_PATTERN) return push_pattern_count() == n->count;
    return push_channel_subscribers(n->kind, n->names[i]) == 1 && push_pattern_count() == 0;
}

static bool serve_unknown(note *n) {
    bool served = false;
    for (int i = 0; i < n->count; i++) {
        if (!alone(n, i)) continue;
        receiver to = {0, n->kind, n->kind == PUSH_PATTERN ? n->names[i] : NULL};
        if (n->kind == PUSH_PATTERN)
            walk_begin(&to, sv.GetSelectedDb(detached), n->names, i);
        else
            give_channel(&to, n->names[i]);
        served = true;
    }
    walk_go_on();
    return served;
}

/* True if the note is done with. */
static bool settle(note *n, bool final) {
    server_client_info info;
    if (n->client == 0) return serve_unknown(n) || final;
    bool connected = client_info(n->client, &info);
    if (connected && push_subscriptions(n->client) > n->before) {
        serve(n, info.db);
        return true;
    }
    if (connected && (info.flags & SERVER_CLIENT_BLOCKED)) { /* CLIENT PAUSE: the command has not run yet */
        n->held_up = true;
        n->held_up_turn = turns;
        return false;
    }
    /* Whoever asks whether the pause is over ends it: the client is marked as free, and its command runs at the end of the turn. */
    if (connected && n->held_up && turns - n->held_up_turn < 2) return false;
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
    settling = true; /* giving runs commands, which come here again */
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

void handoff_start(server_ctx *ctx) {
    sv.SubscribeToServerEvent(ctx, (server_event){SERVER_EVENT_CLIENT_CHANGE, 1}, on_client_change);
}
