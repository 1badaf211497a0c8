/* pattern_walk.c - walks through the held channels for new pattern subscribers. */
#include "pattern_walk.h"

#include <string.h>
#include <time.h>

#include "../src/glob.h"
#include "channel.h"
#include "channel_names.h"
#include "channel_facts.h"
#include "give.h"
#include "index.h"

#define NAMES_PER_LOOK 64  /* of one walk, before the next has its turn */
#define FIRST_NS 3000000  /* of the step of a PSUBSCRIBE, for all walks together */
#define FIRST_LOOKS 16     /* ... at least, whatever the clock says: few channels come with the confirmation */
#define TURN_NS 1000000   /* of a turn of the event loop */

/* ---- lists and channels ------------------------------------------------------------------------------------ */

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

/* What stands in a pattern before the first byte that is one of `stops`. */
static hmq_slice literal_prefix(hmq_slice pattern, const char *stops) {
    size_t len = 0;
    while (len < pattern.len && (pattern.data[len] == 0 || strchr(stops, pattern.data[len]) == NULL)) len++;
    return (hmq_slice){pattern.data, len};
}

/* ---- walks ------------------------------------------------------------------------------------------------- */

typedef struct walk {
    struct walk *next;
    receiver to; /* owns the pattern */
    int db;
    server_string **served; /* owns them */
    int served_count;
    long pattern_count;    /* of the server, when it began: for a receiver whose id is not known */
    name_range ranges[2];  /* the second begins with a brace, where last messages are kept */
    char *braced;          /* prefix of the second */
    int range_count, range;
    server_string *after;  /* the cursor; NULL at the start of a range */
    server_dict *given;    /* channels that were published to meanwhile: not to be given any more */
    long long moved_ms;    /* when it last got on */
    bool over;
} walk;

static walk *walks, **walks_end = &walks;
static bool walking, wake_pending;

/* Lists of channels begin with the channel's name, or (their last messages) with a brace and the name. */
static void set_ranges(walk *w) {
    hmq_slice prefix = literal_prefix(slice_of(w->to.pattern), "*?[\\");
    w->ranges[0] = (name_range){prefix, {NULL, 0}};
    w->range_count = 1;
    if (prefix.len == 0) return;
    hmq_slice plain = literal_prefix(prefix, "{}%"); /* what encoding leaves as it is */
    w->braced = sv.Alloc(plain.len + 1);
    w->braced[0] = '{';
    memcpy(w->braced + 1, plain.data, plain.len);
    w->ranges[1] = (name_range){{(const uint8_t *)w->braced, plain.len + 1}, prefix};
    w->range_count = 2;
}

static void walk_free(walk *w) {
    for (int i = 0; i < w->served_count; i++) sv.FreeString(NULL, w->served[i]);
    if (w->served != NULL) sv.Free(w->served);
    if (w->braced != NULL) sv.Free(w->braced);
    if (w->after != NULL) sv.FreeString(NULL, w->after);
    sv.FreeString(NULL, w->to.pattern);
    sv.FreeDict(NULL, w->given);
    sv.Free(w);
}

static void append(walk *w) {
    w->next = NULL;
    *walks_end = w;
    walks_end = &w->next;
}

static walk *take_first(void) {
    walk *w = walks;
    walks = w->next;
    if (walks == NULL) walks_end = &walks;
    return w;
}

static bool same(const server_string *a, const server_string *b) {
    hmq_slice x = slice_of(a), y = slice_of(b);
    return x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
}

void walk_begin(const receiver *to, int db, server_string **served, int served_count) {
    for (walk *w = walks; to->client == 0 && w != NULL; w = w->next) { /* who begins anew has unsubscribed before */
        if (w->to.client == 0 && same(w->to.pattern, to->pattern)) w->over = true;
    }
    walk *w = sv.Calloc(1, sizeof *w);
    w->to = *to;
    w->to.pattern = sv.HoldString(NULL, to->pattern);
    w->db = db;
    if (served_count > 0) w->served = sv.Alloc((size_t)served_count * sizeof(server_string *));
    for (int i = 0; i < served_count; i++) w->served[i] = sv.HoldString(NULL, served[i]);
    w->served_count = served_count;
    w->pattern_count = to->client == 0 ? push_pattern_count() : 0;
    w->given = sv.CreateDict(NULL);
    w->moved_ms = sv.Milliseconds();
    set_ranges(w);
    append(w);
}

