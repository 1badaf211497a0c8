/* cost.c - measures the cost of a pattern set for readers and memory, on a sample of topics.
 *
 * Each topic of the sample is placed like a writer places it (pattern, hash of each slot).  Each filter is planned like a
 * reader plans it.  A topic is visited if the plan has its pattern and every fixed slot has its hash, and returned if the
 * filter matches.  So hash collisions, and patterns that mix topics of different filters, are measured and not estimated.  The size of
 * entries is estimated: see entry_bytes. */
#include "topic/topic.h"
#include "history/counts.h"
#include "history/index.h"
#include "history/plan.h"

static const hmq_hash_seed no_seed = {0, 0};

typedef struct placed {
    uint32_t pattern;
    uint32_t slots;
    uint32_t hashes[HMQ_PATTERNS_MAX_SLOTS];
} placed;

typedef struct trial {
    const hmq_learner *learner;
    const hmq_patterns *set;
    placed *places;         /* of each topic of the sample */
    uint64_t *messages;     /* of each pattern */
    hmq_plan_pattern *plan; /* of the current filter, per pattern; stamped: */
    uint32_t *stamps;       /* plan[p] belongs to the current filter if stamps[p] is its number */
    uint32_t stamp;
    uint64_t total;
    uint32_t opened;
} trial;

static void place(trial *t, uint32_t index) {
    const hmq_sampled *topic = t->learner->sample[index];
    placed *p = &t->places[index];
    hmq_topic_place found;
    hmq_patterns_find(t->set, topic->name, topic->len, &found);
    const hmq_pattern *pattern = hmq_patterns_at(t->set, found.pattern);
    p->pattern = found.pattern;
    p->slots = found.slots;
    for (uint32_t i = 0; i < found.slots; i++)
        p->hashes[i] = hmq_index_hash(&no_seed, found.levels[i], pattern->bits[i]);
    t->messages[found.pattern] += topic->messages;
    t->total += topic->messages;
}

/* ---- bytes ---- */

/* Linear between powers of two: the error is a tenth of a bit at most. */
static double log2_of(double number) {
    double whole = 0;
    while (number >= 2) {
        number /= 2;
        whole++;
    }
    return whole + number - 1;
}

/* An entry has the bits of the hash (whether they choose the list or are in the fragment: fewer fragment bits make larger
 * distances) and those of the distance that other patterns cause.  Seven bits per byte, rounded up; the keys of the lists
 * add a quarter of a byte. */
static double entry_bytes(unsigned bits, double share) {
    return (bits + log2_of(1 / share)) / 7 + 0.5 + 0.25;
}

static double mean_bytes(const trial *t) {
    double sum = 0;
    for (uint32_t i = 0; i < t->learner->sample_count; i++) {
        const placed *p = &t->places[i];
        double share = (double)t->messages[p->pattern] / (double)t->total, bytes = 0;
        for (uint32_t slot = 0; slot < p->slots; slot++)
            bytes += entry_bytes(hmq_patterns_at(t->set, p->pattern)->bits[slot], share);
        sum += bytes * (double)t->learner->sample[i]->messages;
    }
    return sum / (double)t->total;
}

/* ---- readers ---- */

static bool take_plan(void *context, const hmq_plan_pattern *pattern) {
    trial *t = context;
    t->plan[pattern->pattern] = *pattern;
    t->stamps[pattern->pattern] = t->stamp;
    t->opened += t->messages[pattern->pattern] > 0;
    return true;
}

static bool is_visited(const trial *t, const placed *p) {
    if (t->stamps[p->pattern] != t->stamp) return false;
    const hmq_plan_pattern *plan = &t->plan[p->pattern];
    for (uint32_t i = 0; i < plan->fixed; i++)
        if (plan->slots[i].slot >= p->slots || p->hashes[plan->slots[i].slot] != plan->slots[i].hash) return false;
    return true;
}

/* Adds the cost of one reader, times its weight.  A reader that returns nothing has visited a share of everything. */
static void read_filter(trial *t, hmq_slice filter, double weight, hmq_patterns_cost *sum) {
    const char *text = (const char *)filter.data;
    double visited = 0, returned = 0;
    t->stamp++;
    t->opened = 0;
    (void)hmq_plan_each(t->set, &no_seed, text, filter.len, take_plan, t);
    for (uint32_t i = 0; i < t->learner->sample_count; i++) {
        const hmq_sampled *topic = t->learner->sample[i];
        if (!is_visited(t, &t->places[i])) continue;
        visited += (double)topic->messages;
        if (hmq_topic_matches(text, filter.len, topic->name, topic->len)) returned += (double)topic->messages;
    }
    sum->opened += weight * t->opened;
    sum->read += weight * (returned > 0 ? visited / returned : 1 + visited / (double)t->total);
}

static void read_all(trial *t, const hmq_filter_use *filters, size_t count, hmq_patterns_cost *cost) {
    double weights = 0;
    for (size_t i = 0; i < count; i++) {
        read_filter(t, filters[i].filter, (double)filters[i].weight, cost);
        weights += (double)filters[i].weight;
    }
    for (uint32_t i = 0; count == 0 && i < t->learner->sample_count; i++) {
        const hmq_sampled *topic = t->learner->sample[i];
        hmq_slice filter = {(const uint8_t *)topic->name, topic->len};
        read_filter(t, filter, (double)topic->messages, cost);
        weights += (double)topic->messages;
    }
    if (weights > 0) {
        cost->opened /= weights;
        cost->read /= weights;
    }
}

/* ---- the trial ---- */

static bool allocate_memory(trial *t) {
    const hmq_allocator *a = t->learner->memory.allocator;
    uint32_t patterns = hmq_patterns_count(t->set);
    t->places = a->alloc(t->learner->sample_count * sizeof *t->places);
    t->messages = a->alloc(patterns * sizeof *t->messages);
    t->plan = a->alloc(patterns * sizeof *t->plan);
    t->stamps = a->alloc(patterns * sizeof *t->stamps);
    for (uint32_t i = 0; t->messages && t->stamps && i < patterns; i++) {
        t->messages[i] = 0;
        t->stamps[i] = 0;
    }
    return t->places && t->messages && t->plan && t->stamps;
}

static void free_memory(trial *t) {
    const hmq_allocator *a = t->learner->memory.allocator;
    void *blocks[] = {t->places, t->messages, t->plan, t->stamps};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        if (blocks[i]) a->release(blocks[i]);
}

bool hmq_learner_cost(const hmq_learner *learner, const hmq_patterns *set, const hmq_filter_use *filters, size_t count,
                      hmq_patterns_cost *cost) {
    trial t = {.learner = learner, .set = set};
    *cost = (hmq_patterns_cost){.opened = 0};
    if (learner->sample_count == 0) return false;
    bool ok = allocate_memory(&t);
    for (uint32_t i = 0; ok && i < learner->sample_count; i++) place(&t, i);
    if (ok && t.total > 0) {
        cost->bytes = mean_bytes(&t);
        read_all(&t, filters, count, cost);
    }
    cost->cost = cost->opened + cost->read + cost->bytes / 2;
    free_memory(&t);
    return ok;
}
