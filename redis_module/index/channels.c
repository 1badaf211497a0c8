/* channels.c - keeps which kinds of keys each channel has, and whether the application uses a channel's name. */
#include "index/channels.h"

#include <string.h>

#include "server/awake.h"
#include "server/turns.h"
#include "index/check.h"

#define FILTER_BITS (1u << 20) /* 128 KiB: with 10,000 names of lists, one other name in 2,600 is mistaken for a list */
#define SCRIPT_KEYS 64

static uint64_t lists_seen[FILTER_BITS / 64];
static uint64_t script_keys[SCRIPT_KEYS];
static size_t script_key_count;

/* Similar to FNV-1a, by words: fast.  A collision is of no use to an attacker. */
static uint64_t hash_of(hmq_slice name) {
    const uint64_t prime = 0x9e3779b97f4a7c15u;
    uint64_t hash = 0xcbf29ce484222325u ^ name.len, word;
    for (size_t i = 0; i < name.len; i += sizeof word) {
        word = 0;
        memcpy(&word, name.data + i, name.len - i < sizeof word ? name.len - i : sizeof word);
        hash = (hash ^ word) * prime;
        hash ^= hash >> 32;
    }
    return hash * prime;
}

static bool list_was_seen(uint64_t hash) {
    uint32_t a = (uint32_t)hash % FILTER_BITS, b = (uint32_t)(hash >> 32) % FILTER_BITS;
    return (lists_seen[a / 64] >> a % 64 & 1) && (lists_seen[b / 64] >> b % 64 & 1);
}

static void see_list(uint64_t hash) {
    uint32_t a = (uint32_t)hash % FILTER_BITS, b = (uint32_t)(hash >> 32) % FILTER_BITS;
    lists_seen[a / 64] |= 1ULL << a % 64;
    lists_seen[b / 64] |= 1ULL << b % 64;
}

/* ---- kinds ------------------------------------------------------------------------------------------------- */

unsigned channel_index_kinds(const index_t *index, hmq_slice channel) {
    if (sv.DictSize(index->held) == 0) return 0;
    return (unsigned)(uintptr_t)sv.DictGetC(index->held, channel.data, channel.len, NULL);
}

static bool has_anywhere(hmq_slice channel, unsigned asked) {
    for (int db = 0; db < index_databases(); db++) {
        const index_t *index = index_peek(db);
        if (index == NULL) continue;
        if (index->scan_needed || (channel_index_kinds(index, channel) & asked)) return true;
    }
    return false;
}

bool channel_index_holds_anywhere(hmq_slice channel) {
    return has_anywhere(channel, KIND_BIT(HMQ_CHANNEL_HELD));
}

bool channel_index_keeps_nothing(void) {
    for (int db = 0; db < index_databases(); db++) {
        const index_t *index = index_peek(db);
        if (index != NULL && (index->scan_needed || sv.DictSize(index->held) > 0)) return false;
    }
    return true;
}

bool channel_index_keeps_anywhere(hmq_slice channel) {
    return has_anywhere(channel, ~0u);
}

void channel_index_set(index_t *index, hmq_slice channel, hmq_channel_key_kind kind, bool present) {
    unsigned before = channel_index_kinds(index, channel);
    unsigned now = present ? before | KIND_BIT(kind) : before & ~KIND_BIT(kind);
    if (now == before) return;
    awake_now();
    if (now == 0)
        sv.DictDelC(index->held, channel.data, channel.len, NULL);
    else
        sv.DictReplaceC(index->held, channel.data, channel.len, (void *)(uintptr_t)now);
    if (sv.DictSize(index->claimed) > 0 && (!(now & KIND_BIT(HMQ_CHANNEL_HELD)) || (now & KIND_BIT(HMQ_CHANNEL_ASIDE))))
        sv.DictDelC(index->claimed, channel.data, channel.len, NULL);
}

bool channel_index_is_key(hmq_slice name) {
    static const char prefix[] = "holdmq:";
    return name.len > sizeof prefix - 1 && memcmp(name.data, prefix, sizeof prefix - 1) == 0;
}

void channel_index_key_changed(index_t *index, hmq_slice name, bool present) {
    hmq_channel_key_kind kind;
    server_string *channel = channel_of_key(name, &kind);
    if (channel == NULL) return;
    awake_now(); /* also if it is loaded beside the served keys, where it cannot be seen yet */
    channel_index_set(index, slice_of(channel), kind, present);
    sv.FreeString(NULL, channel);
}

/* ---- who uses the names ------------------------------------------------------------------------------------- */

static void claim(index_t *index, hmq_slice name) {
    sv.DictSetC(index->claimed, name.data, name.len, index);
    turns_request();
}

void channel_index_name_used(index_t *index, hmq_slice name, bool is_list) {
    if (is_list) see_list(hash_of(name));
    unsigned kinds = channel_index_kinds(index, name);
    if ((kinds & KIND_BIT(HMQ_CHANNEL_HELD)) && !(kinds & KIND_BIT(HMQ_CHANNEL_ASIDE))) claim(index, name);
}

void channel_index_forget_names(void) {
    memset(lists_seen, 0, sizeof lists_seen);
}

