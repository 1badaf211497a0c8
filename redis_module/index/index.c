/* index.c - makes the indexes of all databases from keys, name by name or by a scan, and keeps them.  Each kind of
 * keys has its own part (index_kind). */
#include "index/internal.h"

#include <string.h>

#include "base/assert.h"
#include "server/awake.h"
#include "server/command_slot.h"
#include "server/keys.h"

static index_t **indexes; /* by database number */
static int index_count_;
static bool scan_new; /* the module was loaded into a server with keys: a new index begins with a scan */

static const index_kind *const *kinds; /* all kinds of entries; ends with NULL */

/* The kinds that have `is_key`, and those that have `used`: called for each event of a key. */
static const index_kind **of_keys, **of_names;

/* ---- making and freeing ------------------------------------------------------------------------------------ */

index_t *index_new(void) {
    awake_follow();
    index_t *index = sv.Calloc(1, sizeof *index);
    index->stale = sv.CreateDict(NULL);
    index->scan_needed = scan_new;
    for (const index_kind *const *kind = kinds; *kind != NULL; kind++) {
        if ((*kind)->make != NULL) (*kind)->make(index);
    }
    return index;
}

static bool is_pinned(const index_t *index) {
    size_t pins = 0;
    for (size_t part = 0; part < sizeof index->pins / sizeof index->pins[0]; part++) pins += index->pins[part];
    return pins > 0;
}

void index_free(index_t *index) {
    hmq_assert(!is_pinned(index)); /* invariant 4 */
    for (const index_kind *const *kind = kinds; *kind != NULL; kind++) {
        if ((*kind)->release != NULL) (*kind)->release(index);
    }
    sv.FreeDict(NULL, index->stale);
    sv.Free(index);
}

index_t *index_at(int db) {
    if (db >= index_count_) {
        indexes = sv.Realloc(indexes, (size_t)(db + 1) * sizeof *indexes);
        while (index_count_ <= db) indexes[index_count_++] = NULL;
    }
    if (indexes[db] == NULL) indexes[db] = index_new();
    return indexes[db];
}

void index_pin(index_t *index, index_part part) {
    index->pins[part]++;
}

void index_unpin(index_t *index, index_part part) {
    hmq_assert(index->pins[part] > 0);
    index->pins[part]--;
    if (index->abandoned && !is_pinned(index)) index_free(index);
}

void index_reset(int db) {
    if (db >= index_count_) return;
    index_t *index = indexes[db];
    if (index != NULL && is_pinned(index))
        index->abandoned = true;
    else if (index != NULL)
        index_free(index);
    indexes[db] = NULL;
    if (scan_new) index_at(db)->scan_needed = false;
}

void index_swap(int a, int b) {
    index_at(a), index_at(b);
    index_t *first = indexes[a];
    indexes[a] = indexes[b];
    indexes[b] = first;
}

void index_scan_new(bool scans) {
    scan_new = scans;
}

void index_mark_all_stale(void) {
    scan_new = true;
    for (int db = 0; db < index_count_; db++) {
        if (indexes[db] != NULL) indexes[db]->scan_needed = true;
    }
}

void index_forget_all(void) {
    scan_new = false;
    for (int db = 0; db < index_count_; db++) index_reset(db);
    scan_new = true;
}

/* ---- keeping current --------------------------------------------------------------------------------------- */

index_watcher index_watched_by;

/* Must the key be read to know what to do about its name? */
bool index_needs_look(hmq_slice name, bool expired) {
    if (name.len <= 2) return false;
    for (const index_kind *const *kind = of_keys; *kind != NULL; kind++) {
        if (!(expired && (*kind)->foresees_expiry) && (*kind)->is_key(name)) return true;
    }
    return false;
}

static void refresh(server_ctx *ctx, index_t *index, const char *text, size_t len) {
    hmq_slice name = {(const uint8_t *)text, len};
    for (const index_kind *const *kind = of_keys; *kind != NULL; kind++) {
        if ((*kind)->is_key(name)) (*kind)->refresh(ctx, index, name);
    }
}

void index_mark_stale(index_t *index, hmq_slice name) {
    awake_now();
    sv.DictSetC(index->stale, name.data, name.len, index);
}

void index_name_used(server_ctx *ctx, index_t *index, hmq_slice name, index_use use) {
    for (const index_kind *const *kind = of_names; *kind != NULL; kind++) (*kind)->used(ctx, index, name, use);
}

/* A key of any type may have this name now. */
void index_key_appeared(server_ctx *ctx, index_t *index, hmq_slice name) {
    if (index_needs_look(name, false)) index_mark_stale(index, name);
    index_name_used(ctx, index, name, INDEX_NAME_APPEARED);
}

int index_type_of(server_ctx *ctx, hmq_slice name) {
    server_string *key_name = sv.CreateString(NULL, (const char *)name.data, name.len);
    server_key *key = key_open_unseen(ctx, key_name, true);
    int type = key == NULL ? SERVER_EMPTY : sv.KeyType(key);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
    return type;
}

void index_watch(index_watcher who) {
    index_watched_by = who;
}

typedef struct scan_target {
    index_t *index;
} scan_target;

