/* fan_out_pending.c - pending fan-outs by name, topic and owner. */
#include "routing/fan_out_pending.h"

#include <stdlib.h>
#include <string.h>

#include "server/session_keys.h"
#include "routing/quota.h"

#define OWN_LOOKS 8U /* at fan-outs of an owner in turn, whose topics may have earlier ones of others */
#define NO_CLIENT 0  /* the owner of what a program published */

/* The key in by_topic.  With an empty `name`: the prefix of all keys of the topic. */
static server_string *topic_key(hmq_slice topic, hmq_slice name) {
    size_t len = topic.len + 1 + name.len;
    char *bytes = sv.Alloc(len);
    memcpy(bytes, topic.data, topic.len);
    bytes[topic.len] = '\0'; /* in no topic */
    if (name.len > 0) memcpy(bytes + topic.len + 1, name.data, name.len);
    server_string *key = sv.CreateString(NULL, bytes, len);
    sv.Free(bytes);
    return key;
}

#define OWNER_KEY_LEN (8 + FAN_OUT_NAME_LEN)

/* The key in by_owner. */
static void owner_key(unsigned char *key, uint64_t owner, hmq_slice name) {
    for (int i = 0; i < 8; i++) key[i] = (unsigned char)(owner >> (56 - 8 * i));
    memset(key + 8, 0, FAN_OUT_NAME_LEN);
    if (name.len > 0) memcpy(key + 8, name.data, name.len < FAN_OUT_NAME_LEN ? name.len : FAN_OUT_NAME_LEN);
}

fan_outs *fan_outs_new(void) {
    fan_outs *all = sv.Calloc(1, sizeof *all);
    all->by_name = sv.CreateDict(NULL);
    all->by_topic = sv.CreateDict(NULL);
    all->by_owner = sv.CreateDict(NULL);
    all->programs = program_loads_new();
    all->judged = judgings_new();
    return all;
}

void fan_outs_free(fan_outs *all) {
    server_dict_iter *iter = sv.DictIteratorStartC(all->by_name, "^", NULL, 0);
    void *value;
    size_t len;
    while (sv.DictNextC(iter, &len, &value) != NULL) {
        fan_out *f = value;
        sv.FreeString(NULL, f->name);
        sv.FreeString(NULL, f->topic);
        sv.Free(f);
    }
    sv.DictIteratorStop(iter);
    fan_out_search_end(all);
    sv.FreeDict(NULL, all->by_name);
    sv.FreeDict(NULL, all->by_topic);
    sv.FreeDict(NULL, all->by_owner);
    program_loads_free(all->programs);
    judgings_free(all->judged);
    sv.Free(all);
}

fan_out *fan_out_find(const fan_outs *all, hmq_slice name) {
    return sv.DictGetC(all->by_name, (void *)(uintptr_t)name.data, name.len, NULL);
}

size_t fan_out_bytes(const fan_out *f) {
    return f->record_bytes + f->chunks * f->chunk_bytes;
}

void fan_out_search_begin(fan_outs *all, fan_out *of, server_string *record) {
    all->search = sv.Calloc(1, sizeof *all->search);
    all->search->of = of;
    all->search->record = record;
    matching_begin(&all->search->found, true);
}

void fan_out_search_end(fan_outs *all) {
    if (all->search == NULL) return;
    matching_end(&all->search->found);
    sv.FreeString(NULL, all->search->record);
    sv.Free(all->search);
    all->search = NULL;
}

void fan_out_matched(fan_outs *all, fan_out *f, size_t chunks, size_t chunk_bytes) {
    f->is_unmatched = false;
    f->chunks = chunks;
    f->chunk_bytes = chunk_bytes;
    all->chunks += chunks;
    program_loads_add(all->programs, f->program, 0, chunks * chunk_bytes);
}

void fan_out_forget(fan_outs *all, fan_out *f) {
    if (all->search != NULL && all->search->of == f) fan_out_search_end(all);
    program_loads_remove(all->programs, f->program, 1, fan_out_bytes(f));
    hmq_slice name = slice_of(f->name);
    server_string *key = topic_key(slice_of(f->topic), name);
    sv.DictDelC(all->by_topic, (void *)(uintptr_t)slice_of(key).data, slice_of(key).len, NULL);
    sv.FreeString(NULL, key);
    unsigned char of_owner[OWNER_KEY_LEN];
    owner_key(of_owner, f->owner, name);
    sv.DictDelC(all->by_owner, of_owner, sizeof of_owner, NULL);
    all->chunks -= f->chunks;
    all->all_bytes -= f->record_bytes;
    if (f->owner != NO_CLIENT) all->of_clients--, all->record_bytes -= f->record_bytes;
    sv.DictDelC(all->by_name, (void *)(uintptr_t)name.data, name.len, NULL);
    sv.FreeString(NULL, f->name);
    sv.FreeString(NULL, f->topic);
    sv.Free(f);
}

void fan_out_chunk_done(fan_outs *all, fan_out *f) {
    all->chunks--;
    f->chunks--;
    program_loads_remove(all->programs, f->program, 0, f->chunk_bytes);
}

