/* mqtt_load_traffic.c - see mqtt_load_traffic.h. */
#include "mqtt_load_traffic.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_BUFFER_BYTES 4096  /* of a connection without traffic */
#define LARGE_BUFFER_BYTES 65536 /* of others, unless messages are larger */
#define SUBACK_REFUSED 0x80
#define ACK_REFUSED 0x80
#define MAX_PACKET_IDS 65535

enum flight_state { FLIGHT_NONE, FLIGHT_SENT, FLIGHT_RELEASED, FLIGHT_DONE };

typedef struct payload_head {
    uint32_t tag;
    uint32_t publisher;
    uint64_t sequence;
    uint64_t sent_ns;
} payload_head;

_Static_assert(sizeof(payload_head) == LOAD_MIN_PAYLOAD_BYTES, "the payload's head has no gaps");

/* ---- publishers ------------------------------------------------------------------------------------------------- */

uint64_t load_due_ns(const load_job *load, uint64_t number) {
    return load->start_ns + (uint64_t)((double)number / load->options->rate * (double)NS_PER_S);
}

static bool may_publish(load_job *load, load_client *publisher) {
    const load_options *options = load->options;
    if (publisher->state != CLIENT_READY || publisher->sent >= publisher->due) return false;
    if (options->qos > 0 && publisher->sent - publisher->settled >= publisher->window) return false;
    uint64_t behind = (uint64_t)options->behind * load->degree;
    publisher->throttled = behind > 0 && publisher->sent * load->degree >= publisher->delivered + behind;
    return !publisher->throttled;
}

static void write_message(load_job *load, load_client *publisher, uint8_t *out) {
    uint64_t number = publisher->sent++;
    payload_head head = {
        .tag = load->tag,
        .publisher = publisher->index,
        .sequence = number,
        .sent_ns = load->options->rate > 0 ? load_due_ns(load, number * load->publisher_count + publisher->index)
                                           : load->net.now_ns,
    };
    memcpy(out, publisher->message, publisher->template.len);
    memcpy(out + publisher->template.payload_at, &head, sizeof head);
    load->counts.published++;
    if (load->options->qos == 0) {
        load->counts.acknowledged++;
        return;
    }
    wire_put_u16(out + publisher->template.packet_id_at, (uint16_t)(number % MAX_PACKET_IDS + 1));
    publisher->in_flight[number % publisher->window] = FLIGHT_SENT;
}

/* net.on_writable */
static bool publish_what_is_due(void *context, net_client *client) {
    load_job *load = context;
    load_client *publisher = (load_client *)client;
    if (!publisher->publishes) return false;
    while (may_publish(load, publisher)) {
        uint8_t *out = net_message_room(client, publisher->template.len);
        if (out == NULL) return true;
        write_message(load, publisher, out);
        load->net.last_packet_ns = load->net.now_ns;
    }
    return false;
}

/* The message in flight with this identifier (invariant 1); false: there is none. */
static bool find_in_flight(const load_client *publisher, uint16_t packet_id, uint64_t *number) {
    uint64_t first_id = publisher->settled % MAX_PACKET_IDS + 1;
    *number = publisher->settled + (packet_id + MAX_PACKET_IDS - first_id) % MAX_PACKET_IDS;
    return packet_id > 0 && *number < publisher->sent;
}

static void settle(load_job *load, load_client *publisher, uint64_t number) {
    publisher->in_flight[number % publisher->window] = FLIGHT_DONE;
    load->counts.acknowledged++;
    while (publisher->settled < publisher->sent &&
           publisher->in_flight[publisher->settled % publisher->window] == FLIGHT_DONE)
        publisher->in_flight[publisher->settled++ % publisher->window] = FLIGHT_NONE;
}

static void answer(load_job *load, load_client *client, uint8_t type, uint16_t packet_id) {
    uint8_t *out = net_answer_room(&client->net, WIRE_ACK_BYTES);
    if (out == NULL) {
        net_fail(&load->net, "%s: no room for an answer", client->net.name);
        return;
    }
    (void)wire_put_ack(out, type, packet_id);
}