void channel_index_script(server_string *const *keys, size_t count) {
    script_key_count = count < SCRIPT_KEYS ? count : SCRIPT_KEYS;
    for (size_t i = 0; i < script_key_count; i++) script_keys[i] = hash_of(slice_of(keys[i]));
}

static bool script_names(uint64_t hash) {
    for (size_t i = 0; i < script_key_count; i++) {
        if (script_keys[i] == hash) return true;
    }
    return false;
}

bool channel_index_is_marked_used(const index_t *index, hmq_slice channel) {
    if (channel_index_kinds(index, channel) & KIND_BIT(HMQ_CHANNEL_ASIDE)) return true;
    return sv.DictSize(index->claimed) > 0 && sv.DictGetC(index->claimed, channel.data, channel.len, NULL) != NULL;
}

bool channel_index_is_used(server_ctx *ctx, const index_t *index, hmq_slice channel, server_string *name) {
    if (channel_index_is_marked_used(index, channel) || key_exists_unseen(ctx, name)) return true;
    uint64_t hash = hash_of(channel);
    return list_was_seen(hash) || ((sv.GetContextFlags(ctx) & SERVER_CTX_LUA) && script_names(hash));
}

void channel_index_unclaim(int db, hmq_slice channel) {
    const index_t *index = index_peek(db);
    if (index != NULL) sv.DictDelC(index->claimed, channel.data, channel.len, NULL);
}

server_string *channel_index_claimed(index_t *index) {
    if (sv.DictSize(index->claimed) == 0) return NULL;
    server_dict_iter *iter = sv.DictIteratorStartC(index->claimed, "^", NULL, 0);
    size_t len;
    const char *name = sv.DictNextC(iter, &len, NULL);
    server_string *channel = sv.CreateString(NULL, name, len);
    sv.DictIteratorStop(iter);
    return channel;
}

static void look_at_channel(server_ctx *ctx, index_t *index, hmq_slice channel) {
    for (int kind = 0; kind < HMQ_CHANNEL_KEY_KINDS; kind++) {
        if (!(channel_index_kinds(index, channel) & KIND_BIT(kind))) continue;
        server_string *name = channel_key(channel, (hmq_channel_key_kind)kind);
        server_key *key = key_open_unseen(ctx, name, true);
        if (sv.KeyType(key) != SERVER_LIST) channel_index_set(index, channel, (hmq_channel_key_kind)kind, false);
        if (key != NULL) sv.CloseKey(key);
        sv.FreeString(NULL, name);
    }
}

void channel_index_look(server_ctx *ctx, index_t *index) {
    server_dict *channels = sv.CreateDict(NULL);
    server_dict_iter *iter = sv.DictIteratorStartC(index->held, "^", NULL, 0);
    size_t len;
    const char *name;
    while ((name = sv.DictNextC(iter, &len, NULL)) != NULL) sv.DictSetC(channels, name, len, index);
    sv.DictIteratorStop(iter);
    iter = sv.DictIteratorStartC(channels, "^", NULL, 0);
    while ((name = sv.DictNextC(iter, &len, NULL)) != NULL)
        look_at_channel(ctx, index, (hmq_slice){(const uint8_t *)name, len});
    sv.DictIteratorStop(iter);
    sv.FreeDict(NULL, channels);
}

bool channel_index_shows_anywhere(hmq_slice channel) {
    for (int db = 0; db < index_databases(); db++) {
        const index_t *index = index_peek(db);
        if (index == NULL) continue;
        if (index->scan_needed) return true;
        unsigned kinds = channel_index_kinds(index, channel);
        if ((kinds & KIND_BIT(HMQ_CHANNEL_HELD)) && !channel_index_is_marked_used(index, channel)) return true;
    }
    return false;
}

/* ---- the kind ---------------------------------------------------------------------------------------------- */

static void used(server_ctx *ctx, index_t *index, hmq_slice name, index_use use) {
    if (!channel_index_is_key(name))
        channel_index_name_used(index, name, use == INDEX_NAME_LIST);
    else if (use == INDEX_NAME_APPEARED)
        channel_index_key_changed(index, name, index_type_of(ctx, name) == SERVER_LIST);
    else
        channel_index_key_changed(index, name, use == INDEX_NAME_LIST);
}

static void make(index_t *index) {
    index->held = sv.CreateDict(NULL);
    index->claimed = sv.CreateDict(NULL);
}

static void release(index_t *index) {
    sv.FreeDict(NULL, index->held);
    sv.FreeDict(NULL, index->claimed);
}

static void check(server_ctx *ctx, index_t *kept, index_t *rebuilt, index_differ differ, void *context) {
    (void)ctx;
    index_compare_names(kept->held, rebuilt->held, true, "lists of a channel in the index but not in the keys", differ,
                        context);
    index_compare_names(rebuilt->held, kept->held, true, "lists of a channel in the keys but not in the index", differ,
                        context);
}

const index_kind index_channels_kind = {
    .make = make,
    .release = release,
    .used = used,
    .all_emptied = channel_index_forget_names,
    .look = channel_index_look,
    .check = check,
};