/* The receiver is no more, or reads nothing. */
static bool is_gone(const walk *w) {
    if (w->over || sv.Milliseconds() - w->moved_ms > settings.drain_timeout_s * 1000) return true;
    if (w->to.client == 0) return push_pattern_count() != w->pattern_count;
    return push_subscriptions(w->to.client) <= 0 || push_is_closing(w->to.client);
}

/* ---- getting on -------------------------------------------------------------------------------------------- */

/* Names of the range behind the cursor, up to NAMES_PER_LOOK of them (all at once, since giving may change the index). */
static size_t look(const walk *w, server_string **names) {
    const name_range *range = &w->ranges[w->range];
    hmq_slice start = w->after == NULL ? range->prefix : slice_of(w->after), name;
    const char *op = w->after != NULL ? ">" : start.len == 0 ? "^" : ">=";
    server_dict_iter *iter = sv.DictIteratorStartC(index_of(detached)->held, op, start.data, start.len);
    size_t count = 0;
    while (count < NAMES_PER_LOOK && (name.data = sv.DictNextC(iter, &name.len, NULL)) != NULL) {
        if (!begins_with(name, range->prefix)) break;
        names[count++] = sv.CreateString(NULL, (const char *)name.data, name.len);
    }
    sv.DictIteratorStop(iter);
    return count;
}

static bool is_given(const walk *w, const server_string *channel) {
    hmq_slice name = slice_of(channel);
    int missing = 0;
    sv.DictGetC(w->given, name.data, name.len, &missing);
    if (!missing) return true;
    /* A publish reaches all patterns of an unknown receiver at once. */
    for (int i = 0; i < w->served_count; i++) {
        if (matches(w->served[i], channel)) return true;
    }
    return false;
}

/* Gives the channel of one list, if it has one that matches; the bytes that were written. */
static size_t give_list(const walk *w, const server_string *list) {
    hmq_slice name = slice_of(list), except = w->ranges[w->range].except;
    if (except.len > 0 && begins_with(name, except)) return 0;
    server_string *channel = channel_of_list(index_of(detached), name);
    if (channel == NULL) return 0;
    size_t bytes = matches(w->to.pattern, channel) && !is_given(w, channel) ? give_channel(&w->to, channel) : 0;
    sv.FreeString(NULL, channel);
    return bytes;
}

static void set_cursor(walk *w, server_string *name) {
    if (w->after != NULL) sv.FreeString(NULL, w->after);
    w->after = name;
    w->moved_ms = sv.Milliseconds();
}

typedef enum progress { WALK_MOVED, WALK_STUCK, WALK_ENDED } progress;

/* A few names further, no further than the output buffer has room. */
static progress step(walk *w) {
    server_string *names[NAMES_PER_LOOK];
    if (is_gone(w)) return WALK_ENDED;
    bool idle;
    size_t room = push_room(&w->to, &idle), used = 0;
    if (room == 0 && !idle) return WALK_STUCK;
    size_t count = look(w, names), done = 0;
    while (done < count && (used < room || done == 0)) {
        used += give_list(w, names[done]);
        set_cursor(w, names[done++]); /* owns it now */
    }
    for (size_t i = done; i < count; i++) sv.FreeString(NULL, names[i]);
    if (count == NAMES_PER_LOOK || done < count) return WALK_MOVED;
    set_cursor(w, NULL);
    return ++w->range < w->range_count ? WALK_MOVED : WALK_ENDED;
}

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000 + now.tv_nsec;
}

static size_t count_walks(void) {
    size_t count = 0;
    for (const walk *w = walks; w != NULL; w = w->next) count++;
    return count;
}