static void on_acknowledged(load_job *load, load_client *publisher, const wire_packet *packet) {
    uint16_t packet_id;
    uint8_t code;
    uint64_t number;
    if (!publisher->publishes || !wire_read_ack(packet, &packet_id, &code) ||
        !find_in_flight(publisher, packet_id, &number)) {
        net_fail(&load->net, "%s: an acknowledgement (type %u) of what is not in flight", publisher->net.name,
                 packet->type);
        return;
    }
    uint8_t *state = &publisher->in_flight[number % publisher->window];
    uint8_t awaited = load->options->qos == 1 ? WIRE_PUBACK : *state == FLIGHT_RELEASED ? WIRE_PUBCOMP : WIRE_PUBREC;
    if (packet->type != awaited || *state == FLIGHT_DONE) {
        net_fail(&load->net, "%s: packet type %u came where %u was expected", publisher->net.name, packet->type,
                 awaited);
    } else if (code >= ACK_REFUSED) {
        load->counts.refused++;
        settle(load, publisher, number);
    } else if (packet->type == WIRE_PUBREC) {
        *state = FLIGHT_RELEASED;
        answer(load, publisher, WIRE_PUBREL, packet_id);
    } else {
        settle(load, publisher, number);
    }
}

/* ---- subscribers ------------------------------------------------------------------------------------------------ */

static load_route *route_from(const load_job *load, const load_client *subscriber, uint32_t publisher) {
    bool one_to_one = load->options->pattern == LOAD_PAIRS || load->options->pattern == LOAD_DRAIN;
    uint32_t first = one_to_one ? subscriber->index : 0;
    if (load->options->pattern == LOAD_FAN_IN && publisher % load->subscriber_count != subscriber->index) return NULL;
    return publisher - first < load->routes ? &subscriber->routes[publisher - first] : NULL;
}

static void note(load_job *load, const payload_head *head, load_verdict verdict) {
    if (verdict == ROUTE_DUPLICATE) {
        load->counts.duplicates++;
        return;
    }
    if (verdict == ROUTE_LATE) load->counts.out_of_order++;
    load->counts.delivered++;
    if (head->sent_ns >= load->latency_from_ns && head->sent_ns < load->latency_until_ns)
        load_histogram_add(load->latency, load->net.now_ns > head->sent_ns ? load->net.now_ns - head->sent_ns : 0);
    if (load->options->pattern == LOAD_DRAIN) return; /* its publishers are of another run */
    load_client *publisher = &load->publishers[head->publisher];
    publisher->delivered++;
    if (publisher->throttled) net_touch(&load->net, &publisher->net);
}

static void on_publish(load_job *load, load_client *subscriber, const wire_packet *packet) {
    wire_publish publish;
    if (subscriber->publishes || !wire_read_publish(packet, load->options->version, &publish)) {
        net_fail(&load->net, "%s: a PUBLISH that is malformed or was not asked for", subscriber->net.name);
        return;
    }
    payload_head head = {0};
    load_route *route = NULL;
    if (publish.payload_len == load->options->payload_bytes && publish.qos == load->options->qos) {
        memcpy(&head, publish.payload, sizeof head);
        if (head.tag == load->tag) route = route_from(load, subscriber, head.publisher);
    }
    if (route == NULL)
        load->counts.foreign++;
    else
        note(load, &head, load_route_take(route, head.sequence));
    if (publish.qos == 1) answer(load, subscriber, WIRE_PUBACK, publish.packet_id);
    if (publish.qos == 2) {
        load->unreleased++;
        answer(load, subscriber, WIRE_PUBREC, publish.packet_id);
    }
}

static void on_release(load_job *load, load_client *subscriber, const wire_packet *packet) {
    uint16_t packet_id;
    uint8_t code;
    if (load->unreleased == 0 || !wire_read_ack(packet, &packet_id, &code)) {
        net_fail(&load->net, "%s: a PUBREL that is malformed or was not expected", subscriber->net.name);
        return;
    }
    load->unreleased--;
    answer(load, subscriber, WIRE_PUBCOMP, packet_id);
}

/* ---- connections ------------------------------------------------------------------------------------------------ */

static void put_small(load_job *load, load_client *client, const uint8_t *packet, size_t len) {
    uint8_t *out = net_answer_room(&client->net, len);
    if (out == NULL) {
        net_fail(&load->net, "%s: no room to send", client->net.name);
        return;
    }
    memcpy(out, packet, len);
    net_touch(&load->net, &client->net);
}

