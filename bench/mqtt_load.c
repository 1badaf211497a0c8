/* mqtt_load.c - a load generator for MQTT brokers that does not get in their way: one process, one thread, one epoll.
 *
 *     mqtt_load --port 1883 --pattern pairs --pairs 100 --qos 1 --persistent --seconds 5 --watch PID
 *
 * Prints one JSON object on its standard output (in the idle pattern one more when all connections stand).  Exit status
 * 0: nothing was lost, out of order or foreign; 1: something was, or a fault (`fault` says which); 2: wrong usage.
 *
 * Nothing here is O(messages) in memory; the options are read, checked and printed here, the rest is in mqtt_load_*.c. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mqtt_load_run.h"

#define USAGE_STATUS 2

static const char usage_text[] =
    "usage: mqtt_load --port PORT [options]\n"
    "  --host HOST             127.0.0.1\n"
    "  --port PORT\n"
    "  --source ADDRESS        of this machine, that clients come from; one address has 28,000 ports or so\n"
    "  --websocket PATH        MQTT in a WebSocket at this path, each packet a message; otherwise over TCP\n"
    "  --mqtt 4|5              version on the wire: 4 is 3.1.1 (4)\n"
    "  --pattern NAME          pairs      publisher i to topic i to subscriber i (the default)\n"
    "                          fan-out    one publisher to all subscribers\n"
    "                          fan-in     all publishers to one subscriber, or in equal parts to --subscribers\n"
    "                          store      publisher i to the session of subscriber i, which is away\n"
    "                          drain      those sessions come back and get --count messages each\n"
    "                          idle       subscribers that get nothing, for --seconds or until SIGTERM\n"
    "  --publishers N, --subscribers N, --pairs N (both)     (1)\n"
    "  --qos 0|1|2             of both sides (1)\n"
    "  --payload BYTES         24 to 16000 (62)\n"
    "  --window N              publishes of one publisher without acknowledgement, 1 to 65535 (100)\n"
    "  --behind N              messages of one publisher that its subscribers have not got; 0: any number (1000)\n"
    "  --receive-maximum N     of subscribers, MQTT 5; 0: not said (0)\n"
    "  --rate N                messages published per second by all; 0: as fast as the window lets (0)\n"
    "  --warm-up SECONDS       before measuring (0)\n"
    "  --seconds SECONDS       of measuring (5)\n"
    "  --count N               messages of each publisher, instead of --seconds; all of them are measured\n"
    "  --persistent            sessions that outlive their connections; otherwise clean ones\n"
    "  --prefix TEXT           of client ids and topics: letters, digits, - and _ (load)\n"
    "  --keep-alive SECONDS    0: off (0)\n"
    "  --opening N             connections under way at the same time (64)\n"
    "  --gather SECONDS        between two looks at the connections at least: fewer, larger reads and writes (0)\n"
    "  --timeout SECONDS       without a packet (30)\n"
    "  --watch PID             a process whose CPU time is measured along; may be repeated\n";

__attribute__((format(printf, 1, 2), noreturn)) static void wrong_usage(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("mqtt_load: ", stderr);
    (void)vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputs("; --help lists the options\n", stderr);
    exit(USAGE_STATUS);
}

static uint64_t whole(const char *name, const char *text, uint64_t least, uint64_t most) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != 0 || text[0] < '0' || text[0] > '9' || value < least || value > most)
        wrong_usage("--%s %s; expected a whole number from %llu to %llu", name, text, (unsigned long long)least,
                    (unsigned long long)most);
    return value;
}

static double amount(const char *name, const char *text) {
    char *end;
    double value = strtod(text, &end);
    if (*end != 0 || end == text || !isfinite(value) || value < 0 || value > 1e9)
        wrong_usage("--%s %s; expected a number from 0 to 1e9", name, text);
    return value;
}

static const char *const patterns[] = {"pairs", "fan-out", "fan-in", "store", "drain", "idle"};

static load_pattern pattern_of(const char *text) {
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++)
        if (strcmp(text, patterns[i]) == 0) return (load_pattern)i;
    wrong_usage("--pattern %s; expected pairs, fan-out, fan-in, store, drain or idle", text);
}

static const char *checked_prefix(const char *text) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    size_t len = strlen(text);
    if (len == 0 || len > LOAD_MAX_PREFIX_BYTES || strspn(text, allowed) != len)
        wrong_usage("--prefix %s; expected 1 to %d letters, digits, - and _", text, LOAD_MAX_PREFIX_BYTES);
    return text;
}

enum load_option {
    O_HOST = 1,
    O_PORT,
    O_SOURCE,
    O_WEBSOCKET,
    O_MQTT,
    O_PATTERN,
    O_PUBLISHERS,
    O_SUBSCRIBERS,
    O_PAIRS,
    O_QOS,
    O_PAYLOAD,
    O_WINDOW,
    O_BEHIND,
    O_RECEIVE_MAXIMUM,
    O_RATE,
    O_WARM_UP,
    O_SECONDS,
    O_COUNT,
    O_PERSISTENT,
    O_PREFIX,
    O_KEEP_ALIVE,
    O_OPENING,
    O_GATHER,
    O_TIMEOUT,
    O_WATCH,
    O_HELP
};

static const struct option long_options[] = {
    {"host", 1, NULL, O_HOST},
    {"port", 1, NULL, O_PORT},
    {"source", 1, NULL, O_SOURCE},
    {"websocket", 1, NULL, O_WEBSOCKET},
    {"mqtt", 1, NULL, O_MQTT},
    {"pattern", 1, NULL, O_PATTERN},
    {"publishers", 1, NULL, O_PUBLISHERS},
    {"subscribers", 1, NULL, O_SUBSCRIBERS},
    {"pairs", 1, NULL, O_PAIRS},
    {"qos", 1, NULL, O_QOS},
    {"payload", 1, NULL, O_PAYLOAD},
    {"window", 1, NULL, O_WINDOW},
    {"behind", 1, NULL, O_BEHIND},
    {"receive-maximum", 1, NULL, O_RECEIVE_MAXIMUM},
    {"rate", 1, NULL, O_RATE},
    {"warm-up", 1, NULL, O_WARM_UP},
    {"seconds", 1, NULL, O_SECONDS},
    {"count", 1, NULL, O_COUNT},
    {"persistent", 0, NULL, O_PERSISTENT},
    {"prefix", 1, NULL, O_PREFIX},
    {"keep-alive", 1, NULL, O_KEEP_ALIVE},
    {"opening", 1, NULL, O_OPENING},
    {"gather", 1, NULL, O_GATHER},
    {"timeout", 1, NULL, O_TIMEOUT},
    {"watch", 1, NULL, O_WATCH},
    {"help", 0, NULL, O_HELP},
    {0},
};

static void watch(load_options *options, const char *name, const char *text) {
    if (options->watched_count == LOAD_MAX_WATCHED) wrong_usage("--%s: at most %d processes", name, LOAD_MAX_WATCHED);
    options->watched[options->watched_count++] = (pid_t)whole(name, text, 1, INT_MAX);
}

static void take_option(load_options *options, int option, const char *name, const char *text) {
    switch (option) {
    case O_HOST: options->host = text; break;
    case O_SOURCE: options->source = text; break;
    case O_WEBSOCKET: options->websocket = text; break;
    case O_PORT:
        (void)whole(name, text, 1, 65535);
        options->port = text;
        break;
    case O_MQTT: options->version = (uint8_t)whole(name, text, MQTT_3_1_1, MQTT_5); break;
    case O_PATTERN: options->pattern = pattern_of(text); break;
    case O_PUBLISHERS: options->publishers = (uint32_t)whole(name, text, 1, LOAD_MAX_CLIENTS); break;
    case O_SUBSCRIBERS: options->subscribers = (uint32_t)whole(name, text, 1, LOAD_MAX_CLIENTS); break;
    case O_PAIRS: options->publishers = options->subscribers = (uint32_t)whole(name, text, 1, LOAD_MAX_CLIENTS); break;
    case O_QOS: options->qos = (uint8_t)whole(name, text, 0, 2); break;
    case O_PAYLOAD:
        options->payload_bytes = (uint32_t)whole(name, text, LOAD_MIN_PAYLOAD_BYTES, LOAD_MAX_PAYLOAD_BYTES);
        break;
    case O_WINDOW: options->window = (uint32_t)whole(name, text, 1, 65535); break;
    case O_BEHIND: options->behind = (uint32_t)whole(name, text, 0, INT_MAX); break;
    case O_RECEIVE_MAXIMUM: options->receive_maximum = (uint32_t)whole(name, text, 0, 65535); break;
    case O_RATE: options->rate = amount(name, text); break;
    case O_WARM_UP: options->warm_up_s = amount(name, text); break;
    case O_SECONDS: options->duration_s = amount(name, text); break;
    case O_COUNT: options->count = whole(name, text, 1, INT_MAX); break;
    case O_PERSISTENT: options->clean = false; break;
    case O_PREFIX: options->prefix = checked_prefix(text); break;
    case O_KEEP_ALIVE: options->keep_alive_s = (uint32_t)whole(name, text, 0, 65535); break;
    case O_OPENING: options->opening = (uint32_t)whole(name, text, 1, LOAD_MAX_CLIENTS); break;
    case O_GATHER: options->gather_s = amount(name, text); break;
    case O_TIMEOUT: options->timeout_s = amount(name, text); break;
    case O_WATCH: watch(options, name, text); break;
    case O_HELP: fputs(usage_text, stdout); exit(0);
    default: exit(USAGE_STATUS); /* getopt has said why */
    }
}