/* At least so many looks, and more while there is time.  True if some walk got on. */
static bool go_on(size_t least, long long most_ns) {
    size_t stuck = 0, count = count_walks();
    bool moved = false;
    long long end_ns = now_ns() + most_ns;
    walking = true;
    for (size_t looks = 0; walks != NULL && stuck < count && (looks < least || now_ns() < end_ns); looks++) {
        walk *w = take_first();
        sv.SelectDb(detached, w->db);
        progress got = step(w);
        if (got == WALK_ENDED)
            walk_free(w);
        else
            append(w);
        stuck = got == WALK_STUCK ? stuck + 1 : 0;
        moved = moved || got != WALK_STUCK;
    }
    sv.SelectDb(detached, 0);
    walking = false;
    return moved;
}

void walk_go_on(void) {
    if (walks == NULL || walking) return;
    long long begun_ms = sv.Milliseconds();
    go_on(FIRST_LOOKS, FIRST_NS);
    slow_step("holdmq-pattern-handoff", begun_ms);
}

static void on_wake(void *data) {
    (void)data;
    wake_pending = false; /* that the loop turned is all that was wanted */
}

void walk_before_sleep(void) {
    if (walks == NULL || walking) return;
    long long begun_ms = sv.Milliseconds();
    bool moved = go_on(1, TURN_NS);
    slow_step("holdmq-pattern-handoff", begun_ms);
    /* A receiver that keeps up makes no event of its own: turn again at once. */
    if (walks != NULL && moved && !wake_pending) wake_pending = sv.EventLoopAddOneShot(on_wake, NULL) == SERVER_OK;
}

/* ---- while a walk is on its way ---------------------------------------------------------------------------- */

/* -1, 0, 1 as a stands before, at or behind b, in the order of the index. */
static int compare(hmq_slice a, hmq_slice b) {
    int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);
    if (order != 0) return order < 0 ? -1 : 1;
    return a.len < b.len ? -1 : a.len > b.len;
}

/* Is the list behind the cursor, or at it? */
static bool has_passed(const walk *w, hmq_slice list) {
    int range = begins_with(list, w->ranges[0].prefix) ? 0 : 1;
    if (range != w->range) return range < w->range;
    return w->after != NULL && compare(list, slice_of(w->after)) <= 0;
}

/* The list by which the walk finds, or found, the channel. */
static server_string *list_of(const index_t *index, server_string *channel) {
    const hmq_rule *rule = channel_rule(channel);
    if (rule != NULL && rule->last && rule->deliver == HMQ_DELIVER_LAST) {
        server_string *last_key = channel_last_key(slice_of(channel));
        hmq_slice key = slice_of(last_key);
        int missing = 0;
        sv.DictGetC(index->held, key.data, key.len, &missing);
        if (!missing) return last_key;
        sv.FreeString(NULL, last_key);
    }
    return sv.HoldString(NULL, channel);
}

static void give_ahead(walk *w, server_string *channel) {
    hmq_slice name = slice_of(channel);
    if (w->over || !matches(w->to.pattern, channel) || is_given(w, channel)) return;
    sv.SelectDb(detached, w->db);
    server_string *list = list_of(index_of(detached), channel);
    if (!has_passed(w, slice_of(list))) give_channel(&w->to, channel);
    sv.FreeString(NULL, list);
    sv.DictSetC(w->given, name.data, name.len, w);
}

void walk_before_publish(server_string *channel) {
    if (walks == NULL || walking) return;
    walking = true;
    for (walk *w = walks; w != NULL; w = w->next) give_ahead(w, channel);
    sv.SelectDb(detached, 0);
    walking = false;
}

void walk_unsubscribes(uint64_t client, server_string **patterns, int count) {
    for (walk *w = walks; w != NULL; w = w->next) {
        if (w->to.client != client || client == 0) continue;
        bool named = count == 0;
        for (int i = 0; i < count && !named; i++) named = same(patterns[i], w->to.pattern);
        if (named) w->over = true;
    }
}
