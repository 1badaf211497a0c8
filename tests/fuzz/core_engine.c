/* core_engine.c - whole conversations with the engine, from bytes: clients and a server that say anything in any cuts.
 *
 *      script: op, argument, [length, bytes]; op, ...          (each op takes what it needs; what is missing is 0)
 *
 * Four clients, their owner, and a server.  The server's answers are mostly of the type that was asked for, so that the
 * conversation goes on; some are nonsense, then the owner makes the connection anew, as the contract says.
 *
 * Laws
 *  1. What a client gets is a sequence of whole packets of its version, none of which a client alone may send.
 *  2. What the server gets is a sequence of whole commands; a TOPIC.PIPELINE holds two or more publishes, within its bound.
 *  3. Events name connections that there are, and their bytes are readable.
 *  4. All memory goes back, also when some could not be had.
 *  5. Traces are of the two kinds, and not more than their rate allows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "topic/packed_page.h"
#include "topic/record.h"
#include "base/resp.h"
#include "core_targets.h"

#define HOLDS(law)                                                                                                     \
    do {                                                                                                               \
        if (!(law)) {                                                                                                  \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #law);                                   \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

#define CLIENTS 4
#define MOST_PIPELINED 3
#define MOST_EVENTS 1000 /* of one step */
#define T0 1760000000000LL

/* ---- memory that may lack ---------------------------------------------------------------------------------- */

static long blocks, calls_to_failure;

static bool fails(void) {
    return calls_to_failure >= 0 && calls_to_failure-- == 0;
}

static void *counted_alloc(size_t size) {
    void *memory = fails() ? NULL : malloc(size);
    blocks += memory != NULL;
    return memory;
}

static void *counted_resize(void *old, size_t size) {
    void *memory = fails() ? NULL : realloc(old, size);
    blocks += memory != NULL && old == NULL;
    return memory;
}

static void counted_release(void *memory) {
    blocks -= memory != NULL;
    free(memory);
}

static const hmq_allocator counted = {counted_alloc, counted_resize, counted_release};

/* ---- the world --------------------------------------------------------------------------------------------- */

typedef struct client {
    hmq_conn conn;
    uint8_t version; /* 0: not open */
    uint64_t serial; /* of the last message pushed to it */
} client;

typedef struct world {
    hmq_engine *engine;
    client clients[CLIENTS];
    int64_t now_ms;
    uint64_t epoch;
    const uint8_t *data;
    size_t len;
} world;

static uint8_t next(world *w) {
    if (w->len == 0) return 0;
    w->len--;
    return *w->data++;
}

/* A run of bytes of the script in a block of exactly its size; the caller frees it. */
static uint8_t *next_bytes(world *w, size_t *len) {
    *len = next(w);
    if (*len > w->len) *len = w->len;
    uint8_t *copy = malloc(*len);
    HOLDS(copy != NULL || *len == 0);
    if (*len > 0) memcpy(copy, w->data, *len);
    w->data += *len, w->len -= *len;
    return copy;
}

static client *client_of(world *w, hmq_conn conn) {
    for (size_t i = 0; i < CLIENTS; i++) {
        if (w->clients[i].conn == conn) return &w->clients[i];
    }
    return NULL;
}

static volatile uint8_t sink;

static void read_all(hmq_slice bytes) {
    for (size_t i = 0; i < bytes.len; i++) sink ^= bytes.data[i];
}

/* ---- what comes out ---------------------------------------------------------------------------------------- */

/* Law 1.  Before the session is open nothing may come: this owner sends nothing then. */
static void check_packets(const client *c, hmq_slice bytes) {
    while (bytes.len > 0) {
        hmq_mqtt_packet packet;
        HOLDS(c->version != 0);
        int64_t size = hmq_mqtt_decode(bytes.data, bytes.len, c->version, HMQ_MQTT_MAX_REMAINING, &packet);
        HOLDS(size > 0);
        HOLDS(packet.type == HMQ_MQTT_PUBLISH || (packet.type >= HMQ_MQTT_PUBACK && packet.type <= HMQ_MQTT_PUBCOMP) ||
              packet.type == HMQ_MQTT_PINGRESP);
        bytes.data += size, bytes.len -= (size_t)size;
    }
}

static void take_outputs(world *w) {
    hmq_conn conn;
    hmq_slice bytes;
    while (hmq_engine_next_output(w->engine, &conn, &bytes)) {
        const client *c = client_of(w, conn);
        HOLDS(c != NULL);
        check_packets(c, bytes);
    }
}