/* What goes together, and what does not. */
static void check(const load_options *options) {
    load_pattern pattern = options->pattern;
    bool away = pattern == LOAD_STORE || pattern == LOAD_DRAIN;
    if (options->port == NULL) wrong_usage("--port is missing");
    if ((pattern == LOAD_PAIRS || pattern == LOAD_STORE) && options->publishers != options->subscribers)
        wrong_usage("--pattern %s: as many publishers as subscribers expected", patterns[pattern]);
    if (pattern == LOAD_FAN_OUT && options->publishers != 1) wrong_usage("--pattern fan-out: one publisher expected");
    if (pattern == LOAD_FAN_IN && options->publishers < options->subscribers)
        wrong_usage("--pattern fan-in: as many publishers as subscribers expected, or more");
    if (away && (options->clean || options->count == 0 || options->qos == 0))
        wrong_usage("--pattern %s: --persistent, --count and --qos 1 or 2 expected", patterns[pattern]);
    if (options->websocket != NULL && (options->websocket[0] != '/' || strpbrk(options->websocket, " \r\n") != NULL))
        wrong_usage("--websocket %s; expected a path that begins with /", options->websocket);
    if (options->count > 0 && options->warm_up_s > 0) wrong_usage("--warm-up: not with --count");
    if (options->receive_maximum > 0 && options->version != MQTT_5) wrong_usage("--receive-maximum: MQTT 5 only");
}

