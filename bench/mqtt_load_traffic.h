/* mqtt_load_traffic.h - publishers and subscribers: what they send, and whether all of it arrives.
 *
 *     publisher ── PUBLISH ──► broker ── PUBLISH ──► subscriber
 *        window of `in_flight`             a route per publisher checks order, loss and duplicates
 *
 * The payload says what it is, in this machine's byte order:
 *
 *     offset  size  what
 *          0     4  tag of the prefix: messages of another run are foreign
 *          4     4  publisher
 *          8     8  sequence number of this publisher, from 0
 *         16     8  send time, ns of the monotonic clock
 *         24     -  filler
 *
 * Invariants:
 *  1. Message n of a publisher has packet identifier n % 65535 + 1; at most `window` of them, in a row, are in flight.
 *  2. With a rate, message n of all is due n / rate after the start, is sent by publisher n % publishers and carries
 *     that moment as its send time: whatever delays it (a full window, this process) counts as latency. */
#ifndef MQTT_LOAD_TRAFFIC_H
#define MQTT_LOAD_TRAFFIC_H

#include "mqtt_load_net.h"
#include "mqtt_load_order.h"
#include "mqtt_load_run.h"

typedef enum client_state { CLIENT_OUT, CLIENT_CONNECTING, CLIENT_SUBSCRIBING, CLIENT_READY } client_state;

typedef struct load_client {
    net_client net; /* first: the two are one */
    client_state state;
    bool publishes;
    bool subscribes; /* asks for a subscription when it has connected */
    uint32_t index;
    char topic[WIRE_MAX_ID_BYTES + 1]; /* or filter */
    /* of a publisher */
    bool throttled; /* its subscribers are too far behind */
    uint32_t window;
    uint8_t *in_flight; /* [n % window]: see flight_state in mqtt_load_traffic.c */
    uint8_t *message;   /* filled in and copied for each publish */
    wire_template template;
    uint64_t due; /* messages that may have been sent up to now */
    uint64_t sent;
    uint64_t settled; /* all before this one are acknowledged */
    uint64_t delivered;
    /* of a subscriber */
    load_route *routes; /* from each publisher that it hears, the first one is `index` in pairs, else 0 */
} load_client;

typedef struct load_job {
    const load_options *options;
    load_net net;
    uint32_t tag;
    uint32_t degree; /* subscribers of each publisher that are there */
    uint32_t routes; /* of each subscriber */
    load_client *publishers, *subscribers;
    uint32_t publisher_count, subscriber_count;
    uint32_t open_count, ready_count; /* connections */
    uint64_t scheduled;               /* with a rate: messages that have become due */
    uint64_t pings, pings_from_ns;    /* of idle subscribers */
    uint64_t start_ns;                /* with a rate: when the first was due */
    uint64_t latency_from_ns, latency_until_ns; /* send times that count */
    uint64_t unreleased;              /* QoS 2 messages received whose PUBREL has not come */
    load_counts counts;
    load_histogram *latency;
    uint64_t sessions_present;
} load_job;

/* Makes the clients; false: no memory, see load->net.fault.  Fini also after a failed init. */
bool load_traffic_init(load_job *load, const load_options *options);
void load_traffic_fini(load_job *load);

/* Begins to connect; READY follows (load->ready_count). */
void load_client_open(load_job *load, load_client *client);
/* Sends DISCONNECT; the connection ends when the broker closes it (load->open_count). */
void load_client_leave(load_job *load, load_client *client);
void load_client_ping(load_job *load, load_client *client);

/* When message `number` of all is due (with a rate). */
uint64_t load_due_ns(const load_job *load, uint64_t number);

/* Messages that must arrive if nothing else is published. */
uint64_t load_expected(const load_job *load);
/* Messages that have not arrived, looking at each route. */
uint64_t load_missing(const load_job *load);

#endif
