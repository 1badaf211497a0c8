/* handoff.c - gives new subscribers what their channels hold. */
#include "handoff.h"

#include <string.h>

#include "../src/glob.h"
#include "access.h"
#include "channel.h"
#include "channel_facts.h"
#include "drain.h"
#include "index.h"

/* Names of one look at the held channels. */
#define NAMES_PER_LOOK 256

typedef struct note {
    struct note *next;
    uint64_t client; /* 0: unknown */
    long before;     /* its subscriptions when the command came; for unknown clients: not used */
    push_kind kind;
    int count;
    long *heard_by; /* subscribers of each name when the command came; NULL: all names are new to the client */
    server_string *names[];
} note;

static note *due, **due_end = &due;
static note *waiting; /* inside MULTI */
static bool settling;

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

/* ---- giving ------------------------------------------------------------------------------------------------ */

static void give_channel(const receiver *to, server_string *channel) {
    const hmq_rule *rule = channel_rule(channel);
    if (rule == NULL || rule->deliver == HMQ_DELIVER_NONE) return;
    bool by_publish_to_pattern = to->client == 0 && to->kind == PUSH_PATTERN;
    if (by_publish_to_pattern && push_channel_subscribers(PUSH_CHANNEL, channel) != 0)
        return; /* others would hear it */
    bool master = (sv.GetContextFlags(detached) & (SERVER_CTX_MASTER | SERVER_CTX_READONLY)) == SERVER_CTX_MASTER;
    bool taking = rule->deliver == HMQ_DELIVER_HELD;
    if (!access_may_read(to->client, channel, taking)) return;
    if (taking) {
        if (master) drain_begin(to, sv.GetSelectedDb(detached), channel);
        return;
    }
    server_string *last = channel_last(detached, channel, rule);
    if (last == NULL) return;
    push(to, channel, last);
    sv.FreeString(NULL, last);
}

/* ---- patterns ---------------------------------------------------------------------------------------------- */

/* The channel whose last message this list keeps (policy last=on), NULL if it keeps none. */
static server_string *channel_of_last(hmq_slice name) {
    char *channel = sv.Alloc(name.len);
    size_t len;
    const hmq_rule *rule = NULL;
    if (channel_of_last_key(name, channel, name.len, &len))
        rule = channel_rule_of((hmq_slice){(const uint8_t *)channel, len});
    server_string *found = rule != NULL && rule->last ? sv.CreateString(NULL, channel, len) : NULL;
    sv.Free(channel);
    return found;
}

/* The channel that a held list belongs to: the name itself, or what is behind {channel}_last.  NULL if the other of the
 * two serves that channel, or no rule does. */
static server_string *channel_of_list(const index_t *index, hmq_slice name) {
    server_string *of_last = channel_of_last(name);
    if (of_last != NULL) {
        const hmq_rule *rule = channel_rule(of_last);
        if (rule->deliver == HMQ_DELIVER_LAST) return of_last;
        sv.FreeString(NULL, of_last);
        return NULL;
    }
    const hmq_rule *rule = channel_rule_of(name);
    if (rule == NULL || rule->deliver == HMQ_DELIVER_NONE) return NULL;
    if (rule->last && rule->deliver == HMQ_DELIVER_LAST) {
        server_string *last_key = channel_last_key(name);
        hmq_slice key = slice_of(last_key);
        bool kept = sv.DictGetC(index->held, key.data, key.len, NULL) != NULL;
        sv.FreeString(NULL, last_key);
        if (kept) return NULL;
    }
    return sv.CreateString(NULL, (const char *)name.data, name.len);
}

static bool matches(const server_string *pattern, const server_string *channel) {
    hmq_slice p = slice_of(pattern), c = slice_of(channel);
    return hmq_glob_matches((const char *)p.data, p.len, (const char *)c.data, c.len);
}

/* Names of lists that begin with `prefix`, but not those that begin with `except` (if it is not empty). */
typedef struct name_range {
    hmq_slice prefix, except;
} name_range;

static bool begins_with(hmq_slice name, hmq_slice prefix) {
    return name.len >= prefix.len && memcmp(name.data, prefix.data, prefix.len) == 0;
}

/* The channels of up to NAMES_PER_LOOK names of the range behind `after` that match (all of them at once, since giving may
 * change the index).  Returns the name to go on behind, NULL at the end. */