static void take_key(server_ctx *ctx, server_string *name, server_key *key, void *data) {
    (void)key;
    scan_target *target = data;
    hmq_slice text = slice_of(name);
    index_key_appeared(ctx, target->index, text);
}

static void scan(server_ctx *ctx, index_t *index) {
    long long begun_ms = sv.Milliseconds();
    scan_target target = {index};
    server_scan_cursor *cursor = sv.ScanCursorCreate();
    while (sv.Scan(ctx, cursor, take_key, &target)) {}
    sv.ScanCursorDestroy(cursor);
    index->scan_needed = false;
    counters.index_rebuilds++;
    slow_step("holdmq-index-scan", begun_ms);
}

static void refresh_stale(server_ctx *ctx, index_t *index) {
    server_dict *names = index->stale;
    index->stale = sv.CreateDict(NULL);
    server_dict_iter *iter = sv.DictIteratorStartC(names, "^", NULL, 0);
    size_t len;
    const char *name;
    while ((name = sv.DictNextC(iter, &len, NULL)) != NULL) refresh(ctx, index, name, len);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, names);
}

/* A copy of the first stale name that begins with the prefix and may be opened now; NULL if there is none. */
static server_string *stale_name(const index_t *index, hmq_slice prefix) {
    server_dict_iter *iter = sv.DictIteratorStartC(index->stale, ">=", prefix.data, prefix.len);
    server_string *copy = NULL;
    hmq_slice name;
    while (copy == NULL && (name.data = sv.DictNextC(iter, &name.len, NULL)) != NULL) {
        if (name.len < prefix.len || memcmp(name.data, prefix.data, prefix.len) != 0) break;
        if (command_slot_allows(name)) copy = sv.CreateString(NULL, (const char *)name.data, name.len);
    }
    sv.DictIteratorStop(iter);
    return copy;
}

#define OWN_NAMES 64 /* a session has a dozen keys, and reading an expired one adds its name again */

/* Only the session that the command names: keys of others may not be opened now (server/command_slot.h). */
static void refresh_own(server_ctx *ctx, index_t *index, hmq_slice session) {
    server_string *name;
    for (int rest = OWN_NAMES; rest > 0 && (name = stale_name(index, session)) != NULL; rest--) {
        hmq_slice text = slice_of(name);
        sv.DictDelC(index->stale, text.data, text.len, NULL);
        refresh(ctx, index, (const char *)text.data, text.len);
        sv.FreeString(NULL, name);
    }
}

static void sync_index(server_ctx *ctx, index_t *index) {
    hmq_assert(!is_pinned(index)); /* invariant 4 */
    if (command_slot_is_bound()) {
        if (command_slot_key().len > 0) refresh_own(ctx, index, command_slot_key());
        return;
    }
    for (const index_kind *const *kind = kinds; index->scan_needed && *kind != NULL; kind++) {
        if ((*kind)->doubt_all != NULL) (*kind)->doubt_all(index);
    }
    if (index->scan_needed) scan(ctx, index);
    /* Reading a key may expire another, and so mark its name: the rounds are bounded. */
    for (int round = 0; round < 8 && sv.DictSize(index->stale) > 0; round++) refresh_stale(ctx, index);
}

index_t *index_rebuild(server_ctx *ctx) {
    index_t *index = index_new();
    index->scan_needed = true;
    sync_index(ctx, index);
    return index;
}

void index_register(const index_kind *const *all) {
    size_t count = 1, keys = 0, names = 0;
    for (kinds = all; all[count - 1] != NULL;) count++;
    of_keys = sv.Calloc(count, sizeof *of_keys); /* one more than needed: each ends with NULL */
    of_names = sv.Calloc(count, sizeof *of_names);
    for (const index_kind *const *kind = all; *kind != NULL; kind++) {
        if ((*kind)->is_key != NULL) of_keys[keys++] = *kind;
        if ((*kind)->used != NULL) of_names[names++] = *kind;
    }
}

const index_kind *const *index_kinds(void) {
    return kinds;
}

int index_databases(void) {
    return index_count_;
}

bool index_exists(int db) {
    return db < index_count_ && indexes[db] != NULL;
}

index_t *index_of(server_ctx *ctx) {
    index_t *index = index_at(sv.GetSelectedDb(ctx));
    bool current = !index->scan_needed && sv.DictSize(index->stale) == 0;
    if (!current && !is_pinned(index)) sync_index(ctx, index);
    return index;
}

/* Does the work that commands with a key leave in other slots. */
void index_before_sleep(void) {
    for (int db = 0; can.cluster && db < index_count_; db++) {
        if (indexes[db] == NULL) continue;
        sv.SelectDb(detached, db);
        index_of(detached);
        sv.SelectDb(detached, 0);
    }
}

const index_t *index_peek(int db) {
    return index_exists(db) ? indexes[db] : NULL;
}

index_t *index_as_it_is(int db) {
    return index_exists(db) ? indexes[db] : NULL;
}

bool index_is_current(server_ctx *ctx) {
    int db = sv.GetSelectedDb(ctx);
    const index_t *index = index_exists(db) ? indexes[db] : NULL;
    return index != NULL && !index->scan_needed && sv.DictSize(index->stale) == 0;
}
