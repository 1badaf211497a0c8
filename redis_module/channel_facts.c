/* channel_facts.c - remembers the rule and the hearing of channels. */
#include "channel_facts.h"

#include <string.h>

#define ENTRIES 4096 /* power of two; channels that meet in one entry evict each other */
#define NAME_MAX_BYTES 64

typedef struct entry {
    uint64_t policy; /* generations for which rule and hearing hold; 0: never */
    uint64_t heard;
    const hmq_rule *rule;
    uint8_t len;
    uint8_t name[NAME_MAX_BYTES];
} entry;

static entry table[ENTRIES];
static uint64_t policy_generation = 1, hearing_generation = 1;

/* FNV-1a by words: good enough to spread names, and nobody gains by making two meet. */
static size_t slot_of(hmq_slice name) {
    uint64_t hash = 0xcbf29ce484222325u ^ name.len, word;
    size_t i = 0;
    for (; i + sizeof word <= name.len; i += sizeof word) {
        memcpy(&word, name.data + i, sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    for (; i < name.len; i++) hash = (hash ^ name.data[i]) * 0x100000001b3u;
    return (size_t)(hash ^ hash >> 32) & (ENTRIES - 1);
}

static entry *find(hmq_slice name) {
    if (name.len > NAME_MAX_BYTES) return NULL;
    entry *e = &table[slot_of(name)];
    if (e->policy == policy_generation && e->len == name.len && memcmp(e->name, name.data, name.len) == 0) return e;
    return NULL;
}

const hmq_rule *channel_rule_of(hmq_slice channel) {
    const entry *known = find(channel);
    if (known != NULL) return known->rule;
    const hmq_rule *rule = hmq_policy_find(settings.policy, (const char *)channel.data, channel.len);
    if (channel.len > NAME_MAX_BYTES) return rule;
    entry *e = &table[slot_of(channel)];
    *e = (entry){.policy = policy_generation, .rule = rule, .len = (uint8_t)channel.len};
    memcpy(e->name, channel.data, channel.len);
    return rule;
}

void channel_facts_forget(void) {
    policy_generation++;
}

bool channel_is_heard(hmq_slice channel) {
    const entry *known = find(channel);
    return known != NULL && known->heard == hearing_generation;
}

void channel_was_heard(hmq_slice channel) {
    entry *known = find(channel);
    if (known != NULL) known->heard = hearing_generation;
}

void channel_subscriber_left(void) {
    hearing_generation++;
}