static server_string *look(const index_t *index, server_string *pattern, name_range range, server_string *after,
                           server_string **found, size_t *count) {
    hmq_slice start = after == NULL ? range.prefix : slice_of(after);
    const char *op = after != NULL ? ">" : start.len == 0 ? "^" : ">=";
    server_dict_iter *iter = sv.DictIteratorStartC(index->held, op, start.data, start.len);
    hmq_slice name;
    server_string *last = NULL;
    *count = 0;
    for (size_t seen = 0; seen < NAMES_PER_LOOK && (name.data = sv.DictNextC(iter, &name.len, NULL)) != NULL; seen++) {
        if (last != NULL) sv.FreeString(NULL, last);
        last = NULL;
        if (!begins_with(name, range.prefix)) break;
        last = sv.CreateString(NULL, (const char *)name.data, name.len);
        if (range.except.len > 0 && begins_with(name, range.except)) continue;
        server_string *channel = channel_of_list(index, name);
        if (channel == NULL) continue;
        if (matches(pattern, channel))
            found[(*count)++] = channel;
        else
            sv.FreeString(NULL, channel);
    }
    sv.DictIteratorStop(iter);
    return last;
}

/* What stands in a pattern before the first byte that is one of `stops`. */
static hmq_slice literal_prefix(hmq_slice pattern, const char *stops) {
    size_t len = 0;
    while (len < pattern.len && (pattern.data[len] == 0 || strchr(stops, pattern.data[len]) == NULL)) len++;
    return (hmq_slice){pattern.data, len};
}

/* A publish reaches all patterns of the receiver at once: a channel that an earlier one of the command matched was served
 * with that. */
static bool served_by_earlier(const note *n, int which, const server_string *channel) {
    bool served = false;
    for (int i = 0; n->client == 0 && i < which && !served; i++) served = matches(n->names[i], channel);
    return served;
}

static void give_range(receiver *to, const note *n, int which, name_range range) {
    server_string *found[NAMES_PER_LOOK], *after = NULL;
    for (;;) {
        size_t count;
        server_string *next = look(index_of(detached), n->names[which], range, after, found, &count);
        for (size_t i = 0; i < count; i++) {
            if (!served_by_earlier(n, which, found[i])) give_channel(to, found[i]);
            sv.FreeString(NULL, found[i]);
        }
        if (after != NULL) sv.FreeString(NULL, after);
        if (next == NULL) return;
        after = next;
    }
}

/* Lists of channels begin with the channel's name, or (their last messages) with a brace and the name. */
static void give_pattern(receiver *to, const note *n, int which) {
    hmq_slice pattern = slice_of(n->names[which]), prefix = literal_prefix(pattern, "*?[\\");
    to->pattern = n->names[which];
    if (sv.DictSize(index_of(detached)->held) == 0) return;
    long long begun_ms = sv.Milliseconds();
    give_range(to, n, which, (name_range){prefix, {NULL, 0}});
    slow_step("holdmq-pattern-handoff", begun_ms);
    if (prefix.len == 0) return;
    hmq_slice plain = literal_prefix(prefix, "{}%"); /* what encoding leaves as it is */
    char *braced = sv.Alloc(plain.len + 1);
    braced[0] = '{';
    memcpy(braced + 1, plain.data, plain.len);
    give_range(to, n, which, (name_range){{(const uint8_t *)braced, plain.len + 1}, prefix});
    sv.Free(braced);
}

/* ---- settling ---------------------------------------------------------------------------------------------- */

static void serve(const note *n, int db) {
    receiver to = {n->client, n->kind, NULL};
    sv.SelectDb(detached, db);
    for (int i = 0; i < n->count; i++) {
        if (n->kind == PUSH_PATTERN)
            give_pattern(&to, n, i);
        else if (came_to(n, i))
            give_channel(&to, n->names[i]);
    }
    sv.SelectDb(detached, 0);
}

/* The new one must be the only one that a publish would reach. */
static bool alone(const note *n, int i) {
    if (n->kind == PUSH_PATTERN) return push_pattern_count() == n->count;
    return push_channel_subscribers(n->kind, n->names[i]) == 1 && push_pattern_count() == 0;
}

static bool serve_unknown(const note *n) {
    bool served = false;
    for (int i = 0; i < n->count; i++) {
        if (!alone(n, i)) continue;
        receiver to = {0, n->kind, NULL};
        if (n->kind == PUSH_PATTERN)
            give_pattern(&to, n, i);
        else
            give_channel(&to, n->names[i]);
        served = true;
    }
    return served;
}

/* True if the note is done with. */
static bool settle(const note *n, bool final) {
    server_client_info info;
    if (n->client == 0) return serve_unknown(n) || final;
    bool connected = client_info(n->client, &info);
    if (connected && push_subscriptions(n->client) > n->before) {
        serve(n, info.db);
        return true;
    }
    if (connected && (info.flags & SERVER_CLIENT_BLOCKED)) return false; /* CLIENT PAUSE: the command has not run yet */
    if (final) counters.handoffs_cancelled++;
    return final;
}

bool handoff_pending(void) {
    return due != NULL;
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
