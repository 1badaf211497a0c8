/* retained.c - which topics have a retained message, and for whom each counts. */
#include "index/retained.h"

#include <string.h>

#include "base/assert.h"
#include "topic/session_key.h"
#include "topic/topic.h"
#include "index/check.h"
#include "index/retained_topics.h"
#include "index/usage.h"

static void free_retained(retained_entry *entry) {
    sv.FreeString(NULL, entry->key);
    sv.Free(entry);
}

static bool retained_topic(hmq_slice key, char topic[HMQ_TOPIC_MAX_BYTES], size_t *len) {
    int64_t n = hmq_retained_topic((const char *)key.data, key.len, topic, HMQ_TOPIC_MAX_BYTES);
    if (n <= 0 || hmq_topic_check_name(topic, (size_t)n) != HMQ_TOPIC_OK) return false;
    *len = (size_t)n;
    return true;
}

/* True if the part is pinned: the key will be read again. */
static bool defers_key(index_t *index, index_part part, hmq_slice key) {
    if (index->pins[part] == 0) return false;
    index_mark_stale(index, key);
    return true;
}

static void set_retained_user(index_t *index, retained_entry *entry, hmq_slice identity) {
    usage_user *before = entry->user, *user = identity.len == 0 ? NULL : usage_make(index->usage, identity);
    if (before == user) return;
    if (user != NULL) user->retained++;
    hmq_assert(before == NULL || before->retained > 0);
    if (before != NULL) before->retained--;
    entry->user = user;
    usage_free_if_empty(index->usage, before);
}

void index_set_retained(index_t *index, hmq_slice key, hmq_slice identity) {
    char topic[HMQ_TOPIC_MAX_BYTES];
    size_t len;
    retained_entry *entry = sv.DictGetC(index->retained_keys, key.data, key.len, NULL);
    if (entry == NULL) {
        if (!retained_topic(key, topic, &len) || defers_key(index, INDEX_RETAINED, key)) return;
        entry = sv.Calloc(1, sizeof *entry);
        entry->key = sv.CreateString(NULL, (const char *)key.data, key.len);
        sv.DictSetC(index->retained_keys, key.data, key.len, entry);
        retained_topics_set(index->retained, (hmq_slice){(const uint8_t *)topic, len}, entry->key);
        hmq_assert(sv.DictSize(index->retained) == sv.DictSize(index->retained_keys));
    }
    set_retained_user(index, entry, identity);
}

void index_remove_retained(index_t *index, hmq_slice key) {
    char topic[HMQ_TOPIC_MAX_BYTES];
    size_t len;
    retained_entry *entry = sv.DictGetC(index->retained_keys, key.data, key.len, NULL);
    if (entry == NULL || !retained_topic(key, topic, &len) || defers_key(index, INDEX_RETAINED, key)) return;
    set_retained_user(index, entry, (hmq_slice){0});
    retained_topics_remove(index->retained, (hmq_slice){(const uint8_t *)topic, len});
    sv.DictDelC(index->retained_keys, key.data, key.len, NULL);
    hmq_assert(sv.DictSize(index->retained) == sv.DictSize(index->retained_keys));
    free_retained(entry);
}

/* A key that exists and is a hash is a retained message; a field says for which user it counts. */
static void refresh_retained(server_ctx *ctx, index_t *index, hmq_slice name) {
    server_string *key_name = sv.CreateString(NULL, (const char *)name.data, name.len), *identity = NULL;
    server_key *key = sv.OpenKey(ctx, key_name, SERVER_READ | SERVER_OPEN_NOTOUCH);
    bool is_hash = sv.KeyType(key) == SERVER_HASH;
    if (is_hash) sv.HashGet(key, SERVER_HASH_CFIELDS, RETAINED_IDENTITY, &identity, NULL);
    if (key != NULL) sv.CloseKey(key);
    sv.FreeString(NULL, key_name);
    hmq_slice who = identity == NULL ? (hmq_slice){0} : slice_of(identity);
    if (is_hash)
        index_set_retained(index, name, who.len <= IDENTITY_MAX_BYTES ? who : (hmq_slice){0});
    else
        index_remove_retained(index, name);
    if (identity != NULL) sv.FreeString(NULL, identity);
}

static bool is_retained(hmq_slice name) {
    static const char suffix[] = "}_retained";
    size_t n = sizeof suffix - 1;
    return name.len > n && name.data[0] == '{' && memcmp(name.data + name.len - n, suffix, n) == 0;
}

static void make(index_t *index) {
    index->retained = sv.CreateDict(NULL);
    index->retained_keys = sv.CreateDict(NULL);
}

static void release(index_t *index) {
    server_dict_iter *iter = sv.DictIteratorStartC(index->retained_keys, "^", NULL, 0);
    void *retained;
    while (sv.DictNextC(iter, NULL, &retained)) free_retained(retained);
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, index->retained_keys);
    sv.FreeDict(NULL, index->retained);
}

/* ---- checking ---------------------------------------------------------------------------------------------- */

static void look(server_ctx *ctx, index_t *index) {
    (void)ctx;
    server_dict_iter *iter = sv.DictIteratorStartC(index->retained_keys, "^", NULL, 0);
    hmq_slice name;
    while ((name.data = sv.DictNextC(iter, &name.len, NULL)) != NULL) index_mark_stale(index, name);
    sv.DictIteratorStop(iter);
}

/* For which user each retained message counts. */
static void compare_holders(const index_t *a, const index_t *b, index_differ differ, void *context) {
    server_dict_iter *iter = sv.DictIteratorStartC(a->retained_keys, "^", NULL, 0);
    hmq_slice name;
    void *value;
    while ((name.data = sv.DictNextC(iter, &name.len, &value)) != NULL) {
        const retained_entry *entry = value;
        const retained_entry *other = sv.DictGetC(b->retained_keys, (void *)(uintptr_t)name.data, name.len, NULL);
        if (other == NULL) continue; /* reported elsewhere */
        if (!usage_is_same(entry->user, other->user))
            differ(context, "retained message of another user in the index", name);
    }
    sv.DictIteratorStop(iter);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    index_compare_names(kept->retained_keys, rebuilt->retained_keys, false,
                        "retained message in the index but not in the keys", differ, context);
    index_compare_names(rebuilt->retained_keys, kept->retained_keys, false,
                        "retained message in the keys but not in the index", differ, context);
    compare_holders(kept, rebuilt, differ, context);
    index_compare_names(kept->retained, rebuilt->retained, false, "retained topic in the index but not in the keys",
                        differ, context);
    if (sv.DictSize(kept->retained) != sv.DictSize(kept->retained_keys))
        differ(context, "there is another number of retained topics than of their keys", (hmq_slice){0});
}

const index_kind index_retained_kind = {
    .make = make,
    .release = release,
    .is_key = is_retained,
    .refresh = refresh_retained,
    .look = look,
    .check = check,
};
