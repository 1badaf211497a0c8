/* usage.c - what each user has. */
#include "index/usage.h"

#include <string.h>

#include "server/replication.h"

usage *usage_new(void) {
    usage *all = sv.Calloc(1, sizeof *all);
    all->users = sv.CreateDict(NULL);
    return all;
}

static void free_user(usage_user *user) {
    sv.FreeString(NULL, user->name);
    sv.Free(user);
}

void usage_free(usage *all) {
    void *user;
    server_dict_iter *iter = sv.DictIteratorStartC(all->users, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &user)) free_user(user);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, all->users);
    sv.Free(all);
}

usage_user *usage_find(const usage *all, hmq_slice identity) {
    return identity.len == 0 ? NULL : sv.DictGetC(all->users, identity.data, identity.len, NULL);
}

usage_user *usage_make(usage *all, hmq_slice identity) {
    usage_user *user = usage_find(all, identity);
    if (user != NULL) return user;
    user = sv.Calloc(1, sizeof *user);
    user->name = sv.CreateString(NULL, (const char *)identity.data, identity.len);
    sv.DictSetC(all->users, identity.data, identity.len, user);
    return user;
}

void usage_free_if_empty(usage *all, usage_user *user) {
    if (user == NULL || user->sessions > 0 || user->retained > 0) return;
    hmq_slice name = slice_of(user->name);
    sv.DictDelC(all->users, name.data, name.len, NULL);
    free_user(user);
}

bool usage_is_same(const usage_user *a, const usage_user *b) {
    if (a == NULL || b == NULL) return a == b;
    hmq_slice one = slice_of(a->name), other = slice_of(b->name);
    return hmq_slice_equal(one, other);
}

/* ---- bytes ------------------------------------------------------------------------------------------------- */

static long own_bounds; /* sessions of all databases */

void usage_bounds_changed(long by) {
    own_bounds += by;
}

unsigned long long usage_era(void) {
    static unsigned long long era, doubts;
    static bool counted;
    bool counts = settings.max_queue_bytes > 0 || settings.max_queue_bytes_per_user > 0 || own_bounds > 0;
    if (counts && (!counted || doubts != replication_change_count())) era++;
    counted = counts;
    doubts = replication_change_count();
    return counts ? era : 0;
}

size_t usage_bytes(const usage_sum *sum) {
    return sum->era == usage_era() ? sum->bytes : 0;
}

static void add(usage_sum *sum, size_t more, size_t less) {
    size_t bytes = usage_bytes(sum);
    sum->era = usage_era();
    sum->bytes = bytes + more > less ? bytes + more - less : 0;
}

void usage_set(usage *all, usage_user *user, usage_queue *of, size_t bytes) {
    size_t before = usage_is_counted(of) ? of->bytes : 0;
    of->bytes = bytes;
    of->era = usage_era();
    add(&all->queued, bytes, before);
    if (user != NULL) add(&user->queued, bytes, before);
}

void usage_forget(usage *all, usage_user *user, usage_queue *of) {
    if (usage_is_counted(of)) usage_set(all, user, of, 0);
    *of = (usage_queue){0};
}

void usage_move(usage_user *from, usage_user *to, const usage_queue *of) {
    if (!usage_is_counted(of)) return;
    if (from != NULL) add(&from->queued, 0, of->bytes);
    if (to != NULL) add(&to->queued, of->bytes, 0);
}

/* ---- comparing --------------------------------------------------------------------------------------------- */

void usage_compare(const usage *kept, const usage *rebuilt,
                   void (*differ)(void *context, const char *what, hmq_slice name), void *context) {
    void *value;
    server_dict_iter *iter = sv.DictIteratorStartC(kept->users, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &value)) {
        const usage_user *user = value, *other = usage_find(rebuilt, slice_of(user->name));
        bool same = other != NULL && other->sessions == user->sessions && other->retained == user->retained;
        if (!same) differ(context, "a user has other sessions or retained messages", slice_of(user->name));
    }
    sv.DictIteratorStop(iter);
    if (sv.DictSize(kept->users) != sv.DictSize(rebuilt->users))
        differ(context, "there is another number of users", (hmq_slice){0});
}

/* ---- logging ----------------------------------------------------------------------------------------------- */

/* Lines in the log, of all users together. */
#define LOGGED_MOST 10
#define LOGGED_EVERY_MS 10000

bool quota_may_log(usage_user *user) {
    static long long begun_ms;
    static unsigned logged;
    long long now_ms = sv.Milliseconds();
    if (user != NULL && user->logged_ms > 0 && now_ms - user->logged_ms < QUOTA_LOGGED_EVERY_S * 1000LL) return false;
    if (now_ms - begun_ms >= LOGGED_EVERY_MS) begun_ms = now_ms, logged = 0;
    if (logged++ >= LOGGED_MOST) return false;
    if (user != NULL) user->logged_ms = now_ms;
    return true;
}