/* The name of the command at *at, and *at behind it. */
static hmq_slice command_name(hmq_slice bytes, size_t *at) {
    hmq_resp_item header, name;
    HOLDS(hmq_resp_next(bytes.data, bytes.len, at, &header) && header.type == '*');
    HOLDS(hmq_resp_next(bytes.data, bytes.len, at, &name) && name.type == '$');
    return name.text;
}

static bool is_word(hmq_slice text, const char *word) {
    return text.len == strlen(word) && memcmp(text.data, word, text.len) == 0;
}

/* Law 2.  The bytes are those of one command. */
static void check_command(hmq_slice bytes) {
    size_t at = 0, publishes = 0;
    hmq_resp_item listed;
    if (!is_word(command_name(bytes, &at), "TOPIC.PIPELINE")) return;
    HOLDS(hmq_resp_next(bytes.data, bytes.len, &at, &listed) && listed.type == '$' && at == bytes.len);
    for (size_t begin = 0; begin < listed.text.len; publishes++) {
        int64_t size = hmq_resp_measure(listed.text.data + begin, listed.text.len - begin);
        size_t inner = begin;
        HOLDS(size > 0);
        HOLDS(is_word(command_name(listed.text, &inner), "TOPIC.PUBLISH"));
        begin += (size_t)size;
    }
    HOLDS(publishes >= 2 && publishes <= MOST_PIPELINED);
}

static void take_commands(world *w, size_t most) {
    hmq_slice output = hmq_engine_server_output(w->engine, 0);
    size_t at = 0;
    while (at < output.len && most-- > 0) {
        int64_t size = hmq_resp_measure(output.data + at, output.len - at);
        HOLDS(size > 0);
        check_command((hmq_slice){output.data + at, (size_t)size});
        at += (size_t)size;
    }
    hmq_engine_server_written(w->engine, 0, at);
}

/* Perhaps in the middle of a command. */
static void lose(world *w, uint8_t argument) {
    if (argument & 2)
        hmq_engine_server_written(w->engine, 0, hmq_engine_server_output(w->engine, 0).len * argument / 256);
    hmq_engine_server_lost(w->engine, 0);
}

static void come_back(world *w) {
    hmq_engine_server_lost(w->engine, 0);
    hmq_engine_server_restored(w->engine, 0, w->now_ms);
}

/* Law 3.  A packet is left alone: the script says what becomes of it. */
static void on_event(const hmq_engine_event *event) {
    HOLDS(event->kind >= HMQ_EVENT_PACKET && event->kind <= HMQ_EVENT_ABANDONED);
    bool of_a_client = event->kind != HMQ_EVENT_REPLY && event->kind != HMQ_EVENT_PUSH;
    HOLDS(!of_a_client || event->conn != 0);
    read_all(event->bytes);
}

static void take_events(world *w) {
    hmq_engine_event event;
    for (int i = 0; i < MOST_EVENTS && hmq_engine_next_event(w->engine, &event); i++) on_event(&event);
}

static void serve(world *w, const uint8_t *bytes, size_t len) {
    hmq_engine_event event;
    int outcome = hmq_engine_replies(w->engine, 0, bytes, len, w->now_ms, &event);
    for (int i = 0; outcome > 0 && i < MOST_EVENTS; i++) {
        on_event(&event);
        outcome = hmq_engine_replies(w->engine, 0, NULL, 0, w->now_ms, &event);
    }
    if (outcome < 0) come_back(w);
}

/* ---- what the server says ---------------------------------------------------------------------------------- */

static const char context[] = "\x26\0\x0btraceparent\0\x37"
                              "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

static size_t put_record(world *w, uint8_t kind, uint8_t *out, size_t room) {
    size_t len;
    uint8_t *text = next_bytes(w, &len);
    if (kind & 0x80) { /* somebody's own bytes */
        if (len > room) len = room;
        if (len > 0) memcpy(out, text, len);
        free(text);
        return len;
    }
    hmq_record record = {.type = kind & 0x40 ? HMQ_RECORD_PUBREL : HMQ_RECORD_PUBLISH,
                         .qos = (uint8_t)(kind & 3) % 3,
                         .time_ms = w->now_ms};
    if (record.type == HMQ_RECORD_PUBLISH) {
        record.retain = (kind & 4) != 0;
        record.expires_ms = kind & 8 ? w->now_ms + (kind & 0x30) * 10 : 0;
        record.topic = (hmq_slice){(const uint8_t *)"some/topic", len % 11};
        record.payload = (hmq_slice){text, len};
        if (len & 1) record.properties = (hmq_slice){(const uint8_t *)context, sizeof context - 1};
    }
    size_t size = hmq_record_encode(&record, out, room);
    free(text);
    return size;
}

