/* facts.c - remembers the rule of channels, and whether they are heard.
 *
 * A table of sets of four entries; a full set gives up one of its entries.  An entry is a cache line and holds all
 * that a short name needs: for a PUBLISH that is left to the server, that line is most of the cost.  The search begins with
 * any of the four, so that entries are spread over the lines of the cache. */
#include "channel/facts.h"

#include <string.h>

#include "server/departures.h"

#define SETS 2048 /* power of two */
#define WAYS 4
#define HEAD_BYTES 39
#define TAIL_BYTES 64

typedef struct entry {
    const hmq_rule *rule;
    uint32_t policy; /* generations for which `rule`, `heard` and `unheard` are valid; 0: never */
    uint32_t heard;
    uint32_t unheard;
    uint32_t hash;
    uint8_t len;
    uint8_t head[HEAD_BYTES]; /* the name's beginning */
} entry;
_Static_assert(sizeof(entry) == 64, "an entry is a cache line");

static _Alignas(64) entry table[SETS * WAYS];
static uint8_t tails[SETS * WAYS][TAIL_BYTES]; /* what is left of longer names */
static entry *last = table; /* found last: a publish searches for it more than once */
static uint32_t policy_generation = 1, hearing_generation = 1, silence_generation = 1;
static unsigned given_up;

/* Similar to FNV-1a, by words, of which the last overlaps the one before: good enough to spread names.  A collision
 * is of no use to an attacker. */
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

static bool fits(hmq_slice name) {
    return name.len <= HEAD_BYTES + TAIL_BYTES;
}

/* memcmp() == 0 for at least eight bytes, without a call: names are short. */
static bool equal_words(const uint8_t *a, const uint8_t *b, size_t len) {
    uint64_t x, y;
    for (size_t i = 0; i + sizeof x < len; i += sizeof x) {
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        if (x != y) return false;
    }
    memcpy(&x, a + len - sizeof x, sizeof x);
    memcpy(&y, b + len - sizeof y, sizeof y);
    return x == y;
}

static bool is_named(const entry *e, hmq_slice name) {
    if (e->len != name.len) return false;
    if (name.len < sizeof(uint64_t)) return memcmp(e->head, name.data, name.len) == 0;
    if (name.len <= HEAD_BYTES) return equal_words(e->head, name.data, name.len);
    return memcmp(e->head, name.data, HEAD_BYTES) == 0 &&
           memcmp(tails[e - table], name.data + HEAD_BYTES, name.len - HEAD_BYTES) == 0;
}

static void set_name(entry *e, hmq_slice name) {
    size_t head = name.len < HEAD_BYTES ? name.len : HEAD_BYTES;
    e->len = (uint8_t)name.len;
    memcpy(e->head, name.data, head);
    memcpy(tails[e - table], name.data + head, name.len - head);
}

static entry *entry_of(uint32_t hash, unsigned way) {
    return &table[(hash & (SETS - 1)) * WAYS + ((hash >> 24) + way) % WAYS];
}

static entry *find(hmq_slice name) {
    if (!fits(name)) return NULL;
    uint32_t hash = hash_of(name);
    for (unsigned way = 0; way < WAYS; way++) {
        entry *e = entry_of(hash, way);
        if (e->hash == hash && e->policy == policy_generation && is_named(e, name)) return last = e;
    }
    return NULL;
}

/* A place for a new name. */
static entry *place_for(uint32_t hash) {
    for (unsigned way = 0; way < WAYS; way++) {
        entry *e = entry_of(hash, way);
        if (e->policy != policy_generation) return e;
    }
    return entry_of(hash, given_up++);
}

const hmq_rule *channel_rule_of(hmq_slice channel) {
    if (last->policy == policy_generation && is_named(last, channel)) return last->rule;
    const entry *known = find(channel);
    if (known != NULL) return known->rule;
    const hmq_rule *rule = hmq_policy_find(settings.policy, (const char *)channel.data, channel.len);
    if (!fits(channel)) return rule;
    uint32_t hash = hash_of(channel);
    entry *e = last = place_for(hash);
    *e = (entry){.policy = policy_generation, .hash = hash, .rule = rule};
    set_name(e, channel);
    return rule;
}

/* Begins the next generation.  After the numbers have wrapped, an old entry could have the same number: then all are
 * forgotten. */
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

void channel_note_heard(hmq_slice channel) {
    entry *known = find(channel);
    if (known == NULL) return;
    departures_expect(); /* the receiver may go */
    known->heard = hearing_generation;
}

void channel_subscriber_left(void) {
    next(&hearing_generation);
}

bool channel_is_unheard(hmq_slice channel) {
    const entry *known = find(channel);
    return known != NULL && known->unheard == silence_generation;
}

void channel_note_unheard(hmq_slice channel) {
    entry *known = find(channel);
    if (known != NULL) known->unheard = silence_generation;
}

void channel_subscriber_joined(void) {
    next(&silence_generation);
}

const hmq_rule *channel_rule(const server_string *channel) {
    return channel_rule_of(slice_of(channel));
}