void load_client_open(load_job *load, load_client *client) {
    const load_options *options = load->options;
    size_t room = options->pattern == LOAD_IDLE ? SMALL_BUFFER_BYTES : LARGE_BUFFER_BYTES;
    size_t four_messages = (size_t)4 * (options->payload_bytes + WIRE_SMALL_PACKET_BYTES);
    client->state = CLIENT_CONNECTING;
    load->open_count++;
    net_open(&load->net, &client->net, room > four_messages ? room : four_messages);
    if (load->net.failed) return;
    wire_connect connect = {
        .version = options->version,
        .clean = options->clean,
        .keep_alive_s = (uint16_t)options->keep_alive_s,
        .receive_maximum = (uint16_t)options->receive_maximum,
        .client_id = client->net.name,
    };
    uint8_t packet[WIRE_SMALL_PACKET_BYTES];
    put_small(load, client, packet, wire_put_connect(packet, &connect));
}

void load_client_leave(load_job *load, load_client *client) {
    uint8_t packet[WIRE_SMALL_PACKET_BYTES];
    if (client->net.fd < 0) return;
    put_small(load, client, packet, wire_put_disconnect(packet));
    client->net.closing = true;
}

void load_client_ping(load_job *load, load_client *client) {
    uint8_t packet[WIRE_SMALL_PACKET_BYTES];
    if (client->net.fd >= 0) put_small(load, client, packet, wire_put_pingreq(packet));
}

static void ready(load_job *load, load_client *client) {
    client->state = CLIENT_READY;
    load->ready_count++;
}

static void on_connack(load_job *load, load_client *client, const wire_packet *packet) {
    wire_connack connack;
    if (client->state != CLIENT_CONNECTING || !wire_read_connack(packet, load->options->version, &connack) ||
        connack.code != 0) {
        net_fail(&load->net, "%s: refused, or answered by a malformed CONNACK (code %u)", client->net.name,
                 packet->len >= 2 ? packet->body[1] : 0);
        return;
    }
    if (connack.session_present) load->sessions_present++;
    if (client->window > connack.receive_maximum) client->window = connack.receive_maximum;
    if (!client->subscribes) {
        ready(load, client);
        return;
    }
    client->state = CLIENT_SUBSCRIBING;
    uint8_t subscribe[WIRE_SMALL_PACKET_BYTES];
    put_small(load, client, subscribe,
              wire_put_subscribe(subscribe, load->options->version, client->topic, load->options->qos));
}

static void on_suback(load_job *load, load_client *client, const wire_packet *packet) {
    uint8_t code = SUBACK_REFUSED;
    if (client->state != CLIENT_SUBSCRIBING || !wire_read_suback(packet, load->options->version, &code) ||
        code != load->options->qos) {
        net_fail(&load->net, "%s: QoS %u was not granted (code %u)", client->net.name, load->options->qos, code);
        return;
    }
    ready(load, client);
}

/* net.on_packet */
static void on_packet(void *context, net_client *connection, const wire_packet *packet) {
    load_job *load = context;
    load_client *client = (load_client *)connection;
    switch (packet->type) {
    case WIRE_PUBLISH: on_publish(load, client, packet); break;
    case WIRE_PUBACK:
    case WIRE_PUBREC:
    case WIRE_PUBCOMP: on_acknowledged(load, client, packet); break;
    case WIRE_PUBREL: on_release(load, client, packet); break;
    case WIRE_CONNACK: on_connack(load, client, packet); break;
    case WIRE_SUBACK: on_suback(load, client, packet); break;
    case WIRE_PINGRESP: break;
    case WIRE_DISCONNECT:
        net_fail(&load->net, "%s: disconnected by the broker, reason code 0x%02x", connection->name,
                 packet->len > 0 ? packet->body[0] : 0);
        break;
    default: net_fail(&load->net, "%s: packet type %u is not for clients", connection->name, packet->type); break;
    }
}

static void on_closed(void *context, net_client *connection) {
    load_job *load = context;
    load_client *client = (load_client *)connection;
    if (client->state == CLIENT_READY) load->ready_count--;
    client->state = CLIENT_OUT;
    load->open_count--;
}

/* ---- life ------------------------------------------------------------------------------------------------------- */

static uint32_t tag_of(const char *prefix) { /* FNV-1a */
    uint32_t hash = 2166136261U;
    for (; *prefix; prefix++) hash = (hash ^ (uint8_t)*prefix) * 16777619U;
    return hash;
}