/* A push to a client's inbox that continues its queue, or leaves a gap. */
static void push(world *w, uint8_t argument) {
    static const char channels[CLIENTS][10] = {"{0}_inbox", "{1}_inbox", "{2}_inbox", "{3}_inbox"};
    uint8_t value[512], bytes[700], *out = bytes, kind = next(w);
    client *c = &w->clients[argument % CLIENTS];
    bool queued = argument & 4;
    hmq_delivery d = {.kind = HMQ_DELIVERY_TRANSIENT};
    if (queued) {
        d = (hmq_delivery){.kind = HMQ_DELIVERY_QUEUED, .qos = 1, .previous = c->serial};
        c->serial += 1 + (argument >> 5);
        d.serial = c->serial;
        d.packet_id = (uint16_t)(d.serial % 7 + 1); /* few: they come round */
        d.previous += argument & 8 ? 1 : 0;
    } else if (argument & 0x30) {
        d.kind = argument & 0x10 ? HMQ_DELIVERY_TAKEN_OVER : HMQ_DELIVERY_DROPPED;
        d.serial = w->epoch + (argument & 8 ? 1 : 0);
    }
    size_t header = hmq_delivery_encode_header(&d, value, sizeof value);
    bool is_notice = d.kind != HMQ_DELIVERY_QUEUED && d.kind != HMQ_DELIVERY_TRANSIENT;
    bool is_alone = is_notice || (queued && kind == 0xff);
    size_t len = header + (is_alone ? 0 : put_record(w, kind, value + header, sizeof value - header));
    out = hmq_resp_put_header(out, '>', 3);
    out = hmq_resp_put_text(out, "message", 7);
    out = hmq_resp_put_text(out, channels[argument % CLIENTS], 9);
    out = hmq_resp_put_text(out, value, len);
    serve(w, bytes, (size_t)(out - bytes));
}

/* An entry of a page, as an array. */
static uint8_t *put_listed(uint8_t *out, const hmq_packed_entry *entry) {
    out = hmq_resp_put_header(out, '*', 4);
    out = hmq_resp_put_header(out, ':', entry->serial);
    out = hmq_resp_put_header(out, ':', entry->packet_id);
    out = hmq_resp_put_header(out, ':', entry->state);
    return hmq_resp_put_text(out, entry->value.data, entry->value.len);
}

/* The same, packed. */
static uint8_t *put_packed(uint8_t *out, const hmq_packed_entry *entry) {
    hmq_packed_entry_put(entry, out);
    memcpy(out + HMQ_PACKED_ENTRY_BYTES, entry->value.data, entry->value.len);
    return out + HMQ_PACKED_ENTRY_BYTES + entry->value.len;
}

/* The reply to SESSION.FETCH with a few entries behind the client's last one, in either form; a packed one may be cut. */
static void page(world *w, uint8_t argument) {
    uint8_t bytes[2048], entries[2048], *out = bytes, *end = entries, count = argument & 3;
    uint64_t serial = next(w);
    bool packs = argument & 0x10;
    for (uint8_t i = 0; i < count; i++) {
        uint8_t value[400], kind = next(w);
        size_t len = put_record(w, kind, value, sizeof value);
        serial += 1 + (kind >> 6);
        const hmq_packed_entry entry = {serial, (uint16_t)(serial % 7 + 1), kind % 3, {value, len}};
        end = packs ? put_packed(end, &entry) : put_listed(end, &entry);
    }
    size_t len = (size_t)(end - entries), lacks = argument & 0x20 ? argument >> 6 : 0;
    if (packs && lacks <= len) len -= lacks;
    uint8_t bounded = count == 0 ? next(w) : 0;
    out = hmq_resp_put_header(out, '*', bounded ? 4 : 3);
    if (packs) {
        out = hmq_resp_put_text(out, entries, len);
    } else {
        out = hmq_resp_put_header(out, '*', count);
        memcpy(out, entries, len);
        out += len;
    }
    out = hmq_resp_put_header(out, ':', argument >> 2 & 1);
    out = hmq_resp_put_header(out, ':', 0);
    if (bounded) { /* with a message that is too large for the page, or for any */
        out = hmq_resp_put_header(out, '*', bounded & 1 ? 3 : 0);
        if (bounded & 1) out = hmq_resp_put_header(out, ':', bounded & 2 ? 30000000 : 700);
        if (bounded & 1) out = hmq_resp_put_header(out, ':', serial + 1);
        if (bounded & 1) out = hmq_resp_put_header(out, ':', (bounded >> 2) % 7);
    }
    size_t size = (size_t)(out - bytes), cut = argument & 8 ? size / 2 : 0;
    if (cut > 0) serve(w, bytes, cut);
    serve(w, bytes + cut, size - cut);
}

