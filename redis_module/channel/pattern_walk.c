/* pattern_walk.c - hands many channels over to new subscribers, a bounded part at a time. */
#include "channel/pattern_walk.h"

#include <string.h>

#include "base/glob.h"
#include "server/command_slot.h"
#include "server/filter_unit.h"
#include "server/name_set.h"
#include "server/numbers.h"
#include "server/turns.h"
#include "index/channels.h"
#include "channel/facts.h"
#include "channel/hand_over.h"

#define NAMES_PER_LOOK 64  /* of one walk, before the next one continues */
#define FIRST_US 2000U     /* for all subscribing commands of one turn of the event loop together */
#define FIRST_LOOKS 16     /* ... at least, whatever the clock says: a few channels are sent with the confirmation */
#define TURN_US 1000U      /* at the end of a turn */

typedef struct walk {
    struct walk *next;
    receiver to; /* owns the pattern */
    int db;
    server_string **patterns; /* of a receiver whose id is not known: a publish reaches all at once; owns them */
    int pattern_names;
    long pattern_count;   /* of the server, when it began: for a receiver whose id is not known */
    hmq_slice prefix;     /* the pattern's text before its first special byte */
    server_string *after; /* the cursor; NULL at the start */
    server_string **names; /* of a walk through names; owns them */
    size_t name_count, name_at;
    server_dict *places;  /* name -> its place + 1 */
    server_dict *given;   /* channels with a newer message, which are no longer handed over; NULL: none */
    long long moved_ms;   /* when it last made progress */
    bool is_cancelled;
} walk;

typedef struct queue_of_walks {
    walk *first, **end;
} queue_of_walks;

static queue_of_walks fresh = {NULL, &fresh.first};   /* begun in this turn: they are served first */
static queue_of_walks waiting = {NULL, &waiting.first};
static size_t walk_count;
static bool walking;
/* Of this turn. */
static size_t looks_taken;
static uint64_t spent_us;
static uint64_t stuck_client;
static bool some_client_stuck;

/* ---- walks ------------------------------------------------------------------------------------------------- */

static bool matches(const server_string *pattern, const server_string *channel) {
    hmq_slice p = slice_of(pattern), c = slice_of(channel);
    return hmq_glob_matches((const char *)p.data, p.len, (const char *)c.data, c.len);
}

static bool begins_with(hmq_slice name, hmq_slice prefix) {
    return prefix.len == 0 || (name.len >= prefix.len && memcmp(name.data, prefix.data, prefix.len) == 0);
}

static hmq_slice literal_prefix(hmq_slice pattern) {
    size_t len = 0;
    while (len < pattern.len && (pattern.data[len] == 0 || strchr("*?[\\", pattern.data[len]) == NULL)) len++;
    return (hmq_slice){pattern.data, len};
}

static void free_names(server_string **names, size_t count) {
    for (size_t i = 0; i < count; i++) sv.FreeString(NULL, names[i]);
    if (names != NULL) sv.Free(names);
}

static server_string **copy_names(server_string **names, size_t count) {
    server_string **copy = count == 0 ? NULL : sv.Alloc(count * sizeof *copy);
    for (size_t i = 0; i < count; i++) copy[i] = sv.HoldString(NULL, names[i]);
    return copy;
}

static void walk_free(walk *w) {
    free_names(w->patterns, (size_t)w->pattern_names);
    free_names(w->names, w->name_count);
    if (w->places != NULL) sv.FreeDict(NULL, w->places);
    if (w->given != NULL) sv.FreeDict(NULL, w->given);
    if (w->after != NULL) sv.FreeString(NULL, w->after);
    if (w->to.pattern != NULL) sv.FreeString(NULL, w->to.pattern);
    sv.Free(w);
    walk_count--;
}

static void append(queue_of_walks *to, walk *w) {
    w->next = NULL;
    *to->end = w;
    to->end = &w->next;
}

static walk *take_first(queue_of_walks *from) {
    walk *w = from->first;
    from->first = w->next;
    if (from->first == NULL) from->end = &from->first;
    return w;
}

static walk *walk_new(const receiver *to, int db) {
    walk *w = sv.Calloc(1, sizeof *w);
    w->to = *to;
    w->db = db;
    w->moved_ms = sv.Milliseconds();
    append(&fresh, w);
    walk_count++;
    return w;
}

typedef void (*use_walk)(walk *w, const void *data);

static void each_walk(use_walk use, const void *data) {
    for (walk *w = fresh.first; w != NULL; w = w->next) use(w, data);
    for (walk *w = waiting.first; w != NULL; w = w->next) use(w, data);
}

/* A client that begins again is the only subscriber, and has unsubscribed before. */
static void end_former(walk *w, const void *data) {
    (void)data;
    if (w->to.client == 0 && w->to.kind == PUSH_PATTERN) w->is_cancelled = true;
}

void walk_begin(const receiver *to, int db) {
    walk *w = walk_new(to, db);
    w->to.pattern = sv.HoldString(NULL, to->pattern);
    w->prefix = literal_prefix(slice_of(w->to.pattern));
}

