/* mqtt_load_run.h - what the load generator does and what it finds: options in, result out. */
#ifndef MQTT_LOAD_RUN_H
#define MQTT_LOAD_RUN_H

#include "mqtt_load_measure.h"
#include "mqtt_load_wire.h"

#define LOAD_MAX_WATCHED 64
#define LOAD_MIN_PAYLOAD_BYTES 24
#define LOAD_MAX_PAYLOAD_BYTES 16000
#define LOAD_MAX_PREFIX_BYTES 64
#define LOAD_MAX_CLIENTS 100000
#define LOAD_OPENING 64 /* by default: a listening socket's queue is short */

typedef enum load_pattern {
    LOAD_PAIRS,   /* publisher i to topic i to subscriber i */
    LOAD_FAN_OUT, /* one publisher, all subscribers */
    LOAD_FAN_IN,  /* publisher i to subscriber i modulo their number */
    LOAD_STORE,   /* publisher i to the session of subscriber i, which is away */
    LOAD_DRAIN,   /* those sessions come back */
    LOAD_IDLE     /* subscribers that get nothing */
} load_pattern;

typedef struct load_options {
    const char *host;
    const char *port;
    const char *source; /* address of the clients; NULL: as the kernel chooses */
    const char *websocket; /* path; NULL: TCP */
    const char *prefix; /* of client ids and topics; sessions of other prefixes are not touched */
    load_pattern pattern;
    uint8_t version; /* MQTT_3_1_1 or MQTT_5 */
    uint8_t qos;     /* of both sides */
    bool clean;
    uint32_t publishers;
    uint32_t subscribers;
    uint32_t payload_bytes;
    uint32_t window;          /* publishes of one publisher without acknowledgement */
    uint32_t behind; /* messages of one publisher that its subscribers (their mean) have not got; 0: any number */
    uint32_t receive_maximum; /* of the subscribers, 5.0; 0: not said */
    uint32_t keep_alive_s;
    uint32_t opening; /* connections under way at the same time */
    double rate; /* messages published per second by all; 0: as fast as the windows let */
    double warm_up_s;
    double duration_s;
    uint64_t count; /* messages of each publisher (drain: for each subscriber), instead of a duration; 0: a duration */
    double gather_s; /* between two looks at the connections, at least */
    double timeout_s; /* without any packet */
    uint32_t watched_count;
    pid_t watched[LOAD_MAX_WATCHED]; /* processes whose CPU time is measured along */
} load_options;

/* Totals since the start. */
typedef struct load_counts {
    uint64_t published;
    uint64_t acknowledged; /* refusals included; with QoS 0: published */
    uint64_t delivered; /* for the first time */
    uint64_t duplicates;
    uint64_t out_of_order; /* came after a later one */
    uint64_t foreign; /* not ours, or not for this subscriber */
    uint64_t refused; /* acknowledged with an error */
    uint64_t lost; /* set at the end */
} load_counts;

/* A moment, to be subtracted from a later one. */
typedef struct load_sample {
    uint64_t time_ns;
    uint64_t acknowledged;
    uint64_t delivered;
    uint64_t own_cpu_ns;
    uint64_t machine_busy_ns; /* all processes, all cores */
    uint64_t watched_cpu_ns[LOAD_MAX_WATCHED];
} load_sample;

typedef struct load_result {
    load_counts counts;
    load_sample begin, end; /* of the time that was measured */
    load_histogram
        latency; /* send (with a rate: the moment when it was due) to receipt, of messages sent in that time */
    double connect_s; /* until all connections stood, subscribed */
    uint64_t reads, writes; /* system calls, over all */
    uint64_t sessions_present;
    char fault[300]; /* empty: none */
} load_result;

/* Runs once.  `on_ready` is called in the idle pattern when all stand; then they are held for the duration, or until
 * SIGTERM.  True: no fault, nothing lost, out of order or foreign, and with QoS 2 nothing twice. */
bool load_run(const load_options *options, load_result *result, void (*on_ready)(const load_result *));

#endif
