/* sessions.c - the opened sessions of a database, in memory. */
#include "index/sessions.h"

#include <string.h>

#include "base/assert.h"
#include "topic/session_key.h"
#include "server/memory.h"
#include "server/session_keys.h"
#include "index/internal.h"
#include "index/session_state.h"
#include "index/usage.h"

enum { KIND_SESSION = 's', KIND_OWNER = 'o' };
#define TIME_BYTES 8
#define NAME_ON_STACK 512 /* longer names take the heap */

struct session_index {
    struct index *index; /* that it is a part of */
    server_dict *sessions;
    server_dict *owners;
    server_dict *deadlines; /* -> session_entry * or owner_entry * */
    server_dict *with_qos0; /* session key -> session_entry *: those with qos0_until */
    size_t connected, refusing;
};

session_index *session_index_new(struct index *index) {
    session_index *s = sv.Calloc(1, sizeof *s);
    s->index = index;
    s->sessions = sv.CreateDict(NULL);
    s->owners = sv.CreateDict(NULL);
    s->deadlines = sv.CreateDict(NULL);
    s->with_qos0 = sv.CreateDict(NULL);
    return s;
}

static void free_owner(owner_entry *owner) {
    sv.FreeString(NULL, owner->name);
    if (owner->cursor != NULL) sv.FreeString(NULL, owner->cursor);
    sv.FreeDict(NULL, owner->sessions);
    sv.Free(owner);
}

static void free_entry(session_entry *entry) {
    usage_bounds_changed(-(entry->user_bytes > 0));
    sv.FreeString(NULL, entry->key);
    sv.Free(entry);
}

void session_index_free(session_index *s) {
    void *value;
    server_dict_iter *iter = sv.DictIteratorStartC(s->sessions, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &value)) free_entry(value);
    sv.DictIteratorStop(iter);
    iter = sv.DictIteratorStartC(s->owners, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &value)) free_owner(value);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, s->sessions);
    sv.FreeDict(NULL, s->owners);
    sv.FreeDict(NULL, s->deadlines);
    sv.FreeDict(NULL, s->with_qos0);
    sv.Free(s);
}

/* ---- deadlines --------------------------------------------------------------------------------------------- */

typedef struct deadline_name {
    uint8_t *bytes;
    size_t len;
    uint8_t small[NAME_ON_STACK];
} deadline_name;

static void name_make(deadline_name *name, long long at_ms, uint8_t kind, hmq_slice of) {
    name->len = TIME_BYTES + 1 + of.len;
    name->bytes = scratch_alloc(name->small, sizeof name->small, name->len);
    for (int i = 0; i < TIME_BYTES; i++) name->bytes[i] = (uint8_t)((uint64_t)at_ms >> (8 * (TIME_BYTES - 1 - i)));
    name->bytes[TIME_BYTES] = kind;
    memcpy(name->bytes + TIME_BYTES + 1, of.data, of.len);
}

static void name_free(deadline_name *name) {
    scratch_free(name->bytes, name->small);
}

static void move_deadline(session_index *s, long long *armed_ms, long long at_ms, uint8_t kind, hmq_slice of,
                          void *who) {
    deadline_name name;
    if (*armed_ms == at_ms) return;
    if (*armed_ms != 0) {
        name_make(&name, *armed_ms, kind, of);
        sv.DictDelC(s->deadlines, name.bytes, name.len, NULL);
        name_free(&name);
    }
    *armed_ms = at_ms;
    if (at_ms == 0) return;
    name_make(&name, at_ms, kind, of);
    sv.DictSetC(s->deadlines, name.bytes, name.len, who);
    name_free(&name);
}

void session_index_arm(session_index *s, session_entry *entry, long long at_ms) {
    move_deadline(s, &entry->armed_ms, at_ms, KIND_SESSION, slice_of(entry->key), entry);
}

void session_index_arm_owner(session_index *s, owner_entry *owner, long long at_ms) {
    move_deadline(s, &owner->armed_ms, at_ms, KIND_OWNER, slice_of(owner->name), owner);
}

bool session_index_take_due(session_index *s, long long now_ms, deadline *due) {
    void *who;
    size_t len;
    *due = (deadline){0};
    server_dict_iter *iter = sv.DictIteratorStartC(s->deadlines, "^", NULL, 0);
    const uint8_t *name = sv.DictNextC(iter, &len, &who);
    long long at_ms = 0;
    for (int i = 0; name != NULL && i < TIME_BYTES; i++) at_ms = (long long)((uint64_t)at_ms << 8 | name[i]);
    bool passed = name != NULL && at_ms <= now_ms;
    uint8_t kind = passed ? name[TIME_BYTES] : 0;
    sv.DictIteratorStop(iter);
    if (kind == KIND_SESSION) session_index_arm(s, due->session = who, 0);
    if (kind == KIND_OWNER) session_index_arm_owner(s, due->owner = who, 0);
    return passed;
}