static load_options read_options(int count, char **arguments) {
    load_options options = {
        .host = "127.0.0.1",
        .prefix = "load",
        .version = MQTT_3_1_1,
        .qos = 1,
        .clean = true,
        .publishers = 1,
        .subscribers = 1,
        .payload_bytes = 62,
        .window = 100,
        .behind = 1000,
        .opening = LOAD_OPENING,
        .duration_s = 5,
        .timeout_s = 30,
    };
    int option, index = 0;
    while ((option = getopt_long(count, arguments, "", long_options, &index)) != -1)
        take_option(&options, option, long_options[index].name, optarg);
    if (optind < count) wrong_usage("%s: not an option", arguments[optind]);
    check(&options);
    return options;
}

static double seconds(uint64_t ns) {
    return (double)ns / (double)NS_PER_S;
}

static void print_latency(const load_histogram *latency) {
    static const struct {
        const char *name;
        double value;
    } quantiles[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99.9", 0.999}, {"max", 1}};
    printf(" \"latency_us\": {\"count\": %llu, \"mean\": %.1f", (unsigned long long)latency->count,
           latency->count > 0 ? (double)latency->sum_ns / (double)latency->count / 1e3 : 0.0);
    for (size_t i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++)
        printf(", \"%s\": %.1f", quantiles[i].name, (double)load_histogram_quantile(latency, quantiles[i].value) / 1e3);
    printf("},\n");
}

static void print_counts(const load_counts *counts) {
    printf(" \"total\": {\"published\": %llu, \"acknowledged\": %llu, \"delivered\": %llu, \"lost\": %llu, "
           "\"duplicates\": %llu, \"out_of_order\": %llu, \"foreign\": %llu, \"refused\": %llu},\n",
           (unsigned long long)counts->published, (unsigned long long)counts->acknowledged,
           (unsigned long long)counts->delivered, (unsigned long long)counts->lost,
           (unsigned long long)counts->duplicates, (unsigned long long)counts->out_of_order,
           (unsigned long long)counts->foreign, (unsigned long long)counts->refused);
}

static void print_result(const load_options *options, const load_result *result) {
    const load_sample *begin = &result->begin, *end = &result->end;
    bool measured = end->time_ns > begin->time_ns;
    double time_s = measured ? seconds(end->time_ns - begin->time_ns) : 0;
    uint64_t in = measured ? end->acknowledged - begin->acknowledged : 0;
    uint64_t out = measured ? end->delivered - begin->delivered : 0;
    printf("{\"pattern\": \"%s\", \"mqtt\": %u, \"qos\": %u, \"publishers\": %u, \"subscribers\": %u,\n",
           patterns[options->pattern], options->version, options->qos, options->publishers, options->subscribers);
    printf(" \"in\": %llu, \"out\": %llu, \"seconds\": %.6f, \"per_s\": %.1f,\n", (unsigned long long)in,
           (unsigned long long)out, time_s, measured ? (double)(in + out) / time_s : 0.0);
    print_latency(&result->latency);
    printf(" \"cpu_s\": %.6f, \"watched_cpu_s\": {", measured ? seconds(end->own_cpu_ns - begin->own_cpu_ns) : 0.0);
    for (uint32_t i = 0; i < options->watched_count; i++)
        printf("%s\"%d\": %.6f", i > 0 ? ", " : "", (int)options->watched[i],
               measured ? seconds(end->watched_cpu_ns[i] - begin->watched_cpu_ns[i]) : 0.0);
    printf("}, \"machine_busy_s\": %.2f,\n", measured ? seconds(end->machine_busy_ns - begin->machine_busy_ns) : 0.0);
    print_counts(&result->counts);
    printf(" \"connect_s\": %.6f, \"sessions_present\": %llu, \"reads\": %llu, \"writes\": %llu, \"fault\": \"%s\"}\n",
           result->connect_s, (unsigned long long)result->sessions_present, (unsigned long long)result->reads,
           (unsigned long long)result->writes, result->fault);
}

static void print_ready(const load_result *result) {
    printf("{\"connect_s\": %.6f}\n", result->connect_s);
    (void)fflush(stdout);
}

int main(int count, char **arguments) {
    load_options options = read_options(count, arguments);
    load_result *result = malloc(sizeof *result);
    if (result == NULL) return 1;
    bool good = load_run(&options, result, print_ready);
    print_result(&options, result);
    if (result->fault[0] != 0) fprintf(stderr, "mqtt_load: %s\n", result->fault);
    free(result);
    return good ? 0 : 1;
}
