/* mqtt_load_measure.h - clocks, CPU time of this and other processes, and a histogram of latencies.
 *
 * The histogram has a fixed size: each power of two is cut into 64 parts, so that a quantile is at most 1.6 % too
 * high, from nanoseconds to hours.  Recording is O(1) and takes no memory. */
#ifndef MQTT_LOAD_MEASURE_H
#define MQTT_LOAD_MEASURE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define NS_PER_S 1000000000ULL
#define HISTOGRAM_PARTS 64 /* of a power of two */
#define HISTOGRAM_POWERS 38
#define HISTOGRAM_BUCKETS (HISTOGRAM_PARTS * (HISTOGRAM_POWERS + 1))

typedef struct load_histogram {
    uint64_t count;
    uint64_t max_ns;
    uint64_t sum_ns;
    uint64_t buckets[HISTOGRAM_BUCKETS];
} load_histogram;

void load_histogram_add(load_histogram *histogram, uint64_t ns);
/* The value that the share `quantile` (0 to 1) of all does not exceed; 0 if there are none. */
uint64_t load_histogram_quantile(const load_histogram *histogram, double quantile);

/* Of the monotonic clock, which is the same for all processes of a machine. */
uint64_t load_now_ns(void);
/* CPU time of this process. */
uint64_t load_own_cpu_ns(void);
/* CPU time, user and system, of all threads of a process; false: there is none, or it must not be asked. */
bool load_cpu_ns(pid_t pid, uint64_t *ns);
/* Time that all cores together were busy, or taken away by the host, since the start; in steps of 10 ms.  0: unknown. */
uint64_t load_machine_busy_ns(void);

#endif