/* ---- owners ------------------------------------------------------------------------------------------------ */

owner_entry *session_index_owner(const session_index *s, hmq_slice name) {
    return sv.DictGetC(s->owners, name.data, name.len, NULL);
}

bool session_index_has_owners(const session_index *s) {
    return sv.DictSize(s->owners) > 0;
}

owner_entry *session_index_make_owner(session_index *s, hmq_slice name) {
    owner_entry *owner = session_index_owner(s, name);
    if (owner != NULL) return owner;
    owner = sv.Calloc(1, sizeof *owner);
    owner->name = sv.CreateString(NULL, (const char *)name.data, name.len);
    owner->sessions = sv.CreateDict(NULL);
    sv.DictSetC(s->owners, name.data, name.len, owner);
    return owner;
}

void session_index_settle_owner(session_index *s, owner_entry *owner) {
    if (sv.DictSize(owner->sessions) > 0 || owner->armed_ms != 0) return; /* invariant 3 */
    hmq_slice name = slice_of(owner->name);
    sv.DictDelC(s->owners, name.data, name.len, NULL);
    free_owner(owner);
}

void session_index_each_owner(session_index *s, void (*visit)(session_index *, owner_entry *, void *), void *data) {
    void *owner;
    server_dict_iter *iter = sv.DictIteratorStartC(s->owners, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &owner)) visit(s, owner, data);
    sv.DictIteratorStop(iter);
}

static void leave_owner(session_index *s, session_entry *entry) {
    owner_entry *owner = entry->owner;
    hmq_slice key = slice_of(entry->key);
    entry->owner = NULL;
    if (owner == NULL) return;
    sv.DictDelC(owner->sessions, key.data, key.len, NULL);
    session_index_settle_owner(s, owner);
}

static void join_owner(session_index *s, session_entry *entry, hmq_slice name) {
    owner_entry *owner = session_index_make_owner(s, name);
    hmq_slice key = slice_of(entry->key);
    sv.DictSetC(owner->sessions, key.data, key.len, entry);
    entry->owner = owner;
}

/* ---- sessions ---------------------------------------------------------------------------------------------- */

session_entry *session_index_find(const session_index *s, hmq_slice session) {
    return sv.DictGetC(s->sessions, session.data, session.len, NULL);
}

void session_index_forget_facts(session_index *s, hmq_slice name) {
    size_t len = hmq_session_key_of((const char *)name.data, name.len, HMQ_SUFFIX_SESSION);
    session_entry *entry = len == 0 ? NULL : session_index_find(s, (hmq_slice){name.data, len});
    if (entry != NULL) entry->facts_known = false;
}

session_entry *session_index_next(const session_index *s, hmq_slice after) {
    void *entry = NULL;
    server_dict_iter *iter = after.len == 0 ? sv.DictIteratorStartC(s->sessions, "^", NULL, 0)
                                            : sv.DictIteratorStartC(s->sessions, ">", after.data, after.len);
    if (sv.DictNextC(iter, NULL, &entry) == NULL) entry = NULL;
    sv.DictIteratorStop(iter);
    return entry;
}

server_dict *session_index_keys(const session_index *s) {
    return s->sessions;
}

size_t session_index_count(const session_index *s) {
    return sv.DictSize(s->sessions);
}

size_t session_index_connected(const session_index *s) {
    return s->connected;
}

size_t session_index_refusing(const session_index *s) {
    return s->refusing;
}

static session_entry *get_entry(session_index *s, hmq_slice session) {
    session_entry *entry = session_index_find(s, session);
    if (entry != NULL) return entry;
    entry = sv.Calloc(1, sizeof *entry);
    entry->key = sv.CreateString(NULL, (const char *)session.data, session.len);
    sv.DictSetC(s->sessions, session.data, session.len, entry);
    return entry;
}

void session_index_set_qos0(session_index *s, session_entry *entry, uint64_t until) {
    hmq_slice key = slice_of(entry->key);
    if (until > 0 && entry->qos0_until == 0) sv.DictSetC(s->with_qos0, key.data, key.len, entry);
    if (until == 0 && entry->qos0_until > 0) sv.DictDelC(s->with_qos0, key.data, key.len, NULL);
    entry->qos0_until = until;
}

session_entry *session_index_with_qos0(const session_index *s, hmq_slice session) {
    if (sv.DictSize(s->with_qos0) == 0) return NULL;
    return sv.DictGetC(s->with_qos0, session.data, session.len, NULL);
}