static bool init_publisher(load_job *load, load_client *publisher, uint32_t index) {
    const load_options *options = load->options;
    publisher->index = index;
    publisher->publishes = true;
    publisher->window = options->window;
    publisher->net.fd = -1;
    (void)snprintf(publisher->net.name, sizeof publisher->net.name, "%s-pub-%u", options->prefix, index);
    if (options->pattern == LOAD_FAN_IN)
        (void)snprintf(publisher->topic, sizeof publisher->topic, "%s/%u/%u", options->prefix,
                       index % options->subscribers, index);
    else
        (void)snprintf(publisher->topic, sizeof publisher->topic, "%s/%u", options->prefix, index);
    publisher->in_flight = calloc(options->window, 1);
    publisher->message = malloc(options->payload_bytes + WIRE_SMALL_PACKET_BYTES);
    if (publisher->in_flight == NULL || publisher->message == NULL) return false;
    publisher->template =
        wire_put_publish(publisher->message, options->version, publisher->topic, options->qos, options->payload_bytes);
    return true;
}

static bool init_subscriber(load_job *load, load_client *subscriber, uint32_t index) {
    const load_options *options = load->options;
    subscriber->index = index;
    subscriber->subscribes = options->pattern != LOAD_DRAIN;
    subscriber->net.fd = -1;
    (void)snprintf(subscriber->net.name, sizeof subscriber->net.name, "%s-sub-%u", options->prefix, index);
    if (options->pattern == LOAD_FAN_IN)
        (void)snprintf(subscriber->topic, sizeof subscriber->topic, "%s/%u/+", options->prefix, index);
    else
        (void)snprintf(subscriber->topic, sizeof subscriber->topic, "%s/%u", options->prefix,
                       options->pattern == LOAD_FAN_OUT ? 0 : index);
    if (options->pattern == LOAD_IDLE) return true;
    subscriber->routes = calloc(load->routes, sizeof(load_route));
    return subscriber->routes != NULL;
}

bool load_traffic_init(load_job *load, const load_options *options) {
    bool publishing = options->pattern != LOAD_DRAIN && options->pattern != LOAD_IDLE;
    load->options = options;
    load->tag = tag_of(options->prefix);
    load->degree = options->pattern == LOAD_STORE ? 0 : options->pattern == LOAD_FAN_OUT ? options->subscribers : 1;
    load->routes = options->pattern == LOAD_FAN_IN ? options->publishers : 1;
    load->latency_until_ns = UINT64_MAX;
    size_t clients = (size_t)options->publishers + options->subscribers;
    if (!net_init(&load->net, options->host, options->port, options->source, clients)) return false;
    load->net.context = load;
    load->net.websocket = options->websocket;
    load->net.gather_ns = (uint64_t)(options->gather_s * (double)NS_PER_S);
    load->net.on_packet = on_packet;
    load->net.on_writable = publish_what_is_due;
    load->net.on_closed = on_closed;
    load->publishers = calloc(options->publishers, sizeof(load_client));
    load->subscribers = calloc(options->subscribers, sizeof(load_client));
    bool made = load->publishers != NULL && load->subscribers != NULL;
    while (made && publishing && load->publisher_count < options->publishers) {
        made = init_publisher(load, &load->publishers[load->publisher_count], load->publisher_count);
        load->publisher_count++;
    }
    while (made && load->subscriber_count < options->subscribers) {
        made = init_subscriber(load, &load->subscribers[load->subscriber_count], load->subscriber_count);
        load->subscriber_count++;
    }
    if (!made) net_fail(&load->net, "no memory for the clients");
    return made;
}

static void free_clients(load_client *clients, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        net_client_free(&clients[i].net);
        free(clients[i].in_flight);
        free(clients[i].message);
        free(clients[i].routes);
    }
    free(clients);
}

void load_traffic_fini(load_job *load) {
    free_clients(load->publishers, load->publisher_count);
    free_clients(load->subscribers, load->subscriber_count);
    net_fini(&load->net);
}

uint64_t load_expected(const load_job *load) {
    if (load->options->pattern == LOAD_DRAIN) return load->options->count * load->subscriber_count;
    return load->counts.published * load->degree;
}

uint64_t load_missing(const load_job *load) {
    uint64_t missing = 0;
    if (load->degree == 0 || load->options->pattern == LOAD_IDLE) return 0;
    for (uint32_t i = 0; i < load->subscriber_count; i++) {
        for (uint32_t j = 0; j < load->routes; j++) {
            if (load->options->pattern == LOAD_FAN_IN && j % load->subscriber_count != i) continue;
            uint32_t publisher = load->options->pattern == LOAD_PAIRS ? i : j;
            uint64_t sent =
                load->options->pattern == LOAD_DRAIN ? load->options->count : load->publishers[publisher].sent;
            missing += load_route_missing(&load->subscribers[i].routes[j], sent);
        }
    }
    return missing;
}
