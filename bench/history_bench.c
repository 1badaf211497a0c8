/* history_bench.c - how small and how fast the index of history is without a server; core_bench.py compiles and runs it.
 *
 * A store of one shard and epoch in memory: 1,000,000 messages of 100,000 devices at random, two topics each; once with
 * the patterns that a learner finds, once with "#" alone.  Prints lines like core_bench.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "history/index.h"
#include "history/learner.h"
#include "history/plan.h"
#include "topic/topic.h"

#define MESSAGES 1000000U
#define DEVICES 100000U
#define READS 1000U
#define TOPIC_BYTES 40
#define MAX_PATTERNS 4U
#define MAX_GROUPS 16384U /* of the last page that a million messages reach */
#define PAGES 8U

typedef struct list {
    uint8_t *data;
    size_t len, capacity;
} list;

typedef struct store {
    hmq_patterns *set;
    hmq_hash_seed seed;
    uint64_t messages[MAX_PATTERNS];
    list *lists[MAX_PATTERNS][HMQ_PATTERNS_MAX_SLOTS][PAGES];
    size_t list_count, list_bytes, entries;
} store;

typedef struct totals {
    uint64_t returned, visited, looked_at, lists;
} totals;

static char topics[MESSAGES][TOPIC_BYTES];
static uint8_t topic_lens[MESSAGES], topic_patterns[MESSAGES];
static uint64_t checksum;
static const char *prefix;

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void report(const char *name, double value, const char *what) {
    printf("%s%s\t%.2f\t%s\n", prefix, name, value, what);
}

static void require(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "history_bench: %s failed\n", what);
    exit(1);
}

static uint32_t random_number(void) {
    static uint64_t state = 88172645463325252U;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static void make_topics(void) {
    for (uint32_t i = 0; i < MESSAGES; i++) {
        const char *suffix = random_number() % 2 ? "temperature" : "pressure";
        topic_lens[i] = (uint8_t)snprintf(topics[i], TOPIC_BYTES, "devices/%u/%s", random_number() % DEVICES, suffix);
    }
}

static list *list_of(store *s, uint32_t pattern, unsigned slot, unsigned page, uint32_t group) {
    list **lists = &s->lists[pattern][slot][page];
    if (!*lists) *lists = calloc(MAX_GROUPS, sizeof(list));
    require(*lists && group < MAX_GROUPS && page < PAGES, "a list");
    return &(*lists)[group];
}

static void add_posting(store *s, list *l, unsigned bits, uint64_t number, uint32_t fragment) {
    uint64_t last = 0;
    require(hmq_postings_last(l->data, l->len, bits, &last) != HMQ_POSTINGS_CORRUPT, "hmq_postings_last");
    if (l->capacity - l->len < HMQ_POSTINGS_APPEND_BYTES) {
        l->capacity = 2 * l->capacity + 64;
        l->data = realloc(l->data, l->capacity);
        require(l->data != NULL, "realloc");
    }
    s->list_count += l->len == 0;
    size_t size = hmq_postings_append(l->len, last, bits, number, fragment, l->data + l->len);
    require(size > 0, "hmq_postings_append");
    l->len += size;
    s->list_bytes += size;
    s->entries++;
}

static void add_message(store *s, uint32_t i) {
    hmq_topic_place place;
    hmq_patterns_find(s->set, topics[i], topic_lens[i], &place);
    topic_patterns[i] = (uint8_t)place.pattern;
    unsigned page = hmq_index_page(s->messages[place.pattern]++);
    const hmq_pattern *pattern = hmq_patterns_at(s->set, place.pattern);
    for (unsigned slot = 0; slot < place.slots; slot++) {
        uint32_t hash = hmq_index_hash(&s->seed, place.levels[slot], pattern->bits[slot]);
        hmq_index_place where = hmq_index_place_of(hash, pattern->bits[slot], page);
        add_posting(s, list_of(s, place.pattern, slot, page, where.group), where.fragment_bits, i + 1, where.fragment);
    }
}

/* A reader of one pattern: what step 2 to 4 of docs/history.md say. */
static void read_pattern(store *s, const hmq_plan_pattern *plan, const char *filter, size_t len, totals *t) {
    static hmq_scan_list lists[HMQ_PATTERNS_MAX_SLOTS * PAGES];
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->fixed; i++) {
        for (unsigned page = 0; page <= hmq_index_page(MESSAGES); page++) {
            const hmq_plan_slot *slot = &plan->slots[i];
            hmq_index_place where = hmq_index_place_of(slot->hash, slot->bits, page);
            const list *l = list_of(s, plan->pattern, slot->slot, page, where.group);
            hmq_scan_list_open(&lists[count++], slot, page, l->data, l->len);
            t->lists += l->len > 0;
        }
    }
    hmq_scan scan;
    bool scans = hmq_scan_begin(&scan, lists, count);
    for (uint64_t number = 1;; number++) {
        uint64_t budget = UINT64_MAX;
        if (scans) {
            if (hmq_scan_next(&scan, number, &number, &budget) != HMQ_POSTINGS_FOUND) break;
            t->looked_at += UINT64_MAX - budget;
        } else {
            while (number <= MESSAGES && topic_patterns[number - 1] != plan->pattern) number++;
            if (number > MESSAGES) break;
        }
        t->visited++;
        t->returned += hmq_topic_matches(filter, len, topics[number - 1], topic_lens[number - 1]);
    }
}