static void set_user(session_index *s, session_entry *entry, hmq_slice identity) {
    usage *all = s->index->usage;
    usage_user *before = entry->user, *user = identity.len == 0 ? NULL : usage_make(all, identity);
    if (before == user) return;
    usage_move(before, user, &entry->queued);
    if (user != NULL) user->sessions++;
    hmq_assert(before == NULL || before->sessions > 0);
    if (before != NULL) before->sessions--;
    entry->user = user;
    usage_free_if_empty(all, before);
}

static void set_bounds(session_entry *entry, const session_state *state) {
    usage_bounds_changed((state->user_bytes > 0) - (entry->user_bytes > 0));
    entry->user_bytes = state->user_bytes;
    entry->user_retained = state->user_retained;
}

static void drop_entry(session_index *s, session_entry *entry) {
    hmq_slice key = slice_of(entry->key);
    usage_forget(s->index->usage, entry->user, &entry->queued);
    set_user(s, entry, (hmq_slice){0});
    hmq_assert(s->connected >= entry->connected && s->refusing >= entry->refuses);
    s->connected -= entry->connected;
    s->refusing -= entry->refuses;
    session_index_arm(s, entry, 0);
    session_index_set_qos0(s, entry, 0);
    leave_owner(s, entry);
    hmq_assert(s->index->pins[INDEX_SESSIONS] == 0 && entry->armed_ms == 0 && entry->user == NULL);
    sv.DictDelC(s->sessions, key.data, key.len, NULL);
    free_entry(entry);
}

static bool same_name(const owner_entry *owner, hmq_slice name) {
    hmq_slice own = slice_of(owner->name);
    return hmq_slice_equal(own, name);
}

static void set_owner(session_index *s, session_entry *entry, const session_state *state) {
    hmq_slice name = state->connected && state->owner != NULL ? slice_of(state->owner) : (hmq_slice){0};
    if (entry->owner != NULL && (!state->connected || state->owner == NULL || !same_name(entry->owner, name)))
        leave_owner(s, entry);
    if (state->connected && state->owner != NULL && entry->owner == NULL) join_owner(s, entry, name);
    if (entry->owner == NULL || state->owner_lease_s <= entry->owner->lease_s) return;
    owner_entry *owner = entry->owner;
    owner->lease_s = state->owner_lease_s;
    /* The owner's key will be read then.  If it does not exist, the owner has had one lease to return. */
    if (owner->armed_ms == 0) session_index_arm_owner(s, owner, sv.Milliseconds() + owner->lease_s * 1000);
}

/* True if a reader pins the index (index/index.h): the session will be read again. */
static bool defers(session_index *s, hmq_slice session) {
    if (s->index->pins[INDEX_SESSIONS] == 0) return false;
    server_string *name = session_key_name(session, HMQ_SUFFIX_SESSION);
    index_mark_stale(s->index, slice_of(name));
    sv.FreeString(NULL, name);
    return true;
}

void session_index_refresh(server_ctx *ctx, session_index *s, hmq_slice session) {
    session_state state;
    if (defers(s, session)) return;
    session_entry *entry = session_index_find(s, session);
    session_state_peek(ctx, session, &state);
    if (state.epoch == 0) {
        if (entry != NULL) drop_entry(s, entry);
        session_state_free(&state);
        return;
    }
    if (entry == NULL) entry = get_entry(s, session);
    entry->facts_known = false;
    s->connected += state.connected;
    s->connected -= entry->connected;
    s->refusing += state.refuses;
    s->refusing -= entry->refuses;
    entry->refuses = state.refuses;
    entry->gives_back = state.gives_back;
    entry->ending = state.ending;
    if (!state.gives_back && !state.ending) entry->gave_up_to = 0;
    entry->connected = state.connected;
    entry->epoch = state.epoch;
    entry->shares = state.shares;
    entry->window = (size_t)state.window;
    session_index_set_qos0(s, entry, state.qos0_until);
    entry->due_ms = session_state_due(&state);
    session_index_arm(s, entry, entry->due_ms);
    set_owner(s, entry, &state);
    set_user(s, entry, identity_of(&state));
    set_bounds(entry, &state);
    hmq_assert(s->connected <= sv.DictSize(s->sessions) && s->refusing <= sv.DictSize(s->sessions));
    hmq_assert(entry->due_ms == 0 || (entry->armed_ms != 0 && entry->armed_ms <= entry->due_ms)); /* invariant 2 */
    session_state_free(&state);
}

/* ---- comparing --------------------------------------------------------------------------------------------- */

static bool same_entry(const session_entry *a, const session_entry *b) {
    bool same_owner =
        (a->owner == NULL) == (b->owner == NULL) && (a->owner == NULL || same_name(a->owner, slice_of(b->owner->name)));
    return same_owner && usage_is_same(a->user, b->user) && a->user_bytes == b->user_bytes &&
           a->user_retained == b->user_retained && a->connected == b->connected && a->epoch == b->epoch &&
           a->shares == b->shares && a->refuses == b->refuses && a->gives_back == b->gives_back &&
           a->ending == b->ending && a->window == b->window && a->due_ms == b->due_ms && a->qos0_until == b->qos0_until;
}

