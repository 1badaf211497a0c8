/* mqtt_load_measure.c - see mqtt_load_measure.h. */
#include "mqtt_load_measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Values below HISTOGRAM_PARTS have a bucket each; then each power of two has HISTOGRAM_PARTS. */
static uint32_t bucket_of(uint64_t ns) {
    if (ns < HISTOGRAM_PARTS) return (uint32_t)ns;
    uint32_t power = 63U - (uint32_t)__builtin_clzll(ns) - 6; /* ns >> power lies from 64 to 127 */
    uint32_t bucket = power * HISTOGRAM_PARTS + (uint32_t)(ns >> power);
    return bucket < HISTOGRAM_BUCKETS ? bucket : HISTOGRAM_BUCKETS - 1;
}

/* The largest value of a bucket. */
static uint64_t bucket_end(uint32_t bucket) {
    if (bucket < 2 * HISTOGRAM_PARTS) return bucket;
    uint32_t power = bucket / HISTOGRAM_PARTS - 1;
    uint64_t part = bucket % HISTOGRAM_PARTS + HISTOGRAM_PARTS;
    return ((part + 1) << power) - 1;
}

void load_histogram_add(load_histogram *histogram, uint64_t ns) {
    histogram->count++;
    histogram->sum_ns += ns;
    if (ns > histogram->max_ns) histogram->max_ns = ns;
    histogram->buckets[bucket_of(ns)]++;
}

uint64_t load_histogram_quantile(const load_histogram *histogram, double quantile) {
    uint64_t wanted = (uint64_t)(quantile * (double)histogram->count), seen = 0;
    if (wanted >= histogram->count) return histogram->max_ns;
    for (uint32_t i = 0; i < HISTOGRAM_BUCKETS; i++) {
        seen += histogram->buckets[i];
        if (seen > wanted) return bucket_end(i) < histogram->max_ns ? bucket_end(i) : histogram->max_ns;
    }
    return histogram->max_ns;
}

static bool clock_ns(clockid_t clock, uint64_t *ns) {
    struct timespec t;
    if (clock_gettime(clock, &t) != 0) return false;
    *ns = (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
    return true;
}

uint64_t load_now_ns(void) {
    uint64_t ns = 0;
    (void)clock_ns(CLOCK_MONOTONIC, &ns); /* cannot fail */
    return ns;
}

uint64_t load_own_cpu_ns(void) {
    uint64_t ns = 0;
    (void)clock_ns(CLOCK_PROCESS_CPUTIME_ID, &ns); /* cannot fail */
    return ns;
}

bool load_cpu_ns(pid_t pid, uint64_t *ns) {
    clockid_t clock;
    return clock_getcpuclockid(pid, &clock) == 0 && clock_ns(clock, ns);
}

uint64_t load_machine_busy_ns(void) {
    char line[512];
    FILE *file = fopen("/proc/stat", "re");
    if (file == NULL) return 0;
    char *at = fgets(line, sizeof line, file);
    (void)fclose(file);
    if (at == NULL || strncmp(at, "cpu ", 4) != 0) return 0;
    at += 4;
    uint64_t ticks = 0;
    for (int column = 0; column < 8; column++) { /* user nice system idle iowait irq softirq steal */
        uint64_t value = strtoull(at, &at, 10);
        if (column != 3 && column != 4) ticks += value;
    }
    return ticks * (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
}
