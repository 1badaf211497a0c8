/* core_bench.c - how fast the core is without Python in between; core_bench.py compiles and runs it.
 *
 * Prints one line for each figure: name, tab, nanoseconds for one, tab, what one is.  Every loop's result is added up
 * and printed at the end, so that the compiler cannot leave it out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "mqtt/mqtt.h"
#include "topic/record.h"
#include "topic/topic.h"
#include "topic/trie.h"

#define SESSIONS 100000
#define BATCH 256
#define BATCHES 8000
#define ROUNDS (BATCHES * BATCH)
#define PAYLOAD_BYTES 62

static uint64_t checksum;

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void report(const char *name, double started_ns, double count, const char *what) {
    printf("%s\t%.1f\t%s\n", name, (now_ns() - started_ns) / count, what);
}

static void require(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "core_bench: %s failed\n", what);
    exit(1);
}

static uint32_t random_number(void) {
    static uint32_t state = 1;
    state = state * 1664525U + 1013904223U;
    return state >> 8;
}

static size_t command_topic(char out[64], uint32_t number) {
    return (size_t)snprintf(out, 64, "devices/sensor-%06u/commands/set", number % SESSIONS);
}

static bool count_visit(void *context, uint64_t subscriber, uint32_t options) {
    (void)context;
    checksum += subscriber + options;
    return true;
}

/* Each session has one filter of its own; two listen to all. */
static hmq_trie *make_trie(void) {
    hmq_trie *trie = hmq_trie_new(&hmq_libc_allocator);
    require(trie != NULL, "hmq_trie_new");
    char filter[64];
    double started = now_ns();
    for (uint32_t i = 0; i < SESSIONS; i++) {
        size_t len = (size_t)snprintf(filter, sizeof filter, "devices/sensor-%06u/commands/#", i);
        require(hmq_trie_set(trie, filter, len, i, 1) == HMQ_TRIE_ADDED, "hmq_trie_set");
    }
    report("trie set", started, SESSIONS, "filter");
    require(hmq_trie_set(trie, "devices/+/commands/set", 22, SESSIONS, 0) == HMQ_TRIE_ADDED, "hmq_trie_set");
    require(hmq_trie_set(trie, "#", 1, SESSIONS, 0) == HMQ_TRIE_ADDED, "hmq_trie_set");
    printf("trie memory\t%.1f\tbytes a filter\n", (double)hmq_trie_bytes(trie) / SESSIONS);
    return trie;
}

static void bench_trie(void) {
    hmq_trie *trie = make_trie();
    static char topics[4096][64];
    size_t lens[4096];
    for (uint32_t i = 0; i < 4096; i++) lens[i] = command_topic(topics[i], random_number());
    double started = now_ns();
    for (uint32_t i = 0; i < ROUNDS; i++)
        (void)hmq_trie_match(trie, topics[i % 4096], lens[i % 4096], count_visit, NULL);
    report("trie match", started, ROUNDS, "topic, 3 of 100,002 filters match");
    started = now_ns();
    for (uint32_t i = 0; i < ROUNDS; i++)
        checksum += hmq_topic_matches("devices/+/commands/#", 20, topics[i % 4096], lens[i % 4096]);
    report("topic matches", started, ROUNDS, "filter asked (a list of all would ask 100,002)");
    started = now_ns();
    for (uint32_t i = 0; i < ROUNDS; i++) checksum += (uint64_t)hmq_topic_check_name(topics[i % 4096], lens[i % 4096]);
    report("topic check", started, ROUNDS, "name");
    hmq_trie_free(trie);
}

static void bench_record(void) {
    uint8_t payload[PAYLOAD_BYTES] = {1}, out[256];
    hmq_record record = {
        .type = HMQ_RECORD_PUBLISH,
        .qos = 1,
        .time_ms = INT64_C(1700000000000),
        .expires_ms = INT64_C(1700000060000),
        .topic = {(const uint8_t *)"devices/sensor-000042/commands/set", 34},
        .publisher = {(const uint8_t *)"backend-1", 9},
        .payload = {payload, sizeof payload},
    };
    double started = now_ns();
    for (uint32_t i = 0; i < ROUNDS; i++) {
        record.time_ms++;
        checksum += hmq_record_encode(&record, out, sizeof out) + out[3];
    }
    report("record encode", started, ROUNDS, "record, 62 bytes of payload");
    size_t size = hmq_record_encode(&record, out, sizeof out);
    started = now_ns();
    for (uint32_t i = 0; i < ROUNDS; i++) {
        out[3] = (uint8_t)i;
        require(hmq_record_decode(out, size, &record) == 0, "hmq_record_decode");
        checksum += (uint64_t)record.time_ms;
    }
    report("record decode", started, ROUNDS, "record, 62 bytes of payload");
}

static void bench_mqtt(void) {
    static uint8_t buffer[BATCH * 128], copied[BATCH * 128];
    uint8_t payload[PAYLOAD_BYTES] = {1};
    hmq_mqtt_packet packets[BATCH];
    hmq_mqtt_packet packet = {.type = HMQ_MQTT_PUBLISH, .qos = 1, .packet_id = 7, .payload = {payload, sizeof payload}};
    packet.topic = (hmq_slice){(const uint8_t *)"devices/sensor-000042/state", 27};
    size_t used = 0, consumed;
    double started = now_ns();
    for (uint32_t i = 0; i < ROUNDS; i++) {
        if (i % BATCH == 0) used = 0;
        used += hmq_mqtt_encode(&packet, HMQ_MQTT_3_1_1, buffer + used, sizeof buffer - used);
    }
    report("mqtt encode", started, ROUNDS, "PUBLISH, 62 bytes of payload");
    used = 0;
    for (uint32_t i = 0; i < BATCH; i++)
        used += hmq_mqtt_encode(&packet, HMQ_MQTT_3_1_1, buffer + used, sizeof buffer - used);
    hmq_mqtt_error error;
    started = now_ns();
    for (uint32_t i = 0; i < BATCHES; i++) {
        require(hmq_mqtt_decode_many(buffer, used, HMQ_MQTT_3_1_1, 65536, packets, BATCH, &consumed, &error) == BATCH,
                "hmq_mqtt_decode_many");
        checksum += packets[i % BATCH].payload.len + consumed;
    }
    report("mqtt decode", started, ROUNDS, "PUBLISH, 62 bytes of payload");
    started = now_ns();
    for (uint32_t i = 0; i < BATCHES; i++) {
        buffer[0] = (uint8_t)i;
        memcpy(copied, buffer, used);
        checksum += copied[i % used];
    }
    report("memcpy", started, ROUNDS, "copy of these bytes, for comparison");
}

int main(void) {
    bench_trie();
    bench_record();
    bench_mqtt();
    fprintf(stderr, "checksum %llu\n", (unsigned long long)checksum);
    return 0;
}