uint64_t fan_out_owner(const index_t *index, hmq_slice client_id) {
    hmq_slice identity = quota_of_client(index, client_id).identity;
    return identity.len > 0 ? client_hash(identity) : client_id.len > 0 ? client_hash(client_id) : NO_CLIENT;
}

fan_out *fan_out_remember(index_t *index, hmq_slice name, const hmq_record *record, const fan_out *sizes) {
    fan_outs *all = index->fan_outs;
    fan_out *f = sv.Calloc(1, sizeof *f);
    *f = *sizes;
    f->name = sv.CreateString(NULL, (const char *)name.data, name.len);
    f->topic = sv.CreateString(NULL, (const char *)record->topic.data, record->topic.len);
    f->owner = fan_out_owner(index, record->publisher);
    sv.DictSetC(all->by_name, (void *)(uintptr_t)name.data, name.len, f);
    server_string *key = topic_key(record->topic, name);
    sv.DictSetC(all->by_topic, (void *)(uintptr_t)slice_of(key).data, slice_of(key).len, f);
    sv.FreeString(NULL, key);
    unsigned char of_owner[OWNER_KEY_LEN];
    owner_key(of_owner, f->owner, name);
    sv.DictSetC(all->by_owner, of_owner, sizeof of_owner, f);
    all->chunks += f->chunks;
    all->all_bytes += f->record_bytes;
    if (f->owner != NO_CLIENT) all->of_clients++, all->record_bytes += f->record_bytes;
    unsigned long long number = strtoull((const char *)slice_of(f->name).data + (sizeof FAN_OUT_PREFIX - 1), NULL, 16);
    if (number > all->last_number) all->last_number = number;
    program_loads_add(all->programs, f->program, 1, fan_out_bytes(f));
    return f;
}

size_t fan_out_chunks_of(const fan_outs *all, uint64_t owner) {
    unsigned char from[OWNER_KEY_LEN];
    owner_key(from, owner, (hmq_slice){0});
    server_dict_iter *iter = sv.DictIteratorStartC(all->by_owner, ">=", from, sizeof from);
    size_t chunks = 0, len;
    void *value;
    while (sv.DictNextC(iter, &len, &value) != NULL && ((const fan_out *)value)->owner == owner)
        chunks += ((const fan_out *)value)->is_unmatched ? FAN_OUT_UNMATCHED_CHUNKS : ((const fan_out *)value)->chunks;
    sv.DictIteratorStop(iter);
    return chunks;
}

bool fan_out_any(const index_t *index) {
    return sv.DictSize(index->fan_outs->by_name) > 0;
}

size_t fan_out_count(const index_t *index) {
    return sv.DictSize(index->fan_outs->by_name);
}

/* The oldest fan-out of this topic that is pending, or NULL.  O(log n). */
static const fan_out *oldest_of(const fan_outs *all, hmq_slice topic) {
    server_string *prefix = topic_key(topic, (hmq_slice){0});
    hmq_slice begins = slice_of(prefix), key;
    server_dict_iter *iter = sv.DictIteratorStartC(all->by_topic, ">=", (void *)(uintptr_t)begins.data, begins.len);
    void *value;
    key.data = sv.DictNextC(iter, &key.len, &value);
    bool found = key.data != NULL && key.len > begins.len && memcmp(key.data, begins.data, begins.len) == 0;
    sv.DictIteratorStop(iter);
    sv.FreeString(NULL, prefix);
    return found ? value : NULL;
}

/* Is a fan-out of this topic pending that was published before `than` (NULL: any fan-out)? */
static bool has_earlier(const fan_outs *all, hmq_slice topic, const fan_out *than) {
    const fan_out *oldest = oldest_of(all, topic);
    return oldest != NULL && oldest != than;
}

bool fan_out_is_topic_pending(const index_t *index, hmq_slice topic) {
    return fan_out_any(index) && oldest_of(index->fan_outs, topic) != NULL;
}

/* The oldest fan-out of the first owner between `from` and `last` that has one without an earlier fan-out of its topic; or
 * NULL.  Only the oldest OWN_LOOKS of an owner are looked at.  The oldest of all is always found: nothing is before it. */
static fan_out *next_between(const fan_outs *all, uint64_t from, uint64_t last) {
    for (;;) {
        unsigned char key[OWNER_KEY_LEN];
        owner_key(key, from, (hmq_slice){0});
        server_dict_iter *iter = sv.DictIteratorStartC(all->by_owner, ">=", key, sizeof key);
        fan_out *found = NULL;
        uint64_t owner = 0;
        size_t len, looks = 0;
        void *value;
        while (found == NULL && looks < OWN_LOOKS && sv.DictNextC(iter, &len, &value) != NULL) {
            fan_out *f = value;
            if (looks++ == 0) owner = f->owner;
            if (f->owner != owner) break;
            if (owner <= last && !has_earlier(all, slice_of(f->topic), f)) found = f;
        }
        sv.DictIteratorStop(iter);
        if (found != NULL || looks == 0 || owner >= last) return found;
        from = owner + 1;
    }
}

fan_out *fan_out_next(const fan_outs *all) {
    uint64_t served = all->last_owner;
    fan_out *after = served < UINT64_MAX ? next_between(all, served + 1, UINT64_MAX) : NULL;
    return after != NULL ? after : next_between(all, 0, served);
}