void session_index_compare(const session_index *kept, const session_index *rebuilt,
                           void (*differ)(void *context, const char *what, hmq_slice name), void *context) {
    void *value;
    size_t of_owners = 0, with_owner = 0;
    server_dict_iter *iter = sv.DictIteratorStartC(kept->sessions, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &value)) {
        const session_entry *entry = value, *other = session_index_find(rebuilt, slice_of(entry->key));
        with_owner += entry->owner != NULL;
        if (other == NULL || !same_entry(entry, other))
            differ(context, "opened session in the index but not in the keys, or different", slice_of(entry->key));
    }
    sv.DictIteratorStop(iter);
    iter = sv.DictIteratorStartC(rebuilt->sessions, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &value)) {
        const session_entry *entry = value;
        if (session_index_find(kept, slice_of(entry->key)) == NULL)
            differ(context, "opened session in the keys but not in the index", slice_of(entry->key));
    }
    sv.DictIteratorStop(iter);
    iter = sv.DictIteratorStartC(kept->owners, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &value)) of_owners += sv.DictSize(((owner_entry *)value)->sessions);
    sv.DictIteratorStop(iter);
    if (of_owners != with_owner) differ(context, "the owners have another number of sessions", (hmq_slice){0});
}

long long owner_disconnected_since(const session_index *sessions, hmq_slice name) {
    const owner_entry *owner = session_index_owner(sessions, name);
    return owner == NULL ? 0 : owner->link_gone_ms;
}

/* ---- the kind ---------------------------------------------------------------------------------------------- */

session_entry *index_opened(server_ctx *ctx, hmq_slice session) {
    return index_is_current(ctx) ? session_index_find(index_peek(sv.GetSelectedDb(ctx))->opened, session) : NULL;
}

/* The length of the session key, if this is the name of {c}_session; else 0. */
static size_t session_of(hmq_slice name) {
    return hmq_session_key_of((const char *)name.data, name.len, HMQ_SUFFIX_SESSION);
}

static bool is_session(hmq_slice name) {
    return session_of(name) > 0;
}

/* Only on servers that serve clients.  In a cluster the session may just have moved. */
static bool may_report_sessions(server_ctx *ctx) {
    return index_watched_by.session_gone != NULL && !can.cluster && (sv.GetContextFlags(ctx) & SERVER_CTX_MASTER) != 0;
}

static void refresh(server_ctx *ctx, index_t *index, hmq_slice name) {
    hmq_slice session = {name.data, session_of(name)};
    const session_entry *entry = session_index_find(index->opened, session);
    long long epoch = entry == NULL || !entry->connected ? 0 : entry->epoch;
    session_index_refresh(ctx, index->opened, session);
    if (epoch > 0 && session_index_find(index->opened, session) == NULL && may_report_sessions(ctx))
        index_watched_by.session_gone(ctx, session, epoch);
}

static void emptied(server_ctx *ctx, index_t *index) {
    hmq_slice after = {0};
    if (!may_report_sessions(ctx)) return;
    index_pin(index, INDEX_SESSIONS);
    for (session_entry *e; (e = session_index_next(index->opened, after)) != NULL;) {
        after = slice_of(e->key);
        if (e->connected) index_watched_by.session_gone(ctx, after, e->epoch);
    }
    index_unpin(index, INDEX_SESSIONS);
}

static void make(index_t *index) {
    index->usage = usage_new();
    index->opened = session_index_new(index);
}

static void release(index_t *index) {
    session_index_free(index->opened);
    usage_free(index->usage);
}

static void written(index_t *index, hmq_slice name) {
    session_index_forget_facts(index->opened, name);
}

static void look(server_ctx *ctx, index_t *index) {
    hmq_slice after = {0};
    index_pin(index, INDEX_SESSIONS);
    for (session_entry *e; (e = session_index_next(index->opened, after)) != NULL; after = slice_of(e->key)) {
        server_string *name = session_key_name(slice_of(e->key), HMQ_SUFFIX_SESSION);
        if (index_type_of(ctx, slice_of(name)) != SERVER_HASH) index_mark_stale(index, slice_of(name));
        sv.FreeString(NULL, name);
    }
    index_unpin(index, INDEX_SESSIONS);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    session_index_compare(kept->opened, rebuilt->opened, differ, context);
    usage_compare(kept->usage, rebuilt->usage, differ, context);
}

const index_kind index_sessions_kind = {
    .make = make,
    .release = release,
    .is_key = is_session,
    .refresh = refresh,
    .written = written,
    .emptied = emptied,
    .look = look,
    .check = check,
};
