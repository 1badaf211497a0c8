/* channel_facts.c - remembers the rule and the hearing of channels.
 *
 * A table of sets of four entries; a set that is full gives up one of its entries.  An entry begins a cache line and holds
 * all that a short name needs in it: what a PUBLISH pays that stays the server's own is mostly that line. */
#include "channel_facts.h"

#include <string.h>

#define SETS 2048 /* power of two */
#define WAYS 4
#define ENTRY_BYTES 128 /* two cache lines; names of up to 43 bytes are in the first */

typedef struct entry {
    const hmq_rule *rule;
    uint32_t policy; /* generations for which rule and hearing hold; 0: never */
    uint32_t heard;
    uint32_t hash;
    uint8_t len;
    uint8_t name[ENTRY_BYTES - 21];
} entry;
_Static_assert(sizeof(entry) == ENTRY_BYTES, "an entry fills its cache lines");

static _Alignas(64) entry table[SETS][WAYS];
static entry *last = &table[0][0]; /* found last: a publish asks more than once */
static uint32_t policy_generation = 1, hearing_generation = 1;
static unsigned given_up;

/* FNV-1a by words, the last of which overlaps the one before: good enough to spread names, and nobody gains by making two
 * meet. */
static uint32_t hash_of(hmq_slice name) {
    const uint64_t prime = 0x9e3779b97f4a7c15u;
    uint64_t hash = 0xcbf29ce484222325u ^ name.len, word = 0;
    if (name.len < sizeof word) {
        for (size_t i = 0; i < name.len; i++) word = word << 8 | name.data[i];
    } else {
        for (size_t i = 0; i + sizeof word < name.len; i += sizeof word) {
            memcpy(&word, name.data + i, sizeof word);
            hash = (hash ^ word) * prime;
            hash ^= hash >> 32;
        }
        memcpy(&word, name.data + name.len - sizeof word, sizeof word);
    }
    hash = (hash ^ word) * prime;
    return (uint32_t)(hash >> 32);
}

static bool is_named(const entry *e, hmq_slice name) {
    return e->len == name.len && memcmp(e->name, name.data, name.len) == 0;
}

static entry *find(hmq_slice name) {
    if (name.len > sizeof last->name) return NULL;
    if (last->policy == policy_generation && is_named(last, name)) return last;
    uint32_t hash = hash_of(name);
    entry *set = table[hash & (SETS - 1)];
    for (size_t way = 0; way < WAYS; way++) {
        if (set[way].hash == hash && set[way].policy == policy_generation && is_named(&set[way], name))
            return last = &set[way];
    }
    return NULL;
}

/* A place for a name that is not there. */
static entry *place_for(uint32_t hash) {
    entry *set = table[hash & (SETS - 1)];
    for (size_t way = 0; way < WAYS; way++) {
        if (set[way].policy != policy_generation) return &set[way];
    }
    return &set[given_up++ % WAYS];
}

const hmq_rule *channel_rule_of(hmq_slice channel) {
    const entry *known = find(channel);
    if (known != NULL) return known->rule;
    const hmq_rule *rule = hmq_policy_find(settings.policy, (const char *)channel.data, channel.len);
    if (channel.len > sizeof last->name) return rule;
    uint32_t hash = hash_of(channel);
    entry *e = last = place_for(hash);
    *e = (entry){.policy = policy_generation, .hash = hash, .rule = rule, .len = (uint8_t)channel.len};
    memcpy(e->name, channel.data, channel.len);
    return rule;
}

/* The next generation; when the numbers have gone round, what is remembered might be of one of the same number. */
static void next(uint32_t *generation) {
    if (++*generation != 0) return;
    memset(table, 0, sizeof table);
    *generation = 1;
}

void channel_facts_forget(void) {
    next(&policy_generation);
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
    next(&hearing_generation);
}