void walk_begin_unknown(int db, server_string **patterns, size_t count) {
    receiver to = {0, PUSH_PATTERN, patterns[0]};
    each_walk(end_former, NULL);
    walk *w = walk_new(&to, db);
    w->to.pattern = sv.HoldString(NULL, to.pattern);
    if (count == 1) w->prefix = literal_prefix(slice_of(w->to.pattern));
    w->patterns = copy_names(patterns, count);
    w->pattern_names = (int)count;
    w->pattern_count = push_pattern_count();
}

void walk_begin_names(const receiver *to, int db, server_string **names, size_t count) {
    walk *w = walk_new(to, db);
    w->names = copy_names(names, count);
    w->name_count = count;
    w->places = sv.CreateDict(NULL);
    for (size_t i = 0; i < count; i++) {
        hmq_slice name = slice_of(names[i]);
        sv.DictSetC(w->places, name.data, name.len, (void *)(i + 1));
    }
}

/* The receiver is gone, or reads nothing. */
static bool is_gone(const walk *w) {
    if (w->is_cancelled || sv.Milliseconds() - w->moved_ms > settings.drain_timeout_s * 1000) return true;
    if (w->to.client == 0) return push_pattern_count() != w->pattern_count;
    return push_subscriptions(w->to.client) <= 0;
}

/* ---- progress -------------------------------------------------------------------------------------------- */

/* Channels after the cursor, up to `most` of them (copied, because handing over may change the index). */
static size_t look_at_index(const walk *w, server_string **names, size_t most) {
    hmq_slice start = w->after == NULL ? w->prefix : slice_of(w->after), name;
    const char *op = w->after != NULL ? ">" : start.len == 0 ? "^" : ">=";
    server_dict_iter *iter = sv.DictIteratorStartC(index_of(detached)->held, op, start.data, start.len);
    size_t count = 0;
    while (count < most && (name.data = sv.DictNextC(iter, &name.len, NULL)) != NULL) {
        if (!begins_with(name, w->prefix)) break;
        names[count++] = sv.CreateString(NULL, (const char *)name.data, name.len);
    }
    sv.DictIteratorStop(iter);
    return count;
}

/* Fewer where each is compared with many patterns. */
static size_t names_per_look(const walk *w) {
    return w->pattern_names <= NAMES_PER_LOOK ? NAMES_PER_LOOK : 1;
}

static size_t look(const walk *w, server_string **names) {
    if (w->names == NULL) return look_at_index(w, names, names_per_look(w));
    size_t count = w->name_count - w->name_at;
    if (count > NAMES_PER_LOOK) count = NAMES_PER_LOOK;
    for (size_t i = 0; i < count; i++) names[i] = sv.HoldString(NULL, w->names[w->name_at + i]);
    return count;
}

static bool is_handed_over(const walk *w, const server_string *channel) {
    hmq_slice name = slice_of(channel);
    int missing = 1;
    if (w->given != NULL) sv.DictGetC(w->given, name.data, name.len, &missing);
    return !missing;
}

static bool concerns(const walk *w, const server_string *channel) {
    for (int i = 0; i < w->pattern_names; i++) {
        if (matches(w->patterns[i], channel)) return true;
    }
    if (w->names == NULL) return w->pattern_names == 0 && matches(w->to.pattern, channel);
    hmq_slice name = slice_of(channel);
    return sv.DictGetC(w->places, name.data, name.len, NULL) != NULL;
}

static void note_given(walk *w, hmq_slice channel) {
    if (w->given == NULL) w->given = sv.CreateDict(NULL);
    sv.DictSetC(w->given, channel.data, channel.len, w);
}

/* Owns the name. */
static void set_cursor(walk *w, server_string *name) {
    if (w->after != NULL) sv.FreeString(NULL, w->after);
    w->after = name;
    w->name_at++;
    w->moved_ms = sv.Milliseconds();
}

typedef enum progress { WALK_MOVED, WALK_STUCK, WALK_ENDED } progress;

/* Continues by a few names, no further than the output buffer has room. */
static progress step(walk *w) {
    server_string *names[NAMES_PER_LOOK];
    if (some_client_stuck && stuck_client == w->to.client && !w->is_cancelled) return WALK_STUCK;
    if (is_gone(w)) return WALK_ENDED;
    bool idle;
    size_t room = push_room(&w->to, &idle), used = 0;
    if (room == 0 && !idle) {
        some_client_stuck = true;
        stuck_client = w->to.client;
        return WALK_STUCK;
    }
    size_t count = look(w, names), done = 0;
    while (done < count && (used < room || done == 0)) {
        if (concerns(w, names[done]) && !is_handed_over(w, names[done])) used += hand_over_channel(&w->to, names[done]);
        set_cursor(w, names[done++]);
    }
    for (size_t i = done; i < count; i++) sv.FreeString(NULL, names[i]);
    return count == names_per_look(w) || done < count ? WALK_MOVED : WALK_ENDED;
}

