/* shares.c - the shared subscriptions of a database, in memory. */
#include "index/shares.h"

#include "base/assert.h"
#include "topic/topic.h"
#include "server/session_keys.h"

bool share_is(hmq_slice filter, hmq_slice *inner) {
    hmq_slice group;
    return hmq_topic_split_share((const char *)filter.data, filter.len, &group, inner);
}

share *share_find(server_dict *shares, hmq_slice filter) {
    return sv.DictGetC(shares, filter.data, filter.len, NULL);
}

static share *make(server_dict *shares, hmq_trie *trie, hmq_slice filter) {
    hmq_slice inner;
    share *s = sv.Calloc(1, sizeof *s);
    s->filter = sv.CreateString(NULL, (const char *)filter.data, filter.len);
    s->key = session_key_of(filter);
    s->members = sv.CreateDict(NULL);
    s->waits = true; /* until the first look */
    sv.DictSetC(shares, filter.data, filter.len, s);
    if (share_is(filter, &inner))
        hmq_trie_set(trie, (const char *)inner.data, inner.len, (uint64_t)(uintptr_t)s | SHARE_TAG, 0);
    return s;
}

static void release(share *s) {
    sv.FreeString(NULL, s->filter);
    sv.FreeString(NULL, s->key);
    if (s->last != NULL) sv.FreeString(NULL, s->last);
    if (s->leaver != NULL) sv.FreeString(NULL, s->leaver);
    sv.FreeDict(NULL, s->members);
    sv.Free(s);
}

void share_join(server_dict *shares, hmq_trie *trie, hmq_slice filter, hmq_slice session_key,
                struct indexed_session *session) {
    share *s = share_find(shares, filter);
    if (s == NULL) s = make(shares, trie, filter);
    sv.DictReplaceC(s->members, session_key.data, session_key.len, session);
    hmq_assert(((uintptr_t)s & SHARE_TAG) == 0 && sv.DictSize(s->members) > 0); /* invariant 1 */
}

void share_leave(server_dict *shares, hmq_trie *trie, hmq_slice filter, hmq_slice session_key) {
    hmq_slice inner;
    share *s = share_find(shares, filter);
    if (s == NULL) return;
    hmq_assert(sv.DictSize(s->members) > 0); /* invariant 1 */
    sv.DictDelC(s->members, session_key.data, session_key.len, NULL);
    if (sv.DictSize(s->members) > 0) return;
    if (share_is(filter, &inner))
        hmq_trie_remove(trie, (const char *)inner.data, inner.len, (uint64_t)(uintptr_t)s | SHARE_TAG);
    sv.DictDelC(shares, filter.data, filter.len, NULL);
    release(s);
}

void share_free_all(server_dict *shares) {
    void *s;
    server_dict_iter *iter = sv.DictIteratorStartC(shares, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &s)) release(s);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, shares);
}

static void *first_member(const share *s, const char *op, hmq_slice key) {
    void *member = NULL;
    server_dict_iter *iter = sv.DictIteratorStartC(s->members, op, (void *)(uintptr_t)key.data, key.len);
    if (sv.DictNextC(iter, NULL, &member) == NULL) member = NULL;
    sv.DictIteratorStop(iter);
    return member;
}

struct indexed_session *share_next_member(const share *s, const server_string *after) {
    void *next = after == NULL ? NULL : first_member(s, ">", slice_of(after));
    return next != NULL ? next : first_member(s, "^", (hmq_slice){0});
}

static void compare_members(const share *a, const share *b,
                            void (*differ)(void *context, const char *what, hmq_slice name), void *context) {
    size_t len;
    const char *key;
    server_dict_iter *iter = sv.DictIteratorStartC(a->members, "^", NULL, 0);
    while ((key = sv.DictNextC(iter, &len, NULL)) != NULL) {
        int missing = 0;
        if (b != NULL) sv.DictGetC(b->members, key, len, &missing);
        if (b == NULL || missing)
            differ(context, "the members of a share differ", (hmq_slice){(const uint8_t *)key, len});
    }
    sv.DictIteratorStop(iter);
}

void share_compare(server_dict *a, server_dict *b, void (*differ)(void *context, const char *what, hmq_slice name),
                   void *context) {
    void *value;
    server_dict_iter *iter = sv.DictIteratorStartC(a, "^", NULL, 0);
    while (sv.DictNextC(iter, NULL, &value)) {
        const share *s = value;
        compare_members(s, share_find(b, slice_of(s->filter)), differ, context);
    }
    sv.DictIteratorStop(iter);
}