static void answer(world *w, uint8_t argument) {
    static const char *const replies[] = {":1\r\n",
                                          ":0\r\n",
                                          ":-1\r\n",
                                          "+OK\r\n",
                                          "-OOM x\r\n",
                                          "-FENCED\r\n",
                                          "-NOSESSION x\r\n",
                                          "-TRYAGAIN\r\n",
                                          "-ERR unknown command\r\n",
                                          "+PONG\r\n",
                                          "*0\r\n",
                                          "_\r\n",
                                          ":1\r\n:1\r\n",
                                          "-NOPERM\r\n",
                                          "-INVALIDTOPIC\r\n",
                                          "%1\r\n+a\r\n:1\r\n"};
    const char *reply = replies[argument & 15];
    uint8_t header[8], count = (uint8_t)((argument >> 5) + 1);
    bool as_array = argument & 0x10; /* as TOPIC.PIPELINE has it */
    if (as_array) serve(w, header, (size_t)(hmq_resp_put_header(header, '*', count) - header));
    for (uint8_t i = 0; i < count; i++) serve(w, (const uint8_t *)reply, strlen(reply));
}

/* ---- what the owner does ----------------------------------------------------------------------------------- */

static void attach(world *w, client *c) {
    if (c->conn != 0) hmq_engine_close(w->engine, c->conn);
    *c = (client){.conn = hmq_engine_attach(w->engine), .serial = c->serial};
}

static void open(world *w, client *c, uint8_t argument) {
    static const char keys[CLIENTS][4] = {"{0}", "{1}", "{2}", "{3}"};
    uint8_t terms = next(w);
    size_t named = (size_t)(c - w->clients + (terms & 0x80 ? 1 : 0)) % CLIENTS; /* two may want the same session */
    bool ok;
    hmq_engine_session session = {.version = argument & 4 ? 5 : 4,
                                  .resumed = (argument & 8) != 0,
                                  .denied_otherwise = (argument & 0x10) != 0,
                                  .window = (uint16_t)(1 + (terms & 3)),
                                  .receive_maximum = terms & 4 ? 2 : 0,
                                  .alias_maximum_in = terms & 8 ? 2 : 0,
                                  .alias_maximum_out = terms & 0x10 ? 2 : 0,
                                  .max_packet_out = terms & 0x20 ? 40 : 0,
                                  .replay_rate = terms & 0x40 ? 3 : 0,
                                  .publish_rate = argument & 0x20 ? 3 : 0,
                                  .epoch = ++w->epoch,
                                  .client_id = {(const uint8_t *)keys[named] + 1, 1}};
    hmq_slice key = {(const uint8_t *)keys[named], 3};
    hmq_conn former = hmq_engine_open(w->engine, c->conn, &session, key, w->now_ms, &ok);
    HOLDS(ok || former == 0);
    if (ok) c->version = session.version;
    if (former != 0) HOLDS(client_of(w, former) != NULL);
    if (terms & 0x40) {
        hmq_engine_rule rules[] = {{false, {(const uint8_t *)"no/#", 4}}, {true, {(const uint8_t *)"+", 1}}};
        hmq_engine_rules(w->engine, c->conn, rules, 2, session.denied_otherwise);
    }
}

static void go_on(world *w, const client *c) {
    hmq_engine_event event;
    if (hmq_engine_continue(w->engine, c->conn, w->now_ms, &event)) on_event(&event);
}

static void hear(world *w, const client *c) {
    hmq_engine_event event;
    size_t len;
    uint8_t *bytes = next_bytes(w, &len);
    if (hmq_engine_receive(w->engine, c->conn, bytes, len, w->now_ms, &event)) on_event(&event);
    free(bytes);
}

static void speak(world *w) {
    size_t len;
    uint8_t *bytes = next_bytes(w, &len);
    serve(w, bytes, len);
    free(bytes);
}

static void command(world *w, uint8_t argument) {
    static const char ping[] = "*1\r\n$4\r\nPING\r\n", listen[] = "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n";
    bool silent = argument & 0x80;
    const char *text = silent ? listen : ping;
    hmq_engine_command(w->engine, 0, 0, argument, !silent, (const uint8_t *)text, strlen(text));
}

/* A client that is through its CONNECT, so that scripts need not begin with that. */
static void connect_first(world *w, client *c) {
    static const uint8_t packet[] = {0x10, 13, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 60, 0, 1, 'x'};
    hmq_engine_event event;
    if (!hmq_engine_receive(w->engine, c->conn, packet, sizeof packet, w->now_ms, &event)) return;
    on_event(&event);
}