static void read_filter(store *s, const char *filter, totals *t) {
    hmq_plan_pattern plan[MAX_PATTERNS];
    size_t len = strlen(filter), count = hmq_plan_collect(s->set, &s->seed, filter, len, plan, MAX_PATTERNS);
    require(count <= MAX_PATTERNS, "hmq_plan_collect");
    for (size_t i = 0; i < count; i++) read_pattern(s, &plan[i], filter, len, t);
}

static void report_part(const char *name, const char *part, double value, const char *what) {
    printf("%s%s, %s\t%.2f\t%s\n", prefix, name, part, value, what);
}

static void bench_read(store *s, const char *name, const char *format, uint32_t reads) {
    char filter[TOPIC_BYTES];
    totals t = {0};
    double started = now_ns();
    for (uint32_t i = 0; i < reads; i++) {
        (void)snprintf(filter, sizeof filter, format, random_number() % DEVICES);
        read_filter(s, filter, &t);
    }
    double took = now_ns() - started;
    checksum += t.returned;
    require(t.returned > 0, "a read");
    report(name, took / (double)t.returned, "ns a message returned");
    report_part(name, "visited", (double)t.visited / (double)t.returned, "messages visited for one returned");
    report_part(name, "entries", (double)t.looked_at / (double)t.returned, "entries looked at for one returned");
    report_part(name, "lists", (double)t.lists / reads, "lists a read");
}

static void bench_store(const char *name, const char *text) {
    store *s = calloc(1, sizeof *s);
    require(s != NULL, "calloc");
    prefix = name;
    s->set = hmq_patterns_parse(&hmq_libc_allocator, text, strlen(text), NULL, 0);
    require(s->set != NULL, "hmq_patterns_parse");
    double started = now_ns();
    for (uint32_t i = 0; i < MESSAGES; i++) add_message(s, i);
    report("index", (now_ns() - started) / MESSAGES, "ns a message");
    report("index size", (double)s->list_bytes / MESSAGES, "bytes a message");
    report("entry size", (double)s->list_bytes / (double)s->entries, "bytes an entry");
    report("list length", (double)s->entries / (double)s->list_count, "entries a list");
    bench_read(s, "devices/42/#", "devices/%u/#", READS);
    bench_read(s, "devices/42/temperature", "devices/%u/temperature", READS);
    bench_read(s, "+/42/temperature", "+/%u/temperature", READS);
    bench_read(s, "devices/+/temperature", "devices/+/temperature", 1);
}

static void bench_learner(void) {
    hmq_learner_options options = hmq_learner_defaults();
    hmq_learner *learner = hmq_learner_new(&hmq_libc_allocator, &options);
    hmq_patterns_cost costs[2];
    require(learner != NULL, "hmq_learner_new");
    prefix = "learner ";
    double started = now_ns();
    for (uint32_t i = 0; i < MESSAGES; i++)
        require(hmq_learner_observe(learner, topics[i], topic_lens[i], 1), "hmq_learner_observe");
    report("observe", (now_ns() - started) / MESSAGES, "ns a message");
    report("memory", (double)hmq_learner_bytes(learner) / 1024, "KiB");
    static const char text[] = "holdmq-patterns 1 levels=8\n#";
    hmq_patterns *present = hmq_patterns_parse(&hmq_libc_allocator, text, sizeof text - 1, NULL, 0), *set;
    require(present != NULL, "hmq_patterns_parse");
    started = now_ns();
    require(hmq_learner_propose(learner, present, NULL, 0, 10, &set, costs) == HMQ_PROPOSAL_NEW, "hmq_learner_propose");
    report("propose", (now_ns() - started) / 1e6, "ms, 1,024 sampled topics as filters");
    report("cost of #", costs[0].cost, "messages read");
    report("cost of its proposal", costs[1].cost, "messages read");
    hmq_patterns_free(present);
    hmq_patterns_free(set);
    hmq_learner_free(learner);
}

int main(void) {
    make_topics();
    bench_learner();
    bench_store("history ", "holdmq-patterns 1 levels=8\n#\ndevices/+/pressure\ndevices/+/temperature\n");
    bench_store("unlearned ", "holdmq-patterns 1 levels=8\n#\n");
    fprintf(stderr, "checksum %llu\n", (unsigned long long)checksum);
    return 0;
}