/* Looks at least this many times, and more while there is time.  True if some walk made progress. */
static bool continue_walks(size_t least, uint64_t most_us) {
    size_t stuck = 0, count = walk_count, looks = 0;
    bool moved = false;
    uint64_t begun_us = monotonic_us();
    walking = true;
    for (; walk_count > 0 && stuck < count && (looks < least || monotonic_us() - begun_us < most_us); looks++) {
        queue_of_walks *from = fresh.first != NULL ? &fresh : &waiting;
        walk *w = take_first(from);
        sv.SelectDb(detached, w->db);
        progress got = step(w);
        if (got == WALK_ENDED)
            walk_free(w);
        else
            append(got == WALK_STUCK ? &waiting : from, w);
        stuck = got == WALK_STUCK ? stuck + 1 : 0;
        moved = moved || got != WALK_STUCK;
    }
    sv.SelectDb(detached, 0);
    walking = false;
    looks_taken += looks;
    spent_us += monotonic_us() - begun_us;
    return moved;
}

void walk_continue(void) {
    if (fresh.first == NULL || walking || !command_slot_allows_all()) return;
    if (spent_us >= FIRST_US && looks_taken >= FIRST_LOOKS) return; /* the next turns continue */
    long long begun_ms = sv.Milliseconds();
    continue_walks(looks_taken < FIRST_LOOKS ? FIRST_LOOKS - looks_taken : 0,
                   spent_us < FIRST_US ? FIRST_US - spent_us : 0);
    slow_step("holdmq-pattern-handoff", begun_ms);
}

static void begin_turn(void) {
    push_begin_turn();
    looks_taken = 0;
    spent_us = 0;
    some_client_stuck = false;
}

void walk_before_sleep(void) {
    begin_turn();
    if (walk_count == 0 || walking) return;
    while (fresh.first != NULL) append(&waiting, take_first(&fresh));
    long long begun_ms = sv.Milliseconds();
    bool moved = continue_walks(1, TURN_US);
    slow_step("holdmq-pattern-handoff", begun_ms);
    begin_turn();
    /* A receiver that keeps up causes no event: turn again at once. */
    if (walk_count > 0 && moved) turns_request_another();
}

/* ---- while a walk is on its way ---------------------------------------------------------------------------- */

/* Has the cursor passed the channel? */
static bool has_passed(const walk *w, hmq_slice channel) {
    if (w->names != NULL) return (size_t)sv.DictGetC(w->places, channel.data, channel.len, NULL) <= w->name_at;
    if (w->after == NULL) return false;
    hmq_slice at = slice_of(w->after);
    int order = memcmp(channel.data, at.data, channel.len < at.len ? channel.len : at.len);
    return order < 0 || (order == 0 && channel.len <= at.len);
}

typedef struct coming {
    server_string *channel;
    bool sharded;
} coming;

static void hand_over_ahead(walk *w, const void *data) {
    const coming *c = data;
    hmq_slice name = slice_of(c->channel);
    if (w->is_cancelled || (w->to.kind == PUSH_SHARD) != c->sharded || !concerns(w, c->channel) ||
        is_handed_over(w, c->channel))
        return;
    sv.SelectDb(detached, w->db);
    if (!has_passed(w, name)) hand_over_channel(&w->to, c->channel);
    note_given(w, name);
}

bool walk_any_active(void) {
    return walk_count > 0;
}

void walk_before_publish(server_string *channel, bool sharded) {
    if (walk_count == 0 || walking || !command_slot_allows(slice_of(channel))) return;
    const hmq_rule *rule = channel_rule(channel);
    /* If nothing is kept, and the message that the receiver hears is not kept either, nothing can be handed over
     * later. */
    bool keeps_heard = rule != NULL && (rule->hold == HMQ_HOLD_ALL || rule->last);
    if (!keeps_heard && !channel_index_keeps_anywhere(slice_of(channel))) return;
    coming c = {channel, sharded};
    bool is_unit = filter_unit_begin();
    walking = true;
    each_walk(hand_over_ahead, &c);
    sv.SelectDb(detached, 0);
    walking = false;
    if (is_unit) filter_unit_end();
}

typedef struct leaving {
    uint64_t client;
    push_kind kind;
    const name_set *names;
} leaving;

static void unsubscribe(walk *w, const void *data) {
    const leaving *l = data;
    if (w->to.client != l->client || w->to.kind != l->kind) return;
    if (name_set_is_empty(l->names) || (w->names == NULL && name_set_has(l->names, w->to.pattern)))
        w->is_cancelled = true;
    for (size_t i = w->name_at; w->names != NULL && !w->is_cancelled && i < w->name_count; i++) {
        if (name_set_has(l->names, w->names[i])) note_given(w, slice_of(w->names[i]));
    }
}

void walk_unsubscribes(uint64_t client, push_kind kind, server_string **names, int count) {
    if (client == 0 || walk_count == 0) return;
    name_set set = name_set_of(names, count);
    leaving l = {client, kind, &set};
    each_walk(unsubscribe, &l);
    name_set_free(&set);
}