static void step(world *w) {
    uint8_t op = next(w), argument = next(w);
    client *c = &w->clients[argument % CLIENTS];
    switch (op & 15) {
    case 0: hear(w, c); break;
    case 1: speak(w); break;
    case 2: go_on(w, c); break;
    case 3: open(w, c, argument); break;
    case 4: w->now_ms += argument * 8; break;
    case 5: argument & 1 ? lose(w, argument) : hmq_engine_server_restored(w->engine, 0, w->now_ms); break;
    case 6: take_outputs(w); break;
    case 7: take_commands(w, argument); break;
    case 8: hmq_engine_writable(w->engine, c->conn, argument & 4); break;
    case 9: attach(w, c); break;
    case 10: calls_to_failure = argument; break;
    case 11: answer(w, argument); break;
    case 12: push(w, argument); break;
    case 13: page(w, argument); break;
    case 14: command(w, argument); break;
    default: /* connects, opens and goes on */
        connect_first(w, c);
        open(w, c, argument);
        go_on(w, c);
    }
    if (op & 0x10) hmq_engine_flush(w->engine, w->now_ms);
    if (op & 0x20) take_events(w);
    if (op & 0x40) take_commands(w, SIZE_MAX);
    if (op & 0x80) take_outputs(w);
    hmq_engine_pauses_reading(w->engine, c->conn);
}

/* ---- traces ------------------------------------------------------------------------------------------------ */

#define TRACE_RATE 3
#define TRACE_ROWS 4

static int64_t trace_now_ms;

static int64_t trace_clock(void) {
    return trace_now_ms * 1000000;
}

/* Law 5. */
static uint32_t take_traces(world *w) {
    hmq_engine_trace_row rows[TRACE_ROWS];
    uint32_t taken = 0, count;
    trace_now_ms = w->now_ms;
    while ((count = hmq_engine_take_traces(w->engine, rows, TRACE_ROWS)) > 0) {
        taken += count;
        for (uint32_t i = 0; i < count; i++) {
            HOLDS(rows[i].kind == HMQ_TRACE_PUBLISH || rows[i].kind == HMQ_TRACE_DELIVERY);
            HOLDS(rows[i].outcome <= HMQ_TRACE_SKIPPED && rows[i].began_ns > 0 && rows[i].ended_ns > 0);
            HOLDS(rows[i].has_parent || rows[i].kind == HMQ_TRACE_PUBLISH);
        }
    }
    return taken;
}

void fuzz_engine(const uint8_t *data, size_t len) {
    static const hmq_engine_settings settings = {.max_packet_bytes = 200,
                                                 .max_client_outstanding = 4,
                                                 .max_outstanding = 8,
                                                 .max_outstanding_bytes = 1000,
                                                 .max_ready = 3,
                                                 .max_ready_bytes = 500,
                                                 .max_pipeline = MOST_PIPELINED,
                                                 .max_fetches = 2,
                                                 .max_output_bytes = 300,
                                                 .retry_first_ms = 20,
                                                 .retry_most_ms = 100,
                                                 .retry_total_ms = 500};
    world w = {.now_ms = T0, .epoch = 1, .data = data, .len = len};
    blocks = 0;
    calls_to_failure = -1;
    w.engine = hmq_engine_new(&settings, &counted);
    HOLDS(w.engine != NULL);
    const hmq_engine_tracing tracing = {
        .sample = 0.5, .rate = TRACE_RATE, .adds_context = len & 1, .seed = {1, 2}, .clock_ns = trace_clock};
    HOLDS(hmq_engine_trace(w.engine, &tracing));
    hmq_engine_server_restored(w.engine, 0, w.now_ms);
    for (size_t i = 0; i < CLIENTS; i++) attach(&w, &w.clients[i]);
    uint32_t traced = 0;
    while (w.len > 0) {
        trace_now_ms = w.now_ms;
        step(&w);
        traced += take_traces(&w);
    }
    calls_to_failure = -1;
    hmq_engine_flush(w.engine, w.now_ms);
    take_events(&w);
    take_commands(&w, SIZE_MAX);
    take_outputs(&w);
    for (size_t i = 0; i < CLIENTS; i++) hmq_engine_close(w.engine, w.clients[i].conn);
    traced += take_traces(&w);
    HOLDS(traced <= 3 * TRACE_RATE * (2 + (uint32_t)(w.now_ms - T0) / 1000));
    hmq_engine_free(w.engine);
    HOLDS(blocks == 0);
}
